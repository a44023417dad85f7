"""The positions of waiting jobs in their queues, from the visibility API of Kueue.

Muster reads only queues in which its jobs wait, and each queue every SECONDS at most. A job gets a pass when its position has changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from muster.kubernetes.errors import ClusterError, RefusedError
from muster.kubernetes.objects import Object
from muster.lifecycle.observed import QueuePosition

SECONDS = 5.0
REFUSED_SECONDS = 300.0
"""Seconds until the next try, if the operator may not read the positions of a queue."""
STALE_SECONDS = 60.0
"""Seconds for which old positions stay valid while a queue cannot be read, so that a short failure does not cost a write per job."""
LONGEST_PAUSE = 60.0

Queue = tuple[str, str]
"""Namespace and name of a LocalQueue."""

log = logging.getLogger("muster.positions")


@dataclass
class _Waiting:
    """A job that waits, and the position that its last pass has seen."""

    queue: Queue
    shown: QueuePosition | None = None
    shown_at: float = 0.0


class Positions:
    """The positions of the jobs whose position was requested with `of`. `run` updates them. Without `run`, all positions are unknown.

    `read` lists the Workloads that wait in a LocalQueue. `enqueue` is called with the key of a job that needs another pass.
    """

    def __init__(
        self,
        read: Callable[[str, str], Awaitable[list[Object]]],
        *,
        enqueue: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._enqueue = enqueue
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        self._positions: dict[Queue, dict[str, QueuePosition]] = {}
        self._read_at: dict[Queue, float] = {}
        self._next: dict[Queue, float] = {}
        self._requested = asyncio.Event()

    def of(self, key: str, queue: str) -> QueuePosition | None:
        """The position of this job (namespace/name), which waits in the queue of its namespace. None if it is not known."""
        namespace, _, name = key.partition("/")
        place = namespace, queue
        if key not in self._waiting or self._waiting[key].queue != place:
            self._waiting[key] = _Waiting(place)
            self._requested.set()
        position = self._positions.get(place, {}).get(name)
        waiting = self._waiting[key]
        waiting.shown, waiting.shown_at = position, self._clock()
        return position

    def forget(self, key: str) -> None:
        """Drops a job that does not wait any more."""
        self._waiting.pop(key, None)

    async def run(self, is_served: Callable[[], bool]) -> None:
        """Reads the queues until it is cancelled, while the cluster serves the API."""
        while True:
            delay = await self.look() if is_served() else self._lost()
            try:
                await asyncio.wait_for(self._requested.wait(), delay)
                await asyncio.sleep(0.1)  # gathers jobs that are submitted together
            except TimeoutError:
                pass
            self._requested.clear()

    async def look(self) -> float:
        """Reads each queue that is due, and gives a pass to the jobs whose positions have changed. Returns the seconds until the next
        look."""
        queues = {each.queue for each in self._waiting.values()}
        self._positions = {queue: positions for queue, positions in self._positions.items() if queue in queues}
        self._read_at = {queue: moment for queue, moment in self._read_at.items() if queue in queues}
        now = self._clock()
        self._next = {queue: due for queue, due in self._next.items() if queue in queues or due > now}
        for queue in sorted(queues):
            if self._clock() >= self._next.get(queue, 0.0):
                await self._look_at(queue)
        self._wake()
        return SECONDS

    async def _look_at(self, queue: Queue) -> None:
        pause = SECONDS
        try:
            self._positions[queue] = positions_in(await self._read(*queue))
            self._read_at[queue] = self._clock()
        except RefusedError as error:
            log.warning("positions in queue %s/%s are not shown: %s", *queue, error)
            self._positions.pop(queue, None)
            pause = REFUSED_SECONDS
        except ClusterError as error:
            log.debug("positions in queue %s/%s cannot be read: %s", *queue, error)
            if self._clock() - self._read_at.get(queue, 0.0) > STALE_SECONDS:
                self._positions.pop(queue, None)
        self._next[queue] = self._clock() + pause

    def _lost(self) -> float:
        self._positions.clear()
        self._wake()
        return SECONDS

    def _wake(self) -> None:
        """A job far from the front gets a pass less often, because the positions of all jobs change whenever a job starts."""
        now = self._clock()
        for key, each in list(self._waiting.items()):
            position = self._positions.get(each.queue, {}).get(key.partition("/")[2])
            pause = 0.0 if each.shown is None or position is None else min(float(position.in_local_queue), LONGEST_PAUSE)
            if position != each.shown and now - each.shown_at >= pause:
                self._enqueue(key)


def positions_in(workloads: Iterable[Object]) -> dict[str, QueuePosition]:
    """The position of each Workload by its name. The API counts from 0."""
    positions: dict[str, QueuePosition] = {}
    for each in workloads:
        try:
            local, cluster = int(each["positionInLocalQueue"]), int(each["positionInClusterQueue"])
            name = str(each["metadata"]["name"])
        except (LookupError, TypeError, ValueError):
            continue
        if min(local, cluster) >= 0:
            positions[name] = QueuePosition(local + 1, cluster + 1)
    return positions
