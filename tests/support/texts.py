"""Assertions on the facts in a message, which leave its wording free. `tests/unit/test_sentences.py` guards the wording."""

from __future__ import annotations


def absent(text: str, *facts: str) -> list[str]:
    """The facts, such as the name of a field, that the text does not have."""
    return [fact for fact in facts if fact not in text]
