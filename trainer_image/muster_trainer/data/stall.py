"""How much of the step time a training waits for its samples."""

from __future__ import annotations

from dataclasses import dataclass

MUCH = 0.2
LONG = 10.0  # seconds


@dataclass
class Stall:
    """Sums over the steps of this attempt, in seconds; `told` says that the user knows."""

    worked: float = 0.0
    waited: float = 0.0
    told: bool = False

    @property
    def share(self) -> float:
        return self.waited / self.worked if self.worked else 0.0

    def add(self, *, seconds: float, waited: float) -> str | None:
        """Takes in a step of `seconds`, of which it `waited` some; gives what the user should be told, once."""
        self.worked += seconds
        self.waited += waited
        if self.told or self.waited < LONG or self.share < MUCH:
            return None
        self.told = True
        return (
            f"the training waits for its samples {self.share:.0%} of the time; write more spec.trainer.input.workers, or where samples "
            "are slow to decode, input.cache"
        )
