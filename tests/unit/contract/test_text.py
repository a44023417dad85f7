"""Text that is made harmless for terminals and logs."""

from __future__ import annotations

import io
import sys

import pytest

from muster_contract.text import escape_on_output, printable


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


def test_a_character_that_the_terminal_lacks_is_printed_as_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="iso8859-1"))
    escape_on_output()
    print("f\u00fcr \u5b66 \U0001f680", flush=True)
    assert written.getvalue() == b"f\xfcr \\u5b66 \\U0001f680\n"
