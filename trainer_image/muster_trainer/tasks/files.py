"""`config.data` of a bundled task: samples from the user's files instead of the bundled ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from muster_contract.config import Key, choice
from muster_trainer.data.files import FORMATS, Column, open_files
from muster_trainer.tasks.config import Config, read_config

WHERE = "spec.trainer.config.data"


def _names(value: object) -> bool:
    return (isinstance(value, str) and value != "") or (isinstance(value, list) and value != [] and all(map(_names, value)))


_FILES = "a file name, a pattern such as data/train-*, or a list of these"
_KEYS = (
    choice("format", *FORMATS),
    Key("train", None, _FILES, _names),
    Key("test", None, _FILES, _names),  # without it there is no evaluation
    Key("inputs", None, "a name, or a list of names of columns", _names),
    Key("targets", None, "a name, or a list of names of columns", _names),
)


def dataset_in_files(own: Callable[[Config, str], Any]) -> Callable[[Config, str], Any]:
    """A function that replaces the `dataset` function of a task and reads samples from the files of `config.data`.

    The samples must have the types and shapes of those of `own`, the task's function.
    """

    def dataset(config: Config, split: str) -> Any:
        settings = read_config(config.data, _KEYS, others_allowed=False, where=WHERE)
        inputs, targets = own(config, "train")[0]
        parts = _column(settings, "inputs", inputs), _column(settings, "targets", targets)
        return open_files(settings, split, *parts, where=WHERE)

    return dataset


def _column(settings: Mapping[str, Any], part: str, like: Any) -> Column:
    array = np.asarray(like)
    named = settings[part]
    if isinstance(named, list):
        named = tuple(named)
    elif named is None and part == "inputs" and settings["format"] in ("CSV", "Parquet", "Arrow"):
        named = ()  # all columns that are not targets
    elif named is None and settings["format"] == "CSV" and array.shape:
        named = tuple(f"{part}.{number}" for number in range(array.size))  # the names that muster_trainer.tasks.write gives
    return Column(part if named is None else named, str(array.dtype), array.shape)
