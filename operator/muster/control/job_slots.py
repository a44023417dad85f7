"""Limits how many jobs of a namespace run at once."""

from __future__ import annotations

from collections.abc import Callable

from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.status import FINAL_PHASES
from muster.control.job_store import Store


class JobSlots:
    """At most `most` jobs of a namespace have started and not ended. The others wait. 0 is no limit.

    A job keeps its slot while it is suspended, because otherwise a namespace could exceed the limit when it resumes its jobs. `enqueue` is
    called with the key of a waiting job when a slot may be free. A restart of the operator loses nothing, because the statuses show which
    jobs hold slots.
    """

    def __init__(self, most: int, store: Store, enqueue: Callable[[str], None]) -> None:
        self._most = most
        self._store = store
        self._enqueue = enqueue
        self._holders: dict[str, set[str]] | None = None
        self._waiting: dict[str, dict[str, None]] = {}

    def take(self, job: TrainingJob) -> list[Problem]:
        """Takes a slot for a job, unless it has one. Returns a problem if no slot is free."""
        if not self._most:
            return []
        namespace = job.metadata.namespace
        holders = self._all_holders().setdefault(namespace, set())
        waiting = self._waiting.setdefault(namespace, {})
        if job.key in holders or job.status.admitted_time is not None or len(holders) < self._most:
            holders.add(job.key)
            waiting.pop(job.key, None)
            self._wake(namespace)
            return []
        waiting[job.key] = None
        message = f"has {len(holders)} jobs that have not ended, and this installation allows {self._most}: the job starts when one ends"
        return [Problem("metadata.namespace", message)]

    def release(self, key: str) -> None:
        """Releases the slot of a job that has ended, is gone or is invalid."""
        if not self._most:
            return
        namespace = key.partition("/")[0]
        self._all_holders().get(namespace, set()).discard(key)
        self._waiting.get(namespace, {}).pop(key, None)
        self._wake(namespace)

    def _wake(self, namespace: str) -> None:
        """Wakes one waiting job. A job that takes a slot wakes the next one."""
        waiting = self._waiting.get(namespace)
        if waiting and len(self._all_holders().get(namespace, ())) < self._most:
            self._enqueue(next(iter(waiting)))

    def _all_holders(self) -> dict[str, set[str]]:
        """The keys of the jobs that hold slots, by namespace. The first call, which follows the first list, reads them from the
        statuses."""
        if self._holders is None:
            self._holders = {}
            for key in self._store.keys:
                status = (self._store.job(key) or {}).get("status") or {}
                if status.get("admittedTime") and status.get("phase") not in FINAL_PHASES:
                    self._holders.setdefault(key.partition("/")[0], set()).add(key)
        return self._holders
