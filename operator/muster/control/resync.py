"""The safety net below the watches: every few minutes everything is listed anew, and every job is looked at.

kopf's re-list after a broken watch never says DELETED, so that what vanished meanwhile would stay in the caches as a ghost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from muster.control.cluster import Cluster
from muster.control.errors import ClusterError
from muster.control.queue import WorkQueue
from muster.control.reports import Reports
from muster.control.store import Store

RETRY_SECONDS = 2.0

log = logging.getLogger("muster.resync")


class Resync:
    """Lists, corrects the caches, and queues every job. `seconds` lie between two rounds."""

    def __init__(
        self, cluster: Cluster, store: Store, *, queue: WorkQueue, reports: Reports, now: Callable[[], datetime], seconds: float
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._reports = reports
        self._now = now
        self._seconds = seconds
        self.last: datetime | None = None

    async def once(self) -> None:
        """One round. Raises ClusterError where the API server does not answer; the caches stay as they are."""
        before = self._store.uids
        listing = await self._cluster.list_all()
        self._store.replace(listing, before=before)
        self._reports.keep_only(self._store.uids)
        self.last = self._now()
        for key in self._store.keys:
            self._queue.add(key)

    async def until_listed(self) -> None:
        """The first round, tried again until it is done: before it nothing is known."""
        while True:
            try:
                return await self.once()
            except ClusterError as error:
                log.warning("jobs and pods cannot be listed: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def run(self) -> None:
        """Rounds without end."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.until_listed()
