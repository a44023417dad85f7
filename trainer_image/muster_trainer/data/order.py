"""The order of samples: a pure function of (seed, step) at a fixed global batch, whatever the world.

That is why no loader state is saved: a step names its samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Indices = np.ndarray


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, size: int) -> Indices:
    """The order of `size` samples in `epoch` (from 0): shape (size,), int64, read-only.

    The raw stream of Philox keyed by (seed, epoch), sorted: numpy promises the stream of a bit generator for ever, but
    not what `Generator.permutation` makes of it (NEP 19).
    """
    raw = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(size)
    order = np.argsort(raw, kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


@dataclass(frozen=True)
class Order:
    """`size` samples in steps of `batch`; the last step of an epoch takes what is left. Steps count from 0 here."""

    seed: int
    size: int
    batch: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.size // self.batch)

    def epoch(self, step: int) -> int:
        """The epoch, from 0, that `step` belongs to."""
        return step // self.steps_per_epoch

    def batch_indices(self, step: int) -> Indices:
        """The samples of `step`: shape (n,), 1 <= n <= batch."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return permutation(self.seed, epoch, self.size)[place * self.batch : (place + 1) * self.batch]

    def samples_before(self, step: int) -> int:
        """How many samples the steps before `step` took."""
        epochs, place = divmod(step, self.steps_per_epoch)
        return epochs * self.size + min(place * self.batch, self.size)
