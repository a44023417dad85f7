"""The resync, which lists all objects again."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

from muster.kubernetes import resync
from muster.kubernetes.errors import UnavailableError


def test_a_refused_list_is_retried_after_the_time_in_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "RETRY_SECONDS", 0.01)
    lists: list[float] = []

    async def correct() -> None:
        lists.append(time.monotonic())
        if len(lists) == 1:
            error = UnavailableError("429: too many requests")
            error.retry_seconds = 0.2
            raise error

    rounds = resync.Resync(correct, now=lambda: datetime.now(UTC), seconds=60.0)
    asyncio.run(asyncio.wait_for(rounds.until_listed(), 10))
    first, second = lists
    assert second - first >= 0.2
    assert rounds.last is not None
