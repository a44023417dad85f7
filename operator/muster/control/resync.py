"""The safety net below the watches: every few minutes everything is listed anew, and every job is looked at.

A watch that has to begin anew tells what is there and never what is not, so that what vanished meanwhile would stay in the caches as a
ghost: then it is done at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from muster.control.cluster import Cluster, Object
from muster.control.errors import ClusterError
from muster.control.events import event_of_unreadable
from muster.control.queue import WorkQueue
from muster.control.store import Store

RETRY_SECONDS = 2.0

log = logging.getLogger("muster.resync")


class Resync:
    """Lists, corrects the caches, and queues every job. `seconds` lie between two rounds. `tell` gets an Event on each object that cannot
    be read."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        *,
        queue: WorkQueue,
        now: Callable[[], datetime],
        seconds: float,
        tell: Callable[[Object], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._now = now
        self._seconds = seconds
        self._tell = tell
        self._wanted = asyncio.Event()
        self.last: datetime | None = None

    async def once(self) -> None:
        """One round. Raises ClusterError where the API server does not answer; the caches stay as they are."""
        before = self._store.uids
        listing = await self._cluster.list_all()
        for each in set(listing.unreadable) - set(self._store.unreadable):
            log.error("%s %s/%s cannot be read and is passed over: %s", each.kind, each.namespace, each.name, each.reason)
            self._tell(event_of_unreadable(each, self._now()))
        self._store.replace(listing, before=before)
        self.last = self._now()
        for key in self._store.keys:
            self._queue.add(key)

    async def until_listed(self) -> None:
        """The first round, tried again until it is done: before it nothing is known. No error ends it."""
        while True:
            try:
                return await self.once()
            except ClusterError as error:
                log.warning("jobs and pods cannot be listed: %s", error)
            except Exception:
                log.exception("jobs and pods cannot be listed")
            await asyncio.sleep(RETRY_SECONDS)

    def soon(self) -> None:
        """The next round begins now; one that is under way may have seen too little."""
        self._wanted.set()

    async def run(self) -> None:
        """Rounds without end."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._seconds)
            self._wanted.clear()
            await self.until_listed()
            await asyncio.sleep(RETRY_SECONDS)  # a watch that keeps losing its place must not list all the time
