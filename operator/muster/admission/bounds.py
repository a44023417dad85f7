"""How deep and how large the free parts of a spec may be: `trainer.config` and the pod templates, for which the CRD has no schema.

It is checked on the raw spec, before anything else walks it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from muster.api.problems import Problem

MAX_DEPTH = 32
MAX_BYTES = 64 * 1024
"""Of compact JSON. The configuration reaches the training processes in an environment variable, which Linux limits to 128 KiB."""

_TOO_LARGE = f"has more than {MAX_BYTES} bytes as JSON: put large values into a file or a ConfigMap, and name it here"

Path = tuple[str, ...]


@dataclass(frozen=True)
class LeftOut:
    """Stands in a raw spec for a part that is out of bounds and is not kept."""

    message: str


def bounded(spec: Any) -> Any:
    """The raw spec, with a LeftOut in place of each part that is out of bounds."""
    for path, value in list(_free_parts(spec)):
        message = out_of_bounds(value)
        if message is not None:
            spec = _replaced(spec, path, LeftOut(message))
    return spec


def left_out(spec: Any) -> list[Problem]:
    """What `bounded` left out of the raw spec."""
    return [Problem(".".join(("spec", *path)), value.message) for path, value in _free_parts(spec) if isinstance(value, LeftOut)]


def out_of_bounds(value: Any) -> str | None:
    """What is wrong with the depth or size of a free part; None: it is within bounds."""
    if isinstance(value, LeftOut):
        return value.message
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        inside: list[Any] = []
        for each in level:
            room = MAX_BYTES // 2 - count - len(inside)  # each has two brackets: there is no need to look at a megabyte of them
            inside += islice((inner for inner in _inside(each) if isinstance(inner, dict | list)), room)
        if count + len(inside) >= MAX_BYTES // 2:
            return _TOO_LARGE
        level, count = inside, count + len(inside)
    if level:
        return f"is nested more than {MAX_DEPTH} levels deep: write it with fewer levels"
    size = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass"))
    return _TOO_LARGE if size > MAX_BYTES else None


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _free_parts(spec: Any) -> Iterator[tuple[Path, Any]]:
    """Where they are, and what is there."""
    if not isinstance(spec, Mapping):
        return
    trainer, roles = spec.get("trainer"), spec.get("roles")
    if isinstance(trainer, Mapping) and "config" in trainer:
        yield ("trainer", "config"), trainer["config"]
    for name, role in roles.items() if isinstance(roles, Mapping) else ():
        if isinstance(role, Mapping) and "template" in role:
            yield ("roles", name, "template"), role["template"]


def _replaced(value: Mapping[str, Any], path: Path, new: Any) -> dict[str, Any]:
    first, *rest = path
    return {**value, first: _replaced(value[first], tuple(rest), new) if rest else new}
