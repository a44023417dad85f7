"""Parts of plain data whose types nobody has checked. A part of another type counts as empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def mappings(value: Any) -> list[tuple[int, Mapping[str, Any]]]:
    """The mappings in a list, each with its index."""
    return [(index, item) for index, item in enumerate(items(value)) if isinstance(item, Mapping)]
