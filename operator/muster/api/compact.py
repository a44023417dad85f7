"""Short texts for many replicas: their indexes as ranges, and the uids of their pods.

A UID of Kubernetes has 36 characters and 16 bytes, which are 22 characters of base64. Nothing makes them shorter, because they are random.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from itertools import groupby

RANGES = r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OTHER = "="
"""What a uid begins with that is not written as base64."""


def ranges(indexes: Iterable[int]) -> str:
    """The numbers in their order, such as `0-99,120`."""
    runs = [[each for _, each in run] for _, run in groupby(enumerate(indexes), lambda each: each[1] - each[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


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
        return base64.urlsafe_b64encode(bytes.fromhex(uid.replace("-", ""))).decode().rstrip("=")
    return _OTHER + uid if uid else ""


def whole_uid(text: str) -> str:
    """The uid that was made short. Raises ValueError if the text is no such uid."""
    if not text or text.startswith(_OTHER):
        return text.removeprefix(_OTHER)
    try:
        digits = base64.urlsafe_b64decode(text + "==").hex()
    except ValueError:
        digits = ""
    if len(digits) != 32:
        raise ValueError("must be a UUID as 22 characters of base64")
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
