"""The `config` of a job: typed keys with defaults, and the object that is handed to training code."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muster_trainer.contract import BadConfiguration

MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Key:
    """A key of `config`: its default, and what its value must be, in words and as a check."""

    name: str
    default: Any
    needed: str
    holds: Callable[[Any], bool]


def whole(name: str, default: int, *, least: int, most: int = MOST_SEED) -> Key:
    upper = "" if most == MOST_SEED else f" and at most {most}"
    return Key(name, default, f"a whole number of at least {least}{upper}", lambda v: _whole(v) and least <= v <= most)


def number(name: str, default: float, *, positive: bool = False) -> Key:
    def holds(value: Any) -> bool:
        return _number(value) and (value > 0 if positive else value >= 0)

    return Key(name, default, "a number above 0" if positive else "a number that is not negative", holds)


def choice(name: str, default: str, *others: str) -> Key:
    values = (default, *others)
    return Key(name, default, " or ".join(values), lambda value: isinstance(value, str) and value in values)


def flag(name: str, *, default: bool) -> Key:
    return Key(name, default, "true or false", lambda value: isinstance(value, bool))


def folder(name: str) -> Key:
    def holds(value: Any) -> bool:
        parts = value.split("/") if isinstance(value, str) else [".."]
        return not ({"..", "."} & set(parts) or parts[0] == "attempts" or parts[0].startswith("step-") or value.endswith("/"))

    return Key(name, "", "the name of a folder (such as model), or an absolute path,", holds)


def widths(name: str, default: list[int]) -> Key:
    def holds(value: Any) -> bool:
        return isinstance(value, list) and 1 <= len(value) <= 16 and all(_whole(one) and one >= 1 for one in value)

    return Key(name, default, "a list of 1 to 16 whole numbers of at least 1", holds)


COMMON_KEYS: tuple[Key, ...] = (
    whole("epochs", 15, least=1),
    number("learningRate", 0.05, positive=True),
    whole("warmupSteps", 0, least=0),  # steps over which the learning rate grows from near 0
    choice("optimizer", "SGD", "Adam", "AdamW"),
    number("momentum", 0.9),  # of SGD
    number("weightDecay", 0.0),  # L2 for SGD and Adam, decoupled for AdamW
    number("gradientClipNorm", 0.0),  # most that the norm of the whole gradient may be; 0: any
    choice("nanLoss", "Stop", "Skip", "Continue"),  # what a loss that is no finite number does to the training
    whole("seed", 0, least=0),
    flag("deterministic", default=True),
    choice("precision", "Float32", "BFloat16"),  # what the forward pass computes in; all else is float32
    folder("export"),  # below the checkpoint directory: where the trained model goes in the end; "": nowhere
    whole("evaluateEveryEpochs", 0, least=0),  # 0: at the end alone
    number("stepDelaySeconds", 0.0),  # slows each step down, to try faults by hand
)


class Config(Mapping[str, Any]):
    """A job's `config` with the defaults filled in: `config.learningRate`, `config["learningRate"]`, `config.get(...)`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"config has no key {name!r}; it has {', '.join(sorted(self._values))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def replaced(self, **values: Any) -> Config:
        """The same with other values for some keys."""
        return Config(self._values | values)


def read_config(values: Mapping[str, Any], keys: tuple[Key, ...], *, others_allowed: bool, where: str = "spec.trainer.config") -> Config:
    """`values`, which stand at `where`, checked against `keys`, with defaults. Raises BadConfiguration that names key and remedy."""
    known = {key.name: key for key in keys}
    if not others_allowed:
        for name in values:
            if name not in known:
                raise BadConfiguration(f"{where}.{name}: there is no such key; {_suggestion(name, known)}")
    for name, key in known.items():
        if name in values and not key.holds(values[name]):
            raise BadConfiguration(f"{where}.{name}: {key.needed} is needed, found {values[name]!r}")
    return Config({name: key.default for name, key in known.items()} | dict(values))


def _suggestion(name: str, known: Mapping[str, Key]) -> str:
    by_lower = {key.lower(): key for key in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"did you mean {by_lower[near[0]]}?" if near else f"write one of {', '.join(sorted(known))}"


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
