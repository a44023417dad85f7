"""Measures the share of the step time in which a training waits for its samples."""

from __future__ import annotations

from dataclasses import dataclass

MUCH = 0.2
LONG = 10.0  # seconds


@dataclass
class Stall:
    """Sums over the steps of this attempt, in seconds. `reported` is True when the message to the user was sent."""

    total: float = 0.0
    waited: float = 0.0
    reported: bool = False

    @property
    def share(self) -> float:
        return self.waited / self.total if self.total else 0.0

    def add(self, *, seconds: float, waited: float) -> str | None:
        """Adds a step that took `seconds` and `waited` seconds of these for samples. Returns a message for the user at most once."""
        self.total += seconds
        self.waited += waited
        if self.reported or self.waited < LONG or self.share < MUCH:
            return None
        self.reported = True
        return (
            f"the training waits for its samples {self.share:.0%} of the time; write more spec.trainer.input.workers, or input.cache if "
            "samples are slow to decode"
        )
