"""Paths of fields, as messages spell them: `spec.roles.worker.template.spec.containers[0].env[1].name`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce

_PLAIN_KEY = re.compile(r"[A-Za-z_<][A-Za-z0-9_<-]*")
_LONGEST_KEY = 60
"""Characters of a key in a path. Each of thousands of fields has a path with all keys above it."""
_LAST_STEP = re.compile(r"(?:\.[^.\[\]]*|\[[^\[\]]*\])$")


def step(path: str, key: str | int) -> str:
    """The path with one more key or index. Indices and keys that are long or not plain words are in brackets: `limits[nvidia.com/gpu]`."""
    if isinstance(key, str) and len(key) <= _LONGEST_KEY and _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{str(key)[:_LONGEST_KEY]}]"


def spelled(path: Iterable[str | int]) -> str:
    return reduce(step, path, "")


def nearest_in_file(field: str, lines: dict[str, int]) -> str:
    """The field itself, or the nearest enclosing field in the file. Empty if there is none."""
    while field and field not in lines:
        shorter = _LAST_STEP.sub("", field)
        field = shorter if shorter != field else ""
    return field
