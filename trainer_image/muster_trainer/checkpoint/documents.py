"""JSON documents in the checkpoint storage. Other programs may have written them, so their size and depth are limited."""

from __future__ import annotations

import json
from typing import Any, NoReturn

_LONGEST_SHOWN = 200


def parse(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`. Raises ValueError if it is not one, or is nested too deeply."""
    try:
        document = json.loads(content, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is not an object")
    return document


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
        text = json.dumps(value)
    except (RecursionError, ValueError):  # Python raises ValueError for integers of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")
