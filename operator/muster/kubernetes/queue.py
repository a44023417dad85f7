"""The work queue: which jobs need a pass, and when.

The contract is that of client-go's workqueue:

- A key that is added several times before its pass gets one pass.
- At most one worker works on a key. A key that is added during its pass gets another pass.
- A key whose pass fails comes back with a growing delay, and does not block other keys. The delay is at least the Retry-After
  of the API server.

Two rules go beyond that contract. First, namespaces take turns (`fairness.Line`), and no namespace has more than half of the workers, so
that a tenant with many large jobs does not block others. Second, changed keys for which `urgent` returns true go first. A key that is due
because of time yields to changed keys. It waits at most ten times its delay, and at most LONGEST_SLACK.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from muster.kubernetes.backoff import Delays
from muster.kubernetes.errors import ClusterError, ConflictError, NotFoundError
from muster.kubernetes.fairness import Line

RETRIES = Delays(first=0.1, longest=30.0)
LONGEST_SLACK = 5.0
"""Seconds for which a key that is due because of time yields at most to changed keys."""

Work = Callable[[str], Awaitable[float | None]]
"""Works on a key. Returns the seconds until the key is due again without a change, or None. The key is retried if it raises."""


log = logging.getLogger("muster.reconciler")


class Observer(Protocol):
    """Measures the work of a queue."""

    def waited(self, seconds: float) -> None:
        """A worker took a key that had waited for so many seconds."""

    def worked(self, seconds: float) -> None:
        """The work on a key succeeded after so many seconds."""

    def failed(self, key: str, error: Exception, delay: float) -> None:
        """The work on a key failed. It is retried after `delay` seconds."""


class WorkQueue:
    """Keys (namespace/name) in the order in which they are due, each at most once. `delays` applies to keys whose work failed."""

    def __init__(self, observer: Observer, *, workers: int, delays: Delays = RETRIES) -> None:
        self._observer = observer
        self._count = workers
        self._delays = delays
        self._line = Line(max(1, workers // 2))
        self._since: dict[str, float] = {}
        """When each key in the line became due."""
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that wait for a key."""
        self._active: dict[str, float] = {}
        self._dirty: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._urgent: Callable[[str], bool] = lambda _: False
        self._open = False
        self._is_drained = False
        self._calm = asyncio.Event()
        self._calm.set()

    @property
    def depth(self) -> int:
        """How many keys are due and wait for a worker."""
        return len(self._since)

    @property
    def failing(self) -> int:
        """How many keys failed the last time."""
        return len(self._failures)

    async def calm(self, seconds: float) -> None:
        """Waits until no key is due and no worker is busy, for at most so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._calm.wait(), seconds)

    def longest_work(self) -> float:
        """Seconds since the start of the oldest pass that is under way."""
        return max((self._time() - start for start in self._active.values()), default=0.0)

    def add(self, key: str) -> None:
        """Makes the key due now."""
        self._put(key, slack=0.0)

    def _put(self, key: str, *, slack: float) -> None:
        if not self._open:
            return
        if key in self._active:
            self._dirty.add(key)
            return
        self._cancel_timer(key)
        self._calm.clear()
        since = self._since.setdefault(key, self._time())
        self._line.put(key, since + slack, urgent=slack == 0 and self._urgent(key))
        self._wake_one()

    def add_after(self, key: str, seconds: float, *, happened: bool = False) -> None:
        """Makes the key due in so many seconds. If it was added before, the earliest time counts. `happened` means that a change is the
        reason, and that the delay only gathers further changes. Such a key does not yield to others."""
        if seconds <= 0:
            self.add(key)
            return
        if not self._open or (key in self._since and not happened):
            return
        due = self._time() + seconds
        timer = self._timers.get(key)
        if timer is None or timer.when() > due:
            self._cancel_timer(key)
            slack = 0.0 if happened else min(LONGEST_SLACK, 10 * seconds)
            self._timers[key] = asyncio.get_running_loop().call_at(due, self._due, key, slack)

    def retry_now(self) -> None:
        """Makes every failed key due now, because the cause may be gone."""
        for key in list(self._failures):
            self.add(key)

    def open(self, urgent: Callable[[str], bool] = lambda _: False) -> None:
        """Accepts keys from now on, unless `drain` was called. Drops keys that were added before, because an operator adds every job when
        it becomes the leader."""
        self._urgent = urgent
        self._open = not self._is_drained

    def start(self, work: Work) -> None:
        """Starts the workers, which call `work` with each key."""
        self._workers = [asyncio.create_task(self._run(work), name=f"worker {number}") for number in range(self._count)]

    async def drain(self, seconds: float) -> None:
        """Accepts no more keys, waits for the passes under way, and cancels those that have not ended after so many seconds."""
        self._open, self._is_drained = False, True
        self._calm.set()
        for key in list(self._timers):
            self._cancel_timer(key)
        while self._idle:
            self._wake_one()  # they notice that the queue is closed
        if not self._workers:
            return
        _, late = await asyncio.wait(self._workers, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _run(self, work: Work) -> None:
        while self._open:
            key = self._line.take(self._time())
            if key is None:
                await self._woken()
                continue
            now = self._time()
            self._observer.waited(now - self._since.pop(key))
            self._active[key] = now
            self._cancel_timer(key)  # the pass that begins now covers the timer's reason
            await self._work_on(key, work)

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

    async def _work_on(self, key: str, work: Work) -> None:
        failed = False
        later: float | None = None
        try:
            later = await work(key)
        except Exception as error:  # noqa: BLE001 - an error in one job's pass must not affect other jobs
            failed = True
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            later = max(self._delays.after(failures), error.retry_seconds if isinstance(error, ClusterError) else 0.0)
            self._observer.failed(key, error, later)
            _log_failure(key, error, later)
        else:
            self._failures.pop(key, None)
            self._observer.worked(self._time() - self._active[key])
        finally:
            del self._active[key]
            self._line.done(key)
        is_dirty = key in self._dirty
        self._dirty.discard(key)
        if is_dirty and not failed:
            self.add(key)
        elif later is not None:
            self.add_after(key, later)
        if not self._since and not self._active:
            self._calm.set()

    def _due(self, key: str, slack: float) -> None:
        self._timers.pop(key, None)
        self._put(key, slack=slack)

    def _cancel_timer(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _time(self) -> float:
        return asyncio.get_running_loop().time()


def _log_failure(key: str, error: Exception, delay: float) -> None:
    if isinstance(error, ConflictError | NotFoundError):  # the job has changed since it was read, or it is gone
        log.debug("%s: %s", key, error)
    elif isinstance(error, ClusterError):
        log.warning("%s: retry in %.1f s: %s", key, delay, error)
    else:
        log.error("%s: retry in %.1f s", key, delay, exc_info=error)
