"""Compares the loss curves of two runs."""

from __future__ import annotations

from dataclasses import dataclass

from muster.tools.report.history import History


@dataclass(frozen=True)
class Comparison:
    """The result for `compared` steps. `equal` of them have the same loss, bit for bit. The others differ by at most
    `largest_difference`."""

    compared: int
    equal: int
    largest_difference: float
    first_difference: int | None
    missing: int
    """The number of steps that only one of the two runs did."""

    @property
    def identical(self) -> bool:
        return self.compared > 0 and self.equal == self.compared and self.missing == 0

    def sentence(self) -> str:
        """The result in words."""
        if self.identical:
            return f"all {self.compared} losses are equal bit for bit"
        if self.compared == 0:
            return "the runs have no step in common with a loss that can be compared"
        parts = [f"{self.equal} of {self.compared} losses are equal bit for bit"]
        if self.first_difference is not None:
            parts.append(f"the first difference is at step {self.first_difference}, the largest is {self.largest_difference:.3g}")
        if self.missing:
            parts.append(f"{self.missing} steps were done by one run only")
        return "; ".join(parts)


def compare(one: History, other: History) -> Comparison:
    """Compares the losses step by step as exact binary numbers (`float.hex`). If a step was redone, its last execution counts. Omits steps
    without such a number."""
    one_steps, other_steps = ({number: step for number, step in history.curve.items() if step.loss_hex} for history in (one, other))
    common = sorted(one_steps.keys() & other_steps.keys())
    different = [step for step in common if one_steps[step].loss_hex != other_steps[step].loss_hex]
    return Comparison(
        compared=len(common),
        equal=len(common) - len(different),
        largest_difference=max((abs(one_steps[step].loss_value - other_steps[step].loss_value) for step in different), default=0.0),
        first_difference=different[0] if different else None,
        missing=len(one_steps.keys() ^ other_steps.keys()),
    )
