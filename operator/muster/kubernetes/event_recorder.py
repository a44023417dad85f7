"""Sends Kubernetes Events to the API server in the background, one at a time. Passes over due jobs go first, so no pod waits for an
Event."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from muster.kubernetes.backoff import Delays
from muster.kubernetes.errors import AlreadyExistsError, ClusterError, UnavailableError
from muster.kubernetes.objects import Object

MOST_WAITING = 10_000
MOST_WAITING_OF_ONE = MOST_WAITING // 2
"""Events of one namespace that wait at most. Notices of pods become Events, and must not displace those of all other namespaces."""
LONGEST_WAIT = 5.0
"""Seconds that an Event waits at most for an idle moment. The API server takes as long to create an Event as to create a pod."""

TRIES = 12
"""How often an Event is sent to an API server that does not answer, as client-go does. The later Events wait meanwhile."""
DELAYS = Delays(first=0.5, longest=10.0)

log = logging.getLogger("muster.events")


class EventRecorder:
    """Creates Events with `create`, in the order in which they arrive. An Event that the API server refuses is only logged, because no job
    depends on it.

    `calm` waits until the operator is idle, for at most the given number of seconds. `sleep` waits between two tries.
    """

    def __init__(
        self,
        create: Callable[[Object], Awaitable[Object]],
        *,
        calm: Callable[[float], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._create = create
        self._calm = calm
        self._sleep = sleep
        self._waiting: asyncio.Queue[tuple[float, Object]] = asyncio.Queue(MOST_WAITING)
        self._counts: Counter[str] = Counter()
        """How many Events of each namespace wait."""

    def publish(self, event: Object) -> None:
        """Queues the manifest of an Event. Never waits: drops the Event if too many wait already."""
        namespace = event["metadata"]["namespace"]
        if self._waiting.full() or self._counts[namespace] >= MOST_WAITING_OF_ONE:
            log.warning("an Event of namespace %s is dropped because too many already wait: %s", namespace, event["message"])
            return
        self._counts[namespace] += 1
        self._waiting.put_nowait((time.monotonic(), event))

    async def run(self) -> None:
        """Sends Events until it is cancelled."""
        while True:
            since, event = await self._waiting.get()
            self._counts -= Counter([event["metadata"]["namespace"]])
            await self._calm(since + LONGEST_WAIT - time.monotonic())
            try:
                await self._send(event)
            finally:
                self._waiting.task_done()

    async def _send(self, event: Object) -> None:
        for failures in range(1, TRIES + 1):
            try:
                await self._create(event)
            except AlreadyExistsError:
                log.debug("this Event exists already: %s", event["message"])
            except UnavailableError as error:
                if failures < TRIES:
                    await self._sleep(max(error.retry_seconds, DELAYS.after(failures)))
                    continue
                log.warning("an Event could not be created in %d tries: %s", TRIES, error)
            except ClusterError as error:
                log.warning("an Event could not be created: %s", error)
            return

    async def finish(self, seconds: float) -> None:
        """Waits until all Events are sent, for at most so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._waiting.join(), seconds)
