"""The columns that a data set reads from its files, each with a type and a shape. They form parts such as inputs and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Column:
    """One array of each sample: the feature of a TFRecord, the array of an .npz file, or columns of a CSV file.

    `shape` is the shape of one sample. Without `names`, it has all columns of the CSV file that no other part names.
    """

    names: str | tuple[str, ...] = ()
    dtype: str = "float32"
    shape: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of the column, in formats where it has exactly one."""
        return self.names if isinstance(self.names, str) else (self.names or ("",))[0]

    @property
    def size(self) -> int:
        """The number of numbers in a sample."""
        return prod(self.shape)

    @property
    def type(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)


Part = Column | Mapping[str, Column]
"""Inputs, targets or weights: one array, or a dict of arrays."""


def columns_of(parts: Sequence[Part]) -> list[Column]:
    """All columns of all parts, in order."""
    return [column for part in parts for column in ([part] if isinstance(part, Column) else part.values())]


def assembled(parts: Sequence[Part], value_of: Callable[[Column], Any]) -> tuple[Any, ...]:
    """The parts, with each column replaced by the result of `value_of`."""
    return tuple(
        value_of(part) if isinstance(part, Column) else {name: value_of(column) for name, column in part.items()} for part in parts
    )


def converted(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The numbers as `dtype`. Raises ValueError for a whole number that is out of its range, which numpy would change."""
    numbers = values.astype(dtype)
    if dtype.kind in "iub" and values.dtype != dtype and len(wrong := np.flatnonzero(numbers != values)):
        raise ValueError(f"{values.flat[wrong[0]]} is out of range")
    return numbers
