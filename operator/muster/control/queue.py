"""The work queue: which jobs are to be looked at, and when.

The contract is that of client-go's workqueue, for the same reasons: a key that is added many times is worked on once; a key is worked on by
one worker at a time, and one that is added meanwhile comes again; a key whose work fails comes back later and later, and holds up no other.

Beyond that contract, namespaces take turns (`fairness.Line`), and no namespace has more than half of the workers: a tenant with many large
jobs does not hold up another's small one. Keys to which something happened, and which `urgent` says yes to, go first. A key that is due
because time has passed (the count of running replicas, say, which is gathered for a while) yields to those to which something happened. It
waits ten times as long as its delay, and at most PATIENCE.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from muster.control.fairness import Line

FIRST_DELAY = 0.1
LONGEST_DELAY = 30.0
PATIENCE = 5.0

Work = Callable[[str], Awaitable[float | None]]
"""Works on a key. Returns after how many seconds to come back though nothing happens; raises to be tried again later."""


class Watcher(Protocol):
    """Who wants to know what the queue does."""

    def waited(self, seconds: float) -> None:
        """A key was taken up after so long in the queue."""

    def worked(self, seconds: float) -> None:
        """A key's work ended well."""

    def failed(self, key: str, error: Exception, delay: float) -> None:
        """A key's work failed and will be tried again after `delay` seconds."""


@dataclass(frozen=True)
class Delays:
    """Seconds before a failed key comes back: `first`, doubled with every failure in a row, at most `longest`."""

    first: float = FIRST_DELAY
    longest: float = LONGEST_DELAY

    def after(self, failures: int) -> float:
        return min(self.first * 2.0 ** min(failures - 1, 60), self.longest)


class WorkQueue:
    """Keys (namespace/name) in the order in which they are due, each at most once, for so many `workers`. `delays` is for keys whose work
    failed."""

    def __init__(
        self, work: Work, watcher: Watcher, *, workers: int, urgent: Callable[[str], bool] = lambda _: False, delays: Delays = Delays()
    ) -> None:
        self._work = work
        self._watcher = watcher
        self._count = workers
        self._urgent = urgent
        self._delays = delays
        self._line = Line(max(1, workers // 2))
        self._since: dict[str, float] = {}
        """When each key in the line became due."""
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that wait for a key."""
        self._active: dict[str, float] = {}
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._closing = False
        self.paused = False
        """Whether keys that are added are dropped. A standby's are: it looks at every job when it begins to lead."""
        self._calm = asyncio.Event()
        self._calm.set()

    @property
    def depth(self) -> int:
        """Keys that are due and not taken up."""
        return len(self._since)

    @property
    def failing(self) -> int:
        """Keys whose last work failed."""
        return len(self._failures)

    async def calm(self, seconds: float) -> None:
        """Waits until nothing is due and nothing under way, but not longer."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._calm.wait(), seconds)

    def longest_work(self) -> float:
        """Seconds that the oldest work now under way has taken."""
        return max((self._time() - start for start in self._active.values()), default=0.0)

    def add(self, key: str) -> None:
        """The key is due now."""
        self._put(key, patience=0.0)

    def _put(self, key: str, *, patience: float) -> None:
        if self._closing or self.paused:
            return
        if key in self._active:
            self._again.add(key)
            return
        self._cancel_timer(key)
        self._calm.clear()
        since = self._since.setdefault(key, self._time())
        self._line.put(key, since + patience, urgent=patience == 0 and self._urgent(key))
        self._wake_one()

    def add_after(self, key: str, seconds: float, *, happened: bool = False) -> None:
        """The key is due in so many seconds, if not sooner: of several times the earliest counts. `happened`: because something happened,
        for which others were waited for; it yields to nobody."""
        if seconds <= 0:
            self.add(key)
            return
        if self._closing or self.paused or (key in self._since and not happened):
            return
        due = self._time() + seconds
        timer = self._timers.get(key)
        if timer is None or timer.when() > due:
            self._cancel_timer(key)
            self._timers[key] = asyncio.get_running_loop().call_at(due, self._due, key, 0.0 if happened else min(PATIENCE, 10 * seconds))

    def retry_now(self) -> None:
        """Every key that failed is due now: what they failed of may be over."""
        for key in list(self._failures):
            self.add(key)

    def start(self) -> None:
        """Starts the workers; nothing is worked on before."""
        self._workers = [asyncio.create_task(self._run(), name=f"worker {number}") for number in range(self._count)]

    async def drain(self, seconds: float) -> None:
        """Takes up nothing more, lets what is under way end, and cancels what has not ended after so long."""
        self._closing = True
        self._calm.set()
        for key in list(self._timers):
            self._cancel_timer(key)
        while self._idle:
            self._wake_one()  # they see that all is over
        if not self._workers:
            return
        _, late = await asyncio.wait(self._workers, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _run(self) -> None:
        while not self._closing:
            key = self._line.take(self._time())
            if key is None:
                await self._woken()
                continue
            now = self._time()
            self._watcher.waited(now - self._since.pop(key))
            self._active[key] = now
            self._cancel_timer(key)  # what it was set for is seen by the work that begins now
            await self._work_on(key)

    async def _woken(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter

    def _wake_one(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _work_on(self, key: str) -> None:
        failed = False
        later: float | None = None
        try:
            later = await self._work(key)
        except Exception as error:  # noqa: BLE001 - whatever one job's work raises, no other job may suffer
            failed = True
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            later = self._delays.after(failures)
            self._watcher.failed(key, error, later)
        else:
            self._failures.pop(key, None)
            self._watcher.worked(self._time() - self._active[key])
        finally:
            del self._active[key]
            self._line.done(key)
        again = key in self._again
        self._again.discard(key)
        if again and not failed:
            self.add(key)
        elif later is not None:
            self.add_after(key, later)
        if not self._since and not self._active:
            self._calm.set()

    def _due(self, key: str, patience: float) -> None:
        self._timers.pop(key, None)
        self._put(key, patience=patience)

    def _cancel_timer(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _time(self) -> float:
        return asyncio.get_running_loop().time()
