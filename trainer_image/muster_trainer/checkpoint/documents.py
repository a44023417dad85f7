"""JSON documents in the checkpoint storage. Others may have written them, so they are read within bounds or refused with a ValueError."""

from __future__ import annotations

import json
from typing import Any, NoReturn

LARGEST_NUMBER = 2**53
_SHOWN = 200


def parse(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`. Raises ValueError for everything else."""
    try:
        document = json.loads(content, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is not an object")
    return document


def whole(value: object, *, least: int = 0, most: int = LARGEST_NUMBER) -> int:
    """`value`, if it is a whole number in this range. Raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{shown(value)} is not a whole number from {least} to {most}")
    return value


def text(value: object, *, most: int = _SHOWN) -> str:
    """`value`, if it is a text of at most `most` characters. Raises ValueError."""
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"{shown(value)} is not a text of at most {most} characters")
    return value


def mapping(value: object) -> dict[str, Any]:
    """`value`, if it is an object. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is not an object")
    return value


def listing(value: object) -> list[Any]:
    """`value`, if it is a list. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{shown(value)} is not a list")
    return value


def shallow(value: object, *, depth: int) -> bool:
    """Whether lists and objects in `value` are nested at most `depth` deep."""
    level = [value]
    for _ in range(depth + 1):
        inner = [each for each in level if isinstance(each, list | dict)]
        if not inner:
            return True
        level = [item for each in inner for item in (each.values() if isinstance(each, dict) else each)]
    return False


def shown(value: object) -> str:
    """`value` for a message: one line of plain characters, cut to a readable length."""
    try:
        said = json.dumps(value)
    except (RecursionError, ValueError):  # the latter for whole numbers of thousands of digits
        said = f"a {type(value).__name__}"
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
