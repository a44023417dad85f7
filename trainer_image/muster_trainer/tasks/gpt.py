"""The bundled task `gpt`: a small language model over characters, on the English text that scikit-learn ships.

The text is the descriptions of scikit-learn's data sets, about 45,000 characters. A sample is `context` characters, and the next
character after each. This module needs no framework. `pytorch/gpt.py` and `tensorflow/gpt.py` build the model.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from muster_contract.errors import BadConfiguration
from muster_contract.tasks import TASKS
from muster_trainer.data import ArrayDataSet
from muster_trainer.tasks.config import Config

CHARACTERS = 128  # ASCII
TEST_EVERY = 10

KEYS = TASKS["gpt"].keys
IDENTITY_KEYS = ("layers", "heads", "width", "context")


def check(config: Config) -> None:
    """Checks keys that depend on each other. Raises BadConfiguration."""
    if config.width % config.heads:
        raise BadConfiguration(f"spec.trainer.config.heads: {config.heads} heads do not divide the width {config.width}")
    if config.dropout >= 1:
        raise BadConfiguration(f"spec.trainer.config.dropout: a number below 1 is needed, found {config.dropout}")


def dataset(config: Mapping[str, Any], split: str) -> ArrayDataSet:
    """The `train` or `test` part: consecutive windows of the text. Every tenth window is in the test part.

    A sample is (characters, next characters): both int64, shape (context,).
    """
    text = np.frombuffer(_text().encode("ascii", "replace"), dtype=np.uint8).astype(np.int64)
    context = config["context"]
    count = (len(text) - 1) // context
    windows = np.stack([text[start : start + context + 1] for start in range(0, count * context, context)])
    in_test = np.arange(count) % TEST_EVERY == TEST_EVERY - 1
    chosen = windows[in_test if split == "test" else ~in_test]
    return ArrayDataSet(chosen[:, :-1], chosen[:, 1:])


def _text() -> str:
    package = importlib.util.find_spec("sklearn")
    folders = package.submodule_search_locations if package else None
    files = sorted((Path(folders[0]) / "datasets" / "descr").glob("*.rst")) if folders else []
    if not files:
        raise BadConfiguration("task gpt: its text comes with scikit-learn, which is not installed (or without datasets/descr); install it")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)
