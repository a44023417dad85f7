"""Text that is made harmless for terminals and logs."""

from __future__ import annotations

import pytest

from muster_contract.text import printable


@pytest.mark.parametrize(
    ("given", "keep", "most", "result"),
    [
        ("plain", "", None, "plain"),
        ("a\tb\x1b\n", "\t", None, "a\tb\\x1b\\n"),
        ("plain", "", 3, "pla"),
        ("\x1b[2J and more", "", 6, r"\x1b[2"),
        ("ab\ncd", "\n", 4, "ab\nc"),
    ],
)
def test_escaped_text_is_no_longer_than_allowed(given: str, keep: str, most: int | None, result: str) -> None:
    assert printable(given, keep=keep, most=most) == result


def test_no_more_characters_are_escaped_than_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    escaped = []

    def counted(character: str) -> str:
        escaped.append(character)
        return ascii(character)

    monkeypatch.setattr("muster_contract.text.ascii", counted, raising=False)
    assert printable("\x1b" * 100_000, most=10) == r"\x1b\x1b\x"
    assert len(escaped) == 10
