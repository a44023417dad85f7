"""The safety net below the watches. Every few minutes, lists all objects again, and gives every key a pass.

A watch that starts over receives every object that exists. It does not receive those that were deleted meanwhile, so they would stay in the
caches. Therefore a round runs at once after such a start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

from muster.kubernetes.errors import ClusterError

RETRY_SECONDS = 2.0

log = logging.getLogger("muster.resync")


class Resync:
    """Calls `correct`, which lists all objects, corrects the caches and queues every key. Rounds are `seconds` apart. `correct` raises
    ClusterError if the API server does not answer."""

    def __init__(self, correct: Callable[[], Awaitable[None]], *, now: Callable[[], datetime], seconds: float) -> None:
        self._correct = correct
        self._now = now
        self._seconds = seconds
        self._requested = asyncio.Event()
        self.last: datetime | None = None
        """When the last complete list was taken over."""

    async def once(self) -> None:
        """Runs one round. Raises ClusterError if the API server does not answer."""
        await self._correct()
        self.last = self._now()

    async def until_listed(self) -> None:
        """Runs one round, and retries until it succeeds. The caches are empty before the first round. No error ends it."""
        while True:
            pause = RETRY_SECONDS
            try:
                return await self.once()
            except ClusterError as error:
                pause = max(pause, error.retry_seconds)
                log.warning("the objects cannot be listed: %s", error)
            except Exception:
                log.exception("the objects cannot be listed")
            await asyncio.sleep(pause)

    def soon(self) -> None:
        """Starts the next round now. A round that is under way may have listed too early."""
        self._requested.set()

    async def run(self) -> None:
        """Runs rounds until it is cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requested.wait(), self._seconds)
            self._requested.clear()
            await self.until_listed()
            await asyncio.sleep(RETRY_SECONDS)  # a watch that keeps starting over must not cause one list after the other
