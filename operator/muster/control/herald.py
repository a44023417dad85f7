"""Tells users what happened, as Kubernetes Events: one after the other, beside the passes over jobs and after those that are due, so that
no pod waits for one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from muster.control.cluster import Object
from muster.control.errors import AlreadyExistsError, ClusterError

MOST_WAITING = 10_000
PATIENCE = 5.0
"""Seconds that an Event waits at most for a moment in which nothing is to be done. An API server takes as long for one as for a pod."""

log = logging.getLogger("muster.herald")


class Herald:
    """Makes Events by `create`, in the order in which they come. What cannot be made is logged: no job depends on it.

    `calm` waits for such a moment, for so many seconds at most.
    """

    def __init__(self, create: Callable[[Object], Awaitable[Object]], *, calm: Callable[[float], Awaitable[None]]) -> None:
        self._create = create
        self._calm = calm
        self._waiting: asyncio.Queue[tuple[float, Object]] = asyncio.Queue(MOST_WAITING)

    def tell(self, event: Object) -> None:
        """To be told soon."""
        try:
            self._waiting.put_nowait((time.monotonic(), event))
        except asyncio.QueueFull:
            log.warning("an Event is left out, since %d wait: %s", MOST_WAITING, event["message"])

    async def run(self) -> None:
        """Without end."""
        while True:
            since, event = await self._waiting.get()
            await self._calm(since + PATIENCE - time.monotonic())
            try:
                await self._create(event)
            except AlreadyExistsError:
                log.debug("told before: %s", event["message"])
            except ClusterError as error:
                log.warning("an Event could not be made: %s", error)
            finally:
                self._waiting.task_done()

    async def finish(self, seconds: float) -> None:
        """Waits until all is told, but not longer."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._waiting.join(), seconds)
