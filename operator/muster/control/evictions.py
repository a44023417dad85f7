"""Evictions that wait for Muster (KEP-4563). An eviction goes on after all ranks have saved and the pod has ended.

`Responder` reports first that Muster works on an eviction, and only then does the job learn of it. So every eviction that stops a job is on
record, and a new leader continues from the Evictions and the pods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.api.constants import ORPHAN_FINALIZER
from muster.api.grace import needed
from muster.api.job import TrainingJob
from muster.control.cluster import Child, Cluster, Object
from muster.control.errors import ClusterError, ConflictError, NotFoundError, RefusedError
from muster.control.store import Store
from muster.lifecycle.observed import EvictionView
from muster.render.evictions import (
    HEARTBEAT_SECONDS,
    Eviction,
    active_eviction,
    identity,
    with_completion,
    with_heartbeat,
)

LOOK_SECONDS = 0.5
"""How often the caches are compared with the evictions that Muster works on."""
RETRY_SECONDS = 5.0
STOP_SECONDS = 300.0
"""Seconds from the first heartbeat in which the pod must begin to end. After that Muster sends no heartbeat, so that the next responder
takes over. An eviction must not wait without limit, for example because the status of the job cannot be written."""
_AT_ONCE = 8

log = logging.getLogger("muster.evictions")

Name = tuple[str, str]
"""Namespace and name of an Eviction."""


class Evictions:
    """The Evictions that Muster must respond to: a cache, which a watch updates."""

    def __init__(self, *, served: bool = False) -> None:
        self.served = served
        """Whether the cluster serves Evictions."""
        self.changed = asyncio.Event()
        self._active: dict[Name, Eviction] = {}
        self._accepted: dict[str, tuple[Name, EvictionView]] = {}

    @property
    def active(self) -> list[Eviction]:
        return list(self._active.values())

    def of(self, pod_uid: str) -> EvictionView | None:
        """The eviction of a pod that Muster works on."""
        accepted = self._accepted.get(pod_uid)
        return accepted[1] if accepted else None

    def update(self, kind: str, obj: Object) -> None:
        """Takes over a change from the watch: ADDED, MODIFIED or DELETED."""
        name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        eviction = None if kind == "DELETED" else active_eviction(obj)
        if eviction is None:
            self.drop(*name)
        else:
            self._active[name] = eviction
            self.changed.set()

    def accept(self, eviction: Eviction, now: datetime) -> bool:
        """Makes the eviction a fact about its pod. Returns whether it is a new one."""
        is_new = eviction.pod_uid not in self._accepted
        self._accepted.setdefault(eviction.pod_uid, ((eviction.namespace, eviction.name), EvictionView(now, eviction.requesters)))
        return is_new

    def drop(self, namespace: str, name: str) -> None:
        """Forgets an eviction that needs no response any more."""
        eviction = self._active.pop((namespace, name), None)
        if eviction is not None and self._accepted.get(eviction.pod_uid, ((), None))[0] == (namespace, name):
            del self._accepted[eviction.pod_uid]


@dataclass
class _Progress:
    """The work on one eviction."""

    due: datetime | None = None
    """When the next heartbeat is due. None stands for now."""
    retry: datetime | None = None
    """No request before this time."""
    key: str = ""
    """The job of the pod: namespace/name."""


class Responder:
    """Answers the Evictions. `job_of` parses a cached job, `enqueue` requests a pass over a job, and `controller` is the manager whose jobs
    it serves."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        evictions: Evictions,
        *,
        job_of: Callable[[Object], TrainingJob],
        enqueue: Callable[[str], None],
        now: Callable[[], datetime],
        controller: str,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._evictions = evictions
        self._job_of = job_of
        self._enqueue = enqueue
        self._now = now
        self._controller = controller
        self._progress: dict[Name, _Progress] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Answers until it is cancelled. Sends no request while there is no eviction."""
        while True:
            await self.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._evictions.changed.wait(), LOOK_SECONDS if self._evictions.active else None)
            self._evictions.changed.clear()

    async def look(self) -> None:
        """Answers each eviction that is due. The jobs get their passes together, because pods of one node are evicted together."""
        active = {(each.namespace, each.name): each for each in self._evictions.active}
        self._progress = {name: self._progress.get(name, _Progress()) for name in active}
        keys = await asyncio.gather(*(self._safely(each, self._progress[name]) for name, each in active.items()))
        for key in dict.fromkeys(filter(None, keys)):
            self._enqueue(key)

    async def _safely(self, eviction: Eviction, progress: _Progress) -> str:
        """Answers one eviction if that is due. Returns the key of a job that needs a pass; empty if none does."""
        now = self._now()
        if progress.retry is not None and now < progress.retry:
            return ""
        try:
            child = self._child(eviction)
            job = self._job(child)
            is_waiting = progress.due is not None and now < progress.due
            if is_waiting and child is not None and not _has_ended(child, job):
                return ""
            async with self._slots:
                return await self._answer(eviction, progress, child=child, job=job)
        except NotFoundError:
            self._evictions.drop(eviction.namespace, eviction.name)
        except ConflictError:
            progress.due = None
        except ClusterError as error:
            log.warning("Eviction %s/%s cannot be answered: %s", eviction.namespace, eviction.name, error)
            progress.retry = self._now() + timedelta(seconds=max(RETRY_SECONDS, error.retry_seconds))
        except Exception:
            log.exception("Eviction %s/%s cannot be answered", eviction.namespace, eviction.name)
            progress.retry = self._now() + timedelta(seconds=HEARTBEAT_SECONDS)
        return ""

    async def _answer(self, eviction: Eviction, progress: _Progress, *, child: Child | None, job: TrainingJob | None) -> str:
        if child is None and not await self._is_gone(eviction):
            progress.retry = self._now() + timedelta(seconds=RETRY_SECONDS)
            return ""
        if job is not None and job.spec.managed_by != self._controller:
            progress.retry = self._now() + timedelta(seconds=HEARTBEAT_SECONDS)
            return ""
        progress.key = child.key if child else progress.key
        obj = await self._cluster.read(identity(eviction.namespace, eviction.name))
        current = active_eviction(obj)
        if current is None or current.pod_uid != eviction.pod_uid:
            self._evictions.drop(eviction.namespace, eviction.name)
            return ""
        if child is None or _has_ended(child, job):
            cached = self._store.job(progress.key)
            ended = _end_sentence(eviction, child, self._job_of(cached) if cached else None)
            await self._cluster.replace_status(with_completion(obj, self._now(), ended))
            log.info("Eviction %s/%s of pod %s is completed: %s", eviction.namespace, eviction.name, eviction.pod_name, ended)
            self._evictions.drop(eviction.namespace, eviction.name)
            return ""
        assert job is not None
        progress.due = self._now() + timedelta(seconds=HEARTBEAT_SECONDS)
        accepted = self._evictions.of(eviction.pod_uid)
        if accepted and child.view.deleting is None and self._now() >= accepted.since + timedelta(seconds=STOP_SECONDS):
            return ""
        updated = with_heartbeat(obj, self._now(), _sentence(child, job), save_seconds=needed(job.status))
        if updated != obj:
            await self._cluster.replace_status(updated)
        return child.key if self._evictions.accept(current, self._now()) else ""

    def _child(self, eviction: Eviction) -> Child | None:
        """The pod of the eviction. Whoever writes an Eviction chooses the uid in it, so the pod must be in the same namespace."""
        child = self._store.child(eviction.pod_uid)
        return child if child and child.key.partition("/")[0] == eviction.namespace else None

    def _job(self, child: Child | None) -> TrainingJob | None:
        """The job that the pod belongs to."""
        obj = self._store.job(child.key) if child else None
        return self._job_of(obj) if child and obj and obj["metadata"]["uid"] == child.owner else None

    async def _is_gone(self, eviction: Eviction) -> bool:
        """Whether the pod, which is not in the cache, does not exist."""
        try:
            found = await self._cluster.read_child(eviction.namespace, eviction.pod_name)
        except NotFoundError:
            return True
        except RefusedError:  # a pod that is no replica has no labels of Muster
            return False
        return found.view.uid != eviction.pod_uid


def _has_ended(child: Child, job: TrainingJob | None) -> bool:
    """Whether Muster has nothing left to do for the eviction of this pod."""
    if job is None or job.status.phase.final or ORPHAN_FINALIZER in job.metadata.finalizers:
        return True
    return child.view.phase.ended and not child.view.lingers


def _sentence(child: Child, job: TrainingJob) -> str:
    """What happens now, for users."""
    steps = f" at step {job.status.progress.step}" if job.status.progress else ""
    view = child.view
    if view.deleting is None:
        return f"TrainingJob {job.metadata.name}: all ranks save{steps} and stop before pod {view.name} is deleted"
    return f"TrainingJob {job.metadata.name}: pod {view.name} saves and ends{steps}; {job.status.message}"


def _end_sentence(eviction: Eviction, child: Child | None, job: TrainingJob | None) -> str:
    end = f"pod {eviction.pod_name} {'is gone' if child is None else 'has nothing left to save'}"
    if job is None:
        return end
    saved = f", the last checkpoint is of step {job.status.checkpoint.step}" if job.status.checkpoint else ""
    return f"TrainingJob {job.metadata.name}: {end}{saved}; {job.status.message}"
