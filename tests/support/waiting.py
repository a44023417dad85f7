"""Waiting for a condition with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
DEADLINE = 120.0


def wait_until(condition: Callable[[], Result | None], what: str, seconds: float = DEADLINE, *, pause: float = 0.02) -> Result:
    """Returns the first true result of `condition`. Raises AssertionError, which names `what` and the last result, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; the last result was {result!r}"
        time.sleep(pause)
    return result
