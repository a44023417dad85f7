"""Limits for the depth and size of the free parts of a spec: `config`, `command`, `args` and `env` of the trainer, and each role's template
and resources.

The CRD has no schema for them, or one that allows a megabyte. They are checked on the raw spec, before anything else walks it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from muster.api.problems import Problem

MAX_DEPTH = 32
"""Levels of each part."""
MAX_VALUES = 4_000
"""Objects, lists, texts and numbers of all parts together. An object takes 250 bytes in memory, and 3 as JSON."""
MAX_BYTES = 64 * 1024
"""Bytes of all parts together, as compact JSON. The configuration reaches the training processes in an environment variable, which Linux
limits to 128 KiB."""

_TRAINER = ("config", "command", "args", "env")
_ROLE = ("template", "resources")
_TOGETHER = "config, command, args and env of the trainer, and templates and resources of all roles"
_REMEDY = "put large values into a file or a ConfigMap, and name it here"
_TOO_LARGE = f"is too large: {_TOGETHER} may take {MAX_BYTES} bytes as JSON together; {_REMEDY}"
_TOO_MANY = f"has too many values: {_TOGETHER} may have {MAX_VALUES} together; {_REMEDY}"
_TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep: write it with fewer levels"

Path = tuple[str, ...]


@dataclass(frozen=True)
class OutOfBounds:
    """Replaces a part of a raw spec that is out of bounds."""

    message: str


@dataclass(frozen=True)
class _Size:
    """Numbers of values, and of bytes as JSON."""

    values: int
    bytes: int


def bounded(spec: Any) -> Any:
    """The raw spec, with an OutOfBounds instead of each part that exceeds the bounds, alone or together with the parts before it."""
    room = _Size(MAX_VALUES, MAX_BYTES)
    for path, value in list(_free_parts(spec)):
        if isinstance(value, OutOfBounds):
            continue
        size = _measured(value, room)
        if isinstance(size, _Size):
            room = _Size(room.values - size.values, room.bytes - size.bytes)
        else:
            spec = _replaced(spec, path, size)
    return spec


def bound_problems(spec: Any) -> list[Problem]:
    """The problems of the parts that `bounded` has replaced."""
    return [Problem(".".join(("spec", *path)), value.message) for path, value in _free_parts(spec) if isinstance(value, OutOfBounds)]


def _measured(value: Any, room: _Size) -> _Size | OutOfBounds:
    """The size of a part, or the reason why it does not fit into `room`. Visits no more values than fit."""
    level, values = [value], 1
    for _ in range(MAX_DEPTH):
        inside = list(islice(chain.from_iterable(map(_inside, level)), max(0, room.values - values) + 1))
        values += len(inside)
        if values > room.values:
            return OutOfBounds(_TOO_MANY)
        level = [each for each in inside if isinstance(each, dict | list)]
    if level:
        return OutOfBounds(_TOO_DEEP)
    size = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass"))
    return _Size(values, size) if size <= room.bytes else OutOfBounds(_TOO_LARGE)


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _free_parts(spec: Any) -> Iterator[tuple[Path, Any]]:
    """The path and the value of each free part."""
    if not isinstance(spec, Mapping):
        return
    trainer, roles = spec.get("trainer"), spec.get("roles")
    yield from _fields(("trainer",), trainer, _TRAINER)
    for name, role in roles.items() if isinstance(roles, Mapping) else ():
        yield from _fields(("roles", name), role, _ROLE)


def _fields(path: Path, value: Any, names: tuple[str, ...]) -> Iterator[tuple[Path, Any]]:
    """The path and the value of each of these fields, if present."""
    if isinstance(value, Mapping):
        yield from (((*path, name), value[name]) for name in names if name in value)


def _replaced(value: Mapping[str, Any], path: Path, new: Any) -> dict[str, Any]:
    first, *rest = path
    return {**value, first: _replaced(value[first], tuple(rest), new) if rest else new}
