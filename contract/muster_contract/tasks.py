"""The bundled tasks: the frameworks that have their models, and their settings. Admission checks them before anything starts, and the
trainer checks them again."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from muster_contract.config import COMMON_KEYS, Key, choice, number, whole, widths

DATA = Key("data", None, "an object with format and train", lambda value: value is None or isinstance(value, dict))
"""The samples in files of the user, instead of the bundled ones."""


@dataclass(frozen=True)
class BundledTask:
    """`own_keys` replace common keys of the same name. `frameworks` are names such as "PyTorch"."""

    own_keys: tuple[Key, ...]
    frameworks: tuple[str, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        return (*COMMON_KEYS, *self.own_keys, DATA)


COLLECTIVES, REHEARSAL = "collectives", "rehearsal"
MEASURING = (COLLECTIVES, REHEARSAL)
"""The tasks that `muster bench-collectives` and `muster plan` run. They have settings of another kind."""

_EVERY = ("PyTorch", "TensorFlow", "JAX")
TASKS: Mapping[str, BundledTask] = {
    "digits": BundledTask((choice("model", "mlp", "cnn"), widths("hidden", [64])), _EVERY),
    "gpt": BundledTask(
        (
            whole("layers", 2, least=1, most=96),
            whole("heads", 4, least=1, most=128),
            whole("width", 64, least=1, most=16384),
            whole("context", 64, least=1, most=4096),
            number("dropout", 0.0),
        ),
        ("PyTorch", "TensorFlow"),
    ),
    "recommender": BundledTask(
        (
            whole("users", 400, least=2, most=10_000_000),
            whole("items", 200, least=2, most=10_000_000),
            whole("opinions", 40_000, least=100, most=100_000_000),
            whole("embedding", 8, least=1, most=4096),
        ),
        ("PyTorch", "TensorFlow"),
    ),
    "skewed": BundledTask(
        (
            choice("optimizer", "Adam", "SGD", "AdamW"),  # Adam, because a model this deep hardly trains with SGD
            number("learningRate", 0.001, positive=True),
            choice("model", "mlp"),
            widths("hidden", [512, 512, 256, *[64] * 8]),
        ),
        _EVERY,
    ),
}


def no_task(name: str) -> str:
    """The sentence about a task that does not exist."""
    near = difflib.get_close_matches(name.lower(), TASKS, n=1)
    hint = f"did you mean {near[0]}? Write" if near else "write"
    return f"there is no task {name!r:.80}; {hint} one of {', '.join(TASKS)}, or module: your_module for your own"
