"""The safety net below the watches. Every few minutes, lists all objects again, and gives every job a pass.

A watch that starts over receives every object that exists. It does not receive those that were deleted meanwhile, so they would stay in the
caches. Therefore a round runs at once after such a start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from muster.control.cluster import Cluster, Object
from muster.control.events import event_of_unreadable
from muster.control.store import Store
from muster.kubernetes.errors import ClusterError
from muster.kubernetes.queue import WorkQueue

RETRY_SECONDS = 2.0

log = logging.getLogger("muster.resync")


class Resync:
    """Lists all objects, corrects the caches, and queues every job. Rounds are `seconds` apart. `publish` gets the manifest of an Event for
    each object that cannot be read."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        *,
        queue: WorkQueue,
        now: Callable[[], datetime],
        seconds: float,
        publish: Callable[[Object], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._now = now
        self._seconds = seconds
        self._publish = publish
        self._requested = asyncio.Event()
        self.last: datetime | None = None

    async def once(self) -> None:
        """Runs one round. Raises ClusterError if the API server does not answer; the caches then stay unchanged."""
        before = self._store.uids
        listing = await self._cluster.list_all()
        for each in set(listing.unreadable) - set(self._store.unreadable):
            log.error("%s %s/%s cannot be read and is ignored: %s", each.kind, each.namespace, each.name, each.reason)
            self._publish(event_of_unreadable(each, self._now()))
        self._store.replace(listing, cached_before=before)
        self.last = self._now()
        for key in self._store.keys_by_need:
            self._queue.add(key)

    async def until_listed(self) -> None:
        """Runs one round, and retries until it succeeds. The caches are empty before the first round. No error ends it."""
        while True:
            pause = RETRY_SECONDS
            try:
                return await self.once()
            except ClusterError as error:
                pause = max(pause, error.retry_seconds)
                log.warning("jobs and pods cannot be listed: %s", error)
            except Exception:
                log.exception("jobs and pods cannot be listed")
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
