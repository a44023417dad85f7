"""Puts the changes that watches receive into the caches, and the jobs that they concern into the queue. Nothing here blocks."""

from __future__ import annotations

from typing import Any

from muster.api.constants import JOB_NAME_LABEL
from muster.channel.pacing import gather_seconds
from muster.control.cluster import Child
from muster.control.job_store import Store
from muster.control.reconciler import CALM_SECONDS, STARTING_SECONDS
from muster.kubernetes.objects import key_of, owner_of, version_of
from muster.kubernetes.queue import WorkQueue
from muster.lifecycle.observed import ReplicaPhase
from muster.operator.views import child_of

LOSS_SECONDS = 0.1
"""Seconds that the loss of a pod waits for others, because pods that are lost together are one failure."""


class CacheUpdates:
    """One method per kind of object. `kind` is the type of the change: ADDED, MODIFIED or DELETED."""

    def __init__(self, store: Store, queue: WorkQueue) -> None:
        self._store = store
        self._queue = queue

    def job(self, kind: str, job: dict[str, Any]) -> None:
        self._store.echoes.received(job["metadata"]["uid"], version_of(job))
        cached = self._store.job(key_of(job))
        if kind == "DELETED":
            self._store.drop_job(job)
        else:
            self._store.put_job(job)
        if cached is None or kind == "DELETED" or version_of(job) > version_of(cached):
            self._queue.add(key_of(job))  # an echo of the operator's own write, whose answer is cached, needs no pass

    def pod(self, kind: str, pod: dict[str, Any]) -> None:
        child = child_of(pod)
        if child is None:
            return
        self._store.echoes.received(child.view.uid, child.version)
        before = self._store.key_of_pod(child.view.uid)
        if before is not None and before != child.key:  # the job that the pod belonged to
            self._queue.add(before)
        self._store.put_child(child)
        if kind == "DELETED":
            self._store.drop_child(child.key, child.view.uid, seen=True)
            self._queue.add(child.key)
        elif _urgent(child):
            self._queue.add_after(child.key, gather_seconds(LOSS_SECONDS, self._store.count(child.key)), happened=True)
        else:
            self._queue.add_after(child.key, STARTING_SECONDS if self._store.has_pending(child.key) else CALM_SECONDS)

    def service(self, kind: str, service: dict[str, Any]) -> None:
        key = f"{service['metadata']['namespace']}/{service['metadata']['labels'][JOB_NAME_LABEL]}"
        if kind == "DELETED":
            self._store.drop_service(key)
            self._queue.add(key)
        else:
            self._store.put_service(key, owner_of(service))


def _urgent(child: Child) -> bool:
    """Whether the change may start a recovery, or let one continue."""
    return child.view.phase is ReplicaPhase.FAILED or child.view.deleting is not None
