"""Data loaders whose place in the data is saved and restored. Making one imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster_training.loading import Loader


def data_loader(
    dataset: Any, batch_size: int = 1, *, shuffle: bool = False, drop_last: bool = False, seed: int = 0, **options: Any
) -> Loader:
    """Returns a `DataLoader` of PyTorch that divides a data set among the ranks, and whose place in the data can be registered.

    `batch_size` is that of one rank. Each epoch has each sample once. If the samples do not divide, the last batch is smaller, or has one
    sample more on some ranks, so that all ranks have as many batches. If the number of ranks changes within an epoch, a rest of fewer
    samples than ranks is left out. Dropout then draws other numbers on these ranks, and the states of their generators differ. So with
    Dropout, use a number of samples that the ranks divide, or `drop_last`, which leaves the last batch out. `shuffle` orders the samples
    by `seed` and the epoch alone. `options` are those of `DataLoader`, such as `num_workers`.

    An `IterableDataset` must itself give each rank, and each worker, its part. If it has `set_epoch(epoch)`, that is called before each
    epoch. A resume reads the batches that are done again, and drops them.

    The result has `epoch`, from 0. An iteration goes on at the place that was restored: `for epoch in range(loader.epoch, epochs)`.

    Raises UserError for arguments that it does not take. Raises ImportError if PyTorch is not installed.
    """
    from muster_training.loading import Loader

    return Loader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed, **options)
