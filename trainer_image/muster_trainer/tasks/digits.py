"""The bundled task `digits`: 1,797 handwritten digits of 8x8 pixels, which scikit-learn ships.

Everything that defines the task is here, free of a framework: its config, its data and its layers. `pytorch/digits.py`,
`tensorflow/digits.py` and `jax/digits.py` build the model of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muster_contract.config import COMMON_KEYS, Key, choice, widths
from muster_contract.errors import BadConfiguration
from muster_trainer.data import ArrayDataSet, permutation
from muster_trainer.tasks.config import Config

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


def dataset(config: Mapping[str, Any], split: str) -> ArrayDataSet:
    """The `train` or `test` part (1,437 and 360 images); both have each class in the same proportion.

    A sample is (pixels, class): float32 (64,) in 0..1 and int64 ().
    """
    table = np.loadtxt(_source(), delimiter=",", dtype=np.int64)
    classes = table[:, -1]
    pixels = (table[:, :-1] / LARGEST_PIXEL).astype(np.float32)
    in_test = _in_test(classes)
    chosen = in_test if split == "test" else ~in_test
    return ArrayDataSet(pixels[chosen], classes[chosen])


def _in_test(classes: np.ndarray) -> np.ndarray:
    """Whether each image is in the test set: every fifth image of a fixed random order, sorted by class."""
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
