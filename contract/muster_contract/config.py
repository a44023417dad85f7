"""The settings that all tasks and modules share, a job's `trainer.settings`, and the rules for their values. A job may write them into
`trainer.config` too, beside the keys of its own task or module."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeGuard

from muster_contract.checkpoint_layout import is_reserved

MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Key:
    """A key of `config`: its default, the required kind of value in words, a check of the value, and what it does. `least` is the least
    number, and `values` are all values of a choice."""

    name: str
    default: Any
    needed: str
    holds: Callable[[object], bool]
    doc: str = ""
    least: int | None = None
    values: tuple[str, ...] = ()


def whole(name: str, default: int, *, least: int, most: int = MOST_SEED, doc: str = "") -> Key:
    upper = "" if most == MOST_SEED else f" and at most {most}"
    return Key(name, default, f"a whole number of at least {least}{upper}", lambda v: _whole(v) and least <= v <= most, doc, least)


def number(name: str, default: float, *, positive: bool = False, doc: str = "") -> Key:
    def holds(value: object) -> bool:
        return _number(value) and (value > 0 if positive else value >= 0)

    return Key(name, default, "a number above 0" if positive else "a number that is not negative", holds, doc, 0)


def choice(name: str, default: str, *others: str, doc: str = "") -> Key:
    values = (default, *others)
    return Key(name, default, " or ".join(values), lambda value: isinstance(value, str) and value in values, doc, values=values)


def flag(name: str, *, default: bool, doc: str = "") -> Key:
    return Key(name, default, "true or false", lambda value: isinstance(value, bool), doc)


def folder(name: str, *, doc: str = "") -> Key:
    def holds(value: object) -> bool:
        return isinstance(value, str) and not ({"..", "."} & set(value.split("/")) or is_reserved(value) or value.endswith("/"))

    return Key(name, "", "the name of a folder (such as model), or an absolute path,", holds, doc)


def widths(name: str, default: list[int], *, doc: str = "") -> Key:
    def holds(value: object) -> bool:
        return isinstance(value, list) and 1 <= len(value) <= 16 and all(_whole(one) and one >= 1 for one in value)

    return Key(name, default, "a list of 1 to 16 whole numbers of at least 1", holds, doc)


COMMON_KEYS: tuple[Key, ...] = (
    whole("epochs", 15, least=1, doc="How often each sample is used."),
    number(
        "learningRate",
        0.05,
        positive=True,
        doc="Learning rate, which batch.learningRateScaling may raise with the size of the world.",
    ),
    whole(
        "warmupSteps",
        0,
        least=0,
        doc="Number of steps over which the learning rate grows linearly (Goyal et al., 2017). It is a function of the step, so a "
        "resumed run has the same rates.",
    ),
    choice("optimizer", "SGD", "Adam", "AdamW", doc="The optimizer, unless a module defines one."),
    number("momentum", 0.9, doc="Momentum of SGD."),
    number("weightDecay", 0.0, doc="Weight decay: L2 for SGD and Adam, decoupled for AdamW. It is added once, in the update."),
    number(
        "gradientClipNorm", 0.0, doc="Largest norm of the gradient of the whole model and the whole batch. 0: gradients are not clipped."
    ),
    choice(
        "nanLoss",
        "Stop",
        "Skip",
        "Continue",
        doc="What happens if a loss is not a finite number. Stop: all ranks end with exit code 10, and the message names the step and "
        "the samples. Skip: the step changes nothing. Continue: it is ignored.",
    ),
    whole("seed", 0, least=0, doc="Seed of the order of samples, the first weights and all random numbers."),
    flag(
        "deterministic",
        default=True,
        doc="Whether a run can be repeated bit for bit. It may cost speed: JAX, for example, computes with one thread of a CPU.",
    ),
    choice(
        "precision",
        "Float32",
        "BFloat16",
        doc="Numbers of the forward pass. Parameters, loss, updates and checkpoints are float32 in any case. PyTorch: autocast, and for "
        "FSDP its own mixed precision. TensorFlow: mixed_bfloat16 of Keras.",
    ),
    folder(
        "export",
        doc="Folder for the trained model, below the checkpoint directory, or an absolute path. Without it, no model is written.",
    ),
    whole("evaluateEveryEpochs", 0, least=0, doc="Number of epochs between evaluations on the test set. 0: only at the end."),
    number("stepDelaySeconds", 0.0, doc="Seconds that each step waits, to try faults by hand."),
)


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("lr", "eta", "stepsize", "baselr"), "learningRate"),
    **dict.fromkeys(("numepochs", "nepochs", "maxepochs", "numtrainepochs"), "epochs"),
    **dict.fromkeys(("warmup", "numwarmupsteps"), "warmupSteps"),
    **dict.fromkeys(("opt", "optim"), "optimizer"),
    **dict.fromkeys(("wd", "l2"), "weightDecay"),
    **dict.fromkeys(("clip", "gradclip", "maxgradnorm", "clipnorm"), "gradientClipNorm"),
    **dict.fromkeys(("randomseed", "randomstate", "manualseed"), "seed"),
    **dict.fromkeys(("dtype", "mixedprecision", "bf16"), "precision"),
}
"""Names of shared keys in other tools, in lower case and without `_` and `-`."""
_SLIP = 0.8
"""How similar a name is to that of a shared key if it is a slip, from 0 to 1. A module may have keys of its own, such as `layers`."""
MOST_SLIPS = 100
"""Slips that are looked for, because comparing names takes time."""


def slips(config: Mapping[str, Any], keys: Iterable[Key] = COMMON_KEYS) -> Iterator[tuple[str, str]]:
    """Each name that is none of the keys and resembles one, and what may have been meant."""
    for name, meant in _unknown(config, list(keys), _SLIP):
        if meant:
            yield name, f"is a key of your own, and passed on as it is: did you mean {meant}?"


def unknown_keys(config: Mapping[str, Any], keys: Iterable[Key]) -> Iterator[tuple[str, str]]:
    """Each name that is none of the keys, and what to write instead."""
    keys = list(keys)
    for name, meant in _unknown(config, keys, 0.5):
        remedy = f"did you mean {meant}?" if meant else f"write one of {', '.join(sorted({key.name for key in keys}))}"
        yield name, f"there is no such key; {remedy}"


def shared_name(name: str) -> str | None:
    """The shared setting that other tools, or a slip of the case, call so. None if there is none."""
    plain = _plain(name)
    return ALIASES.get(plain) or next((key.name for key in COMMON_KEYS if _plain(key.name) == plain), None)


def _unknown(config: Mapping[str, Any], keys: Sequence[Key], similarity: float) -> Iterator[tuple[str, str | None]]:
    by_plain = {_plain(key.name): key.name for key in keys}
    names = set(by_plain.values())
    for name in islice((name for name in config if name not in names), MOST_SLIPS):
        near = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=similarity)
        alias = ALIASES.get(_plain(name))
        yield name, alias if alias in names else by_plain[near[0]] if near else None


def _plain(name: str) -> str:
    return name[:100].lower().replace("_", "").replace("-", "")


def wrong_values(config: Mapping[str, Any], keys: Iterable[Key] = COMMON_KEYS) -> Iterator[tuple[str, str]]:
    """The name of each key whose value is wrong, and the kind of value that is required."""
    for key in {key.name: key for key in keys}.values():
        if key.name in config and not key.holds(config[key.name]):
            yield key.name, f"{key.needed} is needed, found {config[key.name]!r:.80}"
