"""What a data set takes from its files: columns with a type and a shape, in parts such as inputs and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Column:
    """One array of each sample: the feature of a TFRecord, the array of an .npz file, or the columns of a CSV file (none
    named: all that no other part takes). `shape` is that of one sample."""

    names: str | tuple[str, ...] = ()
    dtype: str = "float32"
    shape: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name, for formats in which a column has exactly one."""
        return self.names if isinstance(self.names, str) else (self.names or ("",))[0]

    @property
    def size(self) -> int:
        """How many numbers a sample has."""
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
    """The parts, with a value instead of each column."""
    return tuple(
        value_of(part) if isinstance(part, Column) else {name: value_of(column) for name, column in part.items()} for part in parts
    )
