"""The resync, which lists all objects again."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from muster.control import resync
from muster.control.cluster import Listing
from muster.control.errors import UnavailableError
from muster.control.store import Store


class Cluster:
    """Refuses the first list with Retry-After, and answers the second one."""

    def __init__(self) -> None:
        self.lists: list[float] = []

    async def list_all(self) -> Listing:
        self.lists.append(time.monotonic())
        if len(self.lists) == 1:
            error = UnavailableError("429: too many requests")
            error.retry_seconds = 0.2
            raise error
        return Listing((), (), (), None, ())


def test_a_refused_list_is_retried_after_the_time_in_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "RETRY_SECONDS", 0.01)
    cluster: Any = Cluster()
    queue: Any = SimpleNamespace(add=lambda key: None)
    rounds = resync.Resync(cluster, Store(time.monotonic), queue=queue, now=lambda: datetime.now(UTC), seconds=60.0)
    asyncio.run(asyncio.wait_for(rounds.until_listed(), 10))
    first, second = cluster.lists
    assert second - first >= 0.2
