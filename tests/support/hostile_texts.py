"""Long texts that make a regular expression slow if its time grows faster than the text: repetitions of what the expression looks for."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_CATEGORIES = {"CATEGORY_DIGIT": "1", "CATEGORY_WORD": "a", "CATEGORY_NOT_SPACE": "a", "CATEGORY_NOT_DIGIT": "a"}


def hostile_texts(pattern: re.Pattern[str], size: int, rng: random.Random) -> Iterator[str]:
    """Texts of `size` characters: repetitions of parts of texts that match."""
    pieces: dict[str, None] = {}
    for _ in range(3):
        text = _sample(_parser.parse(pattern.pattern, pattern.flags), rng)
        for end in range(1, len(text) + 1):
            for begin in (0, max(0, end - 1), max(0, end - 3), end // 2):
                pieces[text[begin:end]] = None
    for piece in [*pieces][:100]:
        yield (piece * (size // len(piece) + 1))[:size]


def _sample(tree: Any, rng: random.Random) -> str:
    """A text that about matches: each repetition as short as possible, and a random branch."""
    return "".join(_part(str(kind), value, rng) for kind, value in tree)


def _part(kind: str, value: Any, rng: random.Random) -> str:
    if kind == "LITERAL":
        return chr(value)
    if kind in ("ANY", "NOT_LITERAL"):
        return "a"
    if kind == "IN":
        return _member(value, rng)
    if kind.endswith("_REPEAT"):
        least, _, inner = value
        return _sample(inner, rng) * max(1, int(least))
    if kind in ("SUBPATTERN", "ATOMIC_GROUP"):
        return _sample(value[3] if kind == "SUBPATTERN" else value, rng)
    return _sample(rng.choice(value[1]), rng) if kind == "BRANCH" else ""


def _member(members: Any, rng: random.Random) -> str:
    kind, value = rng.choice(members)
    if str(members[0][0]) == "NEGATE":
        return "a"
    if str(kind) == "LITERAL":
        return chr(value)
    return chr(value[0]) if str(kind) == "RANGE" else _CATEGORIES.get(str(value), " ")
