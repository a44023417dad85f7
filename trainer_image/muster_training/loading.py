"""A DataLoader whose place in the data is saved and restored.

The place counts the batches that the program has got, and not those that workers have read ahead. It is the same on all ranks, so a rank
that loses its peers can save it for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from muster_contract.errors import UserError
from muster_trainer.data.order import permutation
from muster_training.generators import read_states, set_states
from muster_training.session import environment

OWN = ("sampler", "batch_sampler", "generator")
"""The arguments of DataLoader that this loader sets itself."""


class Loader(DataLoader[Any]):
    """The result of `data_loader`."""

    def __init__(self, dataset: Any, batch_size: int, *, shuffle: bool, drop_last: bool, seed: int, **options: Any) -> None:
        if taken := [name for name in OWN if name in options]:
            raise UserError(f"data_loader: {taken[0]} is chosen by data_loader; write shuffle and seed instead")
        if not isinstance(dataset, IterableDataset) and (not isinstance(batch_size, int) or batch_size < 1):
            raise UserError(f"data_loader: batch_size must be a whole number of at least 1, not {batch_size!r}")
        if not isinstance(seed, int) or seed < 0:
            raise UserError(f"data_loader: seed must be a whole number of at least 0, not {seed!r}")
        place = environment()
        self.epoch = self._done = 0
        self._batches: _Batches | None = None
        self._identity = (seed, place.rank)
        self._world = place.world
        given: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
        if not isinstance(dataset, IterableDataset):
            self._batches = _Batches(dataset, batch_size, place.rank, place.world, shuffle=shuffle, drop_last=drop_last, seed=seed)
            given = {"batch_sampler": self._batches}
        super().__init__(dataset, **given, generator=torch.Generator(), **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The rest of the epoch."""
        self.generator.manual_seed(int(np.random.SeedSequence([*self._identity, self.epoch]).generate_state(1)[0]))
        if callable(set_epoch := getattr(self.dataset, "set_epoch", None)):
            set_epoch(self.epoch)
        if self._batches:
            self._batches.epoch, self._batches.done = self.epoch, self._done
            for done, batch in zip(self._batches.ends(), super().__iter__(), strict=True):
                self._done = done
                yield batch
        else:
            for batch in self._rest(super().__iter__()):
                self._done += 1
                yield batch
        self.epoch, self._done = self.epoch + 1, 0

    def _rest(self, batches: Iterator[Any]) -> Iterator[Any]:
        """What follows the batches that are done. To read them again changes no random numbers of the program."""
        states = read_states([])
        for _ in islice(batches, self._done):
            pass
        set_states(states, [])
        return batches

    def state_dict(self) -> dict[str, int]:
        """The epoch and the place in it, after the newest batch that the program has got: the samples of all ranks, or, of an
        IterableDataset, the batches of each rank."""
        place = {"epoch": self.epoch, "done": self._done}
        return place if self._batches else {**place, "ranks": self._world}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state.get("ranks", self._world) != self._world and state["done"]:
            raise UserError(f"the place in an IterableDataset is that of {state['ranks']} ranks, and there are {self._world}")
        self.epoch, self._done = state["epoch"], state["done"]


class _Batches(Sampler[list[int]]):
    """The batches of this rank, after the first `done` samples of an epoch. All ranks together go through the samples in their order."""

    def __init__(self, dataset: Any, batch_size: int, rank: int, world: int, *, shuffle: bool, drop_last: bool, seed: int) -> None:
        self._size, self._rank, self._world = len(dataset), rank, world
        self._together = batch_size * world
        self._shuffles, self._drops_last, self._seed = shuffle, drop_last, seed
        self.epoch = self.done = 0
        if self._size < world:
            raise UserError(f"data_loader: the data set has {self._size} samples, fewer than the {world} ranks")

    def __len__(self) -> int:
        return len(self._ends(0))

    def __iter__(self) -> Iterator[list[int]]:
        order = permutation(self._seed, self.epoch, self._size) if self._shuffles else np.arange(self._size)
        ends = self.ends()
        return (order[start:end][self._rank :: self._world].tolist() for start, end in zip([self.done, *ends], ends, strict=False))

    def ends(self) -> list[int]:
        """The end of each batch of all ranks, in samples from the start of the epoch."""
        return self._ends(self.done)

    def _ends(self, done: int) -> list[int]:
        ends = list(range(done + self._together, self._size + 1, self._together))
        rest = self._size - (ends or [done])[-1]
        if not self._drops_last and rest >= self._world:
            return [*ends, self._size]
        if not self._drops_last and ends:
            ends[-1] = self._size  # each rank needs a sample of each batch, so fewer samples than ranks belong to the batch before
        return ends
