"""How results of a task's `loss` and `metrics` become averages over a batch that is computed in parts, and the check that they can.

Each device sums the results of its samples. Muster adds up these sums, and divides by the sum of the weights. That equals one device
with the whole batch only if the sum of a batch is the sum of its parts. A sum over samples that is returned as their mean breaks this, a
weighted mean, and a result that depends on other samples of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from muster_contract.errors import UserError

WEIGHT = " weight"
"""The end of the name of a sum of weights, which stands beside the sum of the values: `loss` and `loss weight`."""
ADDED = "added loss"
"""The name of the losses that layers add."""
SAMPLES_CHECKED, FEWEST_CHECKED = 8, 3
"""Samples that are checked, and how few if their outputs are large. Two would be cut into equal parts."""
ELEMENTS_CHECKED = 2**24
"""Numbers in the outputs of the samples that are checked, so that the check takes no longer than a step."""
TOLERANCE, TOLERANCE_IN_HALF = 1e-3, 2e-2
"""The largest relative difference that counts as rounding. The other one is for results in 16 bits."""

Results = Callable[[slice], Sequence[np.ndarray]]
"""The rows of a batch -> sums over these rows, shape (), and values for each of these rows, shape (rows, ...)."""


def values_and_weights(result: Any) -> tuple[Any, Any]:
    """The values of a result, and their weights. They are None unless the result is a pair (values, weights)."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    return result, None


def averages(sums: Mapping[str, float], samples: int) -> dict[str, float]:
    """The averages of summed results: each sum is divided by its weight if it has one, else by the number of samples."""
    names = [name for name in sums if not name.endswith(WEIGHT)]
    return {name: _ratio(sums[name], sums.get(name + WEIGHT, float(samples))) for name in names}


def is_check_due(step: int) -> bool:
    """Whether a step (from 0) is checked: 1, 2, 4, 8 and so on, because masks and lengths may be equal in the first batches only."""
    return step & (step + 1) == 0


def samples_checked(size: int) -> int:
    """How many samples of a batch are checked at most. `size` is how many numbers the outputs of one sample have."""
    return max(FEWEST_CHECKED, min(SAMPLES_CHECKED, ELEMENTS_CHECKED // max(1, size)))


def check(title: str, name: str, results: Results, *, rows: int, tolerance: float) -> None:
    """Raises UserError if the results of `rows` samples are not those of their parts, joined."""
    if not are_joined(results, rows=rows, tolerance=tolerance):
        raise UserError(f"{title}: {_REFUSALS.get(name, _METRIC_REFUSED).format(name=name)}")


def are_joined(results: Results, *, rows: int, tolerance: float) -> bool:
    """Whether the results of `rows` samples are those of their parts, joined."""
    cut = max(1, rows // 3)  # unequal parts: halves may be alike
    whole, first, rest = (results(part) for part in (slice(0, rows), slice(0, cut), slice(cut, rows)))
    if all(_is_close(one, _join(*parts), tolerance) for one, *parts in zip(whole, first, rest, strict=True)):
        return True
    again = results(slice(0, rows))
    # a result with random numbers cannot be compared
    return not all(_is_close(one, other, tolerance) for one, other in zip(whole, again, strict=True))


def _join(first: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return np.concatenate([first, rest]) if first.ndim else first + rest


def _is_close(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    """Whether two results differ by rounding only. Results that are no finite numbers cannot be compared, so they pass."""
    size = max(np.linalg.norm(one), np.linalg.norm(other))
    return not np.isfinite(size) or bool(np.linalg.norm(one - other) <= tolerance * size)


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight else float("nan")


_FORMS = (
    "the value of each sample alone, shape (n,), or the pair (sum of the values, sum of their weights), which Muster divides over all parts"
)
_REFUSALS = {
    "loss": "loss is not the mean over the samples: the loss of a batch is not the mean of the losses of its parts. It may be a sum, a "
    "mean with weights or a mask, or compare samples. Devices and micro-batches each compute a part of a batch. "
    f"Return {_FORMS}",
    ADDED: "a layer adds a loss (add_loss, activity_regularizer) that is not the mean over the samples of a batch, such as a sum. Devices "
    "and micro-batches each compute a part of a batch. Add the mean: add_loss(ops.mean(values)), with a value per sample",
}
_METRIC_REFUSED = (
    "metrics returns a {name} that is not the mean over the samples, so it cannot be averaged over the parts of the test set. "
    f"Return {_FORMS}, or leave it out"
)
NO_ROWS = (
    "the outputs of the model have no row per sample, so nobody can tell whether the loss is a mean over the samples. Devices and "
    "micro-batches each compute a part of a batch. Return outputs with a row per sample, and compute the loss from them in loss"
)
