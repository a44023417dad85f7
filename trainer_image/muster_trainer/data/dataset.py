"""The interface of a data set, and a data set in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class DataSet(Protocol):
    """A map-style data set. A sample is (inputs, targets) or (inputs, targets, weight).

    It may have a method `batch(indices)` that returns several samples, stacked.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Sequence[Any]: ...


@dataclass(frozen=True)
class ArrayDataSet:
    """A data set in memory. The rows of both arrays are the inputs and the targets of the samples."""

    inputs: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.inputs[index], self.targets[index]

    def batch(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return self.inputs[indices], self.targets[indices]
