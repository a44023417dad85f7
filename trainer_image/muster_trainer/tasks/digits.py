"""The bundled task `digits`: 1,797 handwritten digits of 8x8 pixels, which scikit-learn ships.

This module defines the config, the data and the layers, without a framework. `pytorch/digits.py`, `tensorflow/digits.py` and
`jax/digits.py` build the model from the layers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muster_contract.errors import BadConfiguration
from muster_contract.tasks import TASKS
from muster_trainer.data import ArrayDataSet, permutation
from muster_trainer.tasks.config import Config

CLASSES = 10
SIDE = 8
LARGEST_PIXEL = 16.0
TEST_EVERY = 5
SPLIT_SEED = 20261121  # fixed, so that accuracies of different seeds are on the same test set

KEYS = TASKS["digits"].keys
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
    """The maximum of each 2x2 pixels."""


Layer = Dense | Convolution | MaxPool


def layers(config: Config) -> tuple[Layer, ...]:
    """The layers of the model. Inputs are images of shape (n, 64), and outputs are logits of shape (n, 10).

    `config.hidden` has the widths of the hidden layers of the mlp, or of the dense layers after the convolutions of the cnn.
    """
    dense = tuple(Dense(units, relu=True) for units in config.hidden)
    head = (*dense, Dense(CLASSES, relu=False))
    if config.model == "mlp":
        return head
    return (Convolution(16), MaxPool(), Convolution(32), MaxPool(), *head)


def dataset(config: Mapping[str, Any], split: str) -> ArrayDataSet:
    """The `train` part (1,437 images) or the `test` part (360 images). Both have the classes in the same proportions.

    A sample is (pixels, class). Pixels are float32 from 0 to 1, shape (64,). The class is int64, shape ().
    """
    table = np.loadtxt(_source(), delimiter=",", dtype=np.int64)
    classes = table[:, -1]
    pixels = (table[:, :-1] / LARGEST_PIXEL).astype(np.float32)
    in_test = _in_test(classes)
    chosen = in_test if split == "test" else ~in_test
    return ArrayDataSet(pixels[chosen], classes[chosen])


def _in_test(classes: np.ndarray) -> np.ndarray:
    """Whether each image is in the test set. The test set is every fifth image, in a fixed random order that is then sorted by class."""
    shuffled = permutation(SPLIT_SEED, 0, len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    in_test = np.zeros(len(classes), dtype=bool)
    in_test[by_class[::TEST_EVERY]] = True
    return in_test


def _source() -> Path:
    """The data file inside scikit-learn. The package is not imported, because that would take each process about two seconds."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise BadConfiguration("task digits: its images come with scikit-learn, which is not installed; install it")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
