"""The bundled task `digits`: 1,797 handwritten digits of 8x8 pixels, which scikit-learn ships.

Everything that defines the task is here, free of a framework: its config, its data and its layers. `pytorch/digits.py`
and `tensorflow/digits.py` build the model of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muster_trainer.contract import BadConfiguration
from muster_trainer.data import permutation
from muster_trainer.tasks.config import COMMON_KEYS, Config, Key, choice, widths

CLASSES = 10
SIDE = 8
LARGEST_PIXEL = 16.0
TEST_EVERY = 5
SPLIT_SEED = 20261121  # fixed: the test set is the same for every seed, so that accuracies can be compared

KEYS: tuple[Key, ...] = (*COMMON_KEYS, choice("model", "mlp", "cnn"), widths("hidden", [64]))
IDENTITY_KEYS = ("model", "hidden")


@dataclass(frozen=True)
class Dense:
    """A fully connected layer."""

    units: int
    relu: bool


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution with zero padding and ReLU."""

    filters: int


@dataclass(frozen=True)
class MaxPool:
    """The largest of each 2x2 pixels."""


Layer = Dense | Convolution | MaxPool


def layers(config: Config) -> tuple[Layer, ...]:
    """The model, from an image of shape (n, 64) to logits of shape (n, 10): `hidden` are the widths of the hidden
    layers of the mlp, and of the dense layers behind the convolutions of the cnn."""
    dense = tuple(Dense(units, relu=True) for units in config.hidden)
    head = (*dense, Dense(CLASSES, relu=False))
    if config.model == "mlp":
        return head
    return (Convolution(16), MaxPool(), Convolution(32), MaxPool(), *head)


@dataclass(frozen=True)
class Digits:
    """Map-style: a sample is (pixels float32 (64,) in 0..1, class int64)."""

    pixels: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return self.pixels[index], self.classes[index]

    def batch(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return self.pixels[indices], self.classes[indices]


def dataset(config: Mapping[str, Any], split: str) -> Digits:
    """The `train` or `test` part (1,437 and 360 images); each class is spread alike over both."""
    table = np.loadtxt(_source(), delimiter=",", dtype=np.int64)
    classes = table[:, -1]
    pixels = (table[:, :-1] / LARGEST_PIXEL).astype(np.float32)
    in_test = _in_test(classes)
    chosen = in_test if split == "test" else ~in_test
    return Digits(pixels[chosen], classes[chosen])


def _in_test(classes: np.ndarray) -> np.ndarray:
    """Whether each image is in the test set: with the images in a fixed random order and sorted by class, each fifth."""
    shuffled = permutation(SPLIT_SEED, 0, len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    in_test = np.zeros(len(classes), dtype=bool)
    in_test[by_class[::TEST_EVERY]] = True
    return in_test


def _source() -> Path:
    """The data file inside scikit-learn. Importing the package for it would cost each process some two seconds."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise BadConfiguration("task digits: its images come with scikit-learn, which is not installed; install it")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
