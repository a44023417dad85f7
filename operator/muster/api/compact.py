"""Short texts for many replicas: their indexes as ranges, and the uids of their pods.

A UID of Kubernetes has 36 characters and 16 bytes, which are 22 characters of base64. Nothing makes them shorter, because they are random.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator

RANGES = r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OTHER = "="
"""What a uid begins with that is not written as base64."""


def ranges(indexes: Iterable[int]) -> str:
    """The numbers in their order, such as `0-99,120`."""
    runs: list[list[int]] = []
    last = -2
    for index in indexes:
        if index == last + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
        last = index
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def in_ranges(text: str, *, most: int) -> list[int]:
    """The numbers of such a text. Raises ValueError if it is none, or if it has more than `most` numbers."""
    if not re.fullmatch(RANGES, text):
        raise ValueError("must be ranges of numbers such as 0-99,120")
    limits = list(_limits(text))
    if sum(max(0, last - first + 1) for first, last in limits) > most:
        raise ValueError(f"must have at most {most} numbers")
    return [each for first, last in limits for each in range(first, last + 1)]


def _limits(text: str) -> Iterator[tuple[int, int]]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield int(first), int(last or first)


def short_uid(uid: str) -> str:
    """The uid as base64 if it is a UUID, and empty if it is empty."""
    if _UUID.fullmatch(uid):
        return b2a_base64(bytes.fromhex(uid.replace("-", "")), newline=False)[:22].decode()
    return _OTHER + uid if uid else ""


def whole_uid(text: str) -> str:
    """The uid that was made short. Raises ValueError if the text is no such uid."""
    if text[:1] in ("", _OTHER):
        return text[1:]
    try:
        digits = a2b_base64(text + "==").hex()
    except ValueError:
        digits = ""
    if len(digits) != 32:
        raise ValueError("must be a UUID as 22 characters of base64")
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
