"""The order of samples. With a fixed global batch it is a pure function of (seed, step), for a world of any size.

So the number of a step determines its samples, and checkpoints contain no state of a data loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Indices = np.ndarray


def permutation(seed: int, epoch: int, size: int, *, run: int = 0) -> Indices:
    """The order of `size` samples in `epoch` (from 0): int64, shape (size,). Each `run` has a different order.

    It sorts the raw stream of Philox with the key (seed, epoch), and does not use `Generator.permutation`, because numpy guarantees
    that only the stream of a bit generator stays the same in later versions (NEP 19).
    """
    generator = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64), counter=np.array([0, 0, 0, run], dtype=np.uint64))
    return np.argsort(generator.random_raw(size), kind="stable").astype(np.int64)


@dataclass(frozen=True)
class Order:
    """The order of `size` samples in steps of `batch` samples. The last step of an epoch has the remaining samples. Steps count from 0.

    With `runs` above 1, the samples are cut into that number of contiguous runs, one for each device. A device gets only samples of its
    run, so that it reads few of the files. The order then depends on the number of devices.
    """

    seed: int
    size: int
    batch: int
    runs: int = 1

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.size // self.batch)

    def epoch(self, step: int) -> int:
        """The epoch of `step`, from 0."""
        return step // self.steps_per_epoch

    def batch_indices(self, step: int) -> Indices:
        """The samples of `step`: int64, shape (n,), 1 <= n <= batch."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return _whole_epoch(self, epoch)[position * self.batch : (position + 1) * self.batch]

    def boundary(self, step: int, every_steps: int | None) -> int:
        """The end (exclusive) of the steps whose batches may be scheduled at `step`. It is the end of the epoch or the next checkpoint,
        whichever comes first."""
        epoch_end = (self.epoch(step) + 1) * self.steps_per_epoch
        return epoch_end if every_steps is None else min(epoch_end, (step // every_steps + 1) * every_steps)

    def samples_before(self, step: int) -> int:
        """The number of samples in the steps before `step`."""
        epochs, position = divmod(step, self.steps_per_epoch)
        return epochs * self.size + min(position * self.batch, self.size)


def batches_in_order(count: int, size: int) -> Iterator[Indices]:
    """The first `count` samples in their order, in batches of `size`, as for a test set."""
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))


@lru_cache(maxsize=2)
def _whole_epoch(order: Order, epoch: int) -> Indices:
    """The samples of all steps of an epoch, in their order: int64, shape (size,), read-only."""
    if order.runs == 1:
        samples = permutation(order.seed, epoch, order.size)
    else:
        positions = np.arange(order.size) % order.batch
        steps = np.arange(order.size) // order.batch
        lengths = np.minimum(order.batch, order.size - steps * order.batch)  # the batch size of the step at each position
        owners = _owner(positions, lengths, order.runs)
        by_run = np.argsort(owners, kind="stable")
        samples = np.empty(order.size, dtype=np.int64)
        begin = 0
        for run, count in enumerate(np.bincount(owners).tolist()):
            samples[by_run[begin : begin + count]] = begin + permutation(order.seed, epoch, count, run=run)
            begin += count
    samples.setflags(write=False)
    return samples


def _owner(positions: Indices, lengths: Indices, parts: int) -> Indices:
    """The part, of `parts`, that gets each position of a batch of the given length, by the cut of `np.array_split`."""
    least, longer = lengths // parts, lengths % parts
    head = longer * (least + 1)
    owners: Indices = np.where(positions < head, positions // (least + 1), longer + (positions - head) // np.maximum(least, 1))
    return owners
