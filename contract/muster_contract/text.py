"""Makes text from processes, pods and files harmless for terminals and logs."""

from __future__ import annotations

import io
import sys
from contextlib import suppress


def printable(text: str, *, keep: str = "", most: int | None = None) -> str:
    r"""The text with each character that does not print written as an escape such as `\x1b` or `\n`.

    `keep` names characters that stay as they are. The result has at most `most` characters, and no more of the text than that is read.
    """
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else ascii(each)[1:-1] for each in text)[:most]


def text_of(error: BaseException) -> str:
    """The text of an exception in one line. Empty if it has none, and also if its own `__str__` fails."""
    with suppress(Exception):
        return " ".join(str(error).split())
    return ""


def escape_on_output() -> None:
    """Makes standard output write characters that its encoding lacks as escapes, as standard error does. By default they raise an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
