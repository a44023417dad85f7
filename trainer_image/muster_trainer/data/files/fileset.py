"""A map-style data set over files. It has only the position of each sample in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from muster_contract.errors import BadConfiguration
from muster_trainer.data.files.columns import Part, assembled, columns_of
from muster_trainer.data.files.opened import OpenFile


class FileSet(ABC):
    """Samples are numbered over all files, in the order of the files. Several processes and threads may read at the same time."""

    def __init__(self, files: Sequence[OpenFile], parts: Sequence[Part]) -> None:
        self.files, self.parts = files, parts
        self.columns = columns_of(parts)
        self._begins = np.concatenate([[0], np.cumsum([self._index(file) for file in files])])
        """The number of the first sample of each file, then the number of all samples."""
        for number in range(len(files)):
            first, last = int(self._begins[number]), int(self._begins[number + 1]) - 1
            if first <= last:
                self._try(first, last)

    def _try(self, first: int, last: int) -> None:
        """Reads samples `first` and `last` of a file, so that a file that does not fit raises its error now."""
        self.batch([first, last])

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        arrays = self.arrays(np.array([index]))
        return assembled(self.parts, lambda column: arrays[self.columns.index(column)][0])

    def batch(self, indices: Sequence[int]) -> tuple[Any, ...]:
        """The samples stacked: arrays of shape (n, *shape)."""
        arrays = self.arrays(np.asarray(indices))
        return assembled(self.parts, lambda column: arrays[self.columns.index(column)])

    def _check_bounds(self, indices: np.ndarray) -> None:
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"there are {len(self)} samples")

    def _located(self, indices: np.ndarray) -> list[tuple[int, int]]:
        """For each sample, the number of its file and its number in the file."""
        self._check_bounds(indices)
        numbers = np.searchsorted(self._begins, indices, side="right") - 1
        return list(zip(numbers.tolist(), (indices - self._begins[numbers]).tolist(), strict=True))

    @abstractmethod
    def _index(self, file: OpenFile) -> int:
        """Finds the samples of a file, and returns their number. Raises BadConfiguration if it is damaged."""

    @abstractmethod
    def arrays(self, indices: np.ndarray) -> list[np.ndarray]:
        """An array of shape (n, *shape) for each column. Raises BadConfiguration, which names the file and the record."""


class Records(FileSet):
    """Each sample is a contiguous range of bytes in one file."""

    def __init__(self, files: Sequence[OpenFile], parts: Sequence[Part]) -> None:
        self._starts: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        super().__init__(files, parts)

    def _add_records(self, starts: np.ndarray, lengths: np.ndarray) -> int:
        self._starts.append(starts)
        self._lengths.append(lengths)
        return len(starts)

    def arrays(self, indices: np.ndarray) -> list[np.ndarray]:
        records = self._located(indices)
        rows = [self._decoded(number, record, self._bytes(number, record)) for number, record in records]
        return [np.stack(column) for column in zip(*rows, strict=True)]

    def _bytes(self, number: int, record: int) -> bytes:
        return self.files[number].read(int(self._starts[number][record]), int(self._lengths[number][record]))

    def _wrong(self, number: int, record: int, what: str) -> BadConfiguration:
        return BadConfiguration(f"data file {self.files[number].path}, record {record + 1}: {what}")

    @abstractmethod
    def _decoded(self, number: int, record: int, content: bytes) -> list[np.ndarray]:
        """The arrays of one sample, one for each column."""
