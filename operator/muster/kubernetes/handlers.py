"""What the watches say goes into the caches, and the job that it concerns into the queue; nothing here waits. And kopf's handlers."""

from __future__ import annotations

import logging
from typing import Any

import kopf

from muster.api.constants import JOB_NAME_LABEL
from muster.control.cluster import Child, owner_of
from muster.control.queue import WorkQueue
from muster.control.reconciler import CALM_SECONDS, STARTING_SECONDS
from muster.control.store import Store, key_of, version_of
from muster.kubernetes.credentials import login
from muster.kubernetes.settings import configure
from muster.kubernetes.views import child_of
from muster.lifecycle.observed import ReplicaPhase

LOSS_SECONDS = 0.1
"""How long the loss of a pod waits for others: what goes together, as all pods of a job do that somebody deletes, is one failure."""

log = logging.getLogger("muster.watch")


class Watched:
    """Where the news go."""

    def __init__(self, store: Store, queue: WorkQueue) -> None:
        self._store = store
        self._queue = queue

    def job(self, kind: str, job: dict[str, Any]) -> None:
        self._store.heard(job["metadata"]["uid"], version_of(job))
        known = self._store.job(key_of(job))
        if kind == "DELETED":
            self._store.drop_job(job)
        else:
            self._store.put_job(job)
        if known is None or kind == "DELETED" or version_of(job) > version_of(known):
            self._queue.add(key_of(job))  # what we wrote ourselves is known by now, most of the time

    def pod(self, kind: str, pod: dict[str, Any]) -> None:
        child = child_of(pod)
        if child is None:
            return
        self._store.heard(child.view.uid, child.version)
        if kind == "DELETED":
            self._store.drop_child(child.key, child.view.uid)
        else:
            self._store.put_child(child)
        if kind == "DELETED":
            self._queue.add(child.key)
        elif _urgent(child):
            self._queue.add_after(child.key, LOSS_SECONDS, happened=True)
        else:
            starting = any(child.view.phase is ReplicaPhase.PENDING for child in self._store.children(child.key))
            self._queue.add_after(child.key, STARTING_SECONDS if starting else CALM_SECONDS)

    def service(self, kind: str, service: dict[str, Any]) -> None:
        key = f"{service['metadata']['namespace']}/{service['metadata']['labels'][JOB_NAME_LABEL]}"
        if kind == "DELETED":
            self._store.drop_service(key)
            self._queue.add(key)
        else:
            self._store.put_service(key, owner_of(service))


def _urgent(child: Child) -> bool:
    """Whether a recovery may have to begin, or may go on."""
    return child.view.phase is ReplicaPhase.FAILED or child.view.deleting is not None


def register(registry: kopf.OperatorRegistry) -> None:
    """Puts the handlers into a registry. Their `memo.start` and `memo.stop` are coroutine functions."""

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
        configure(settings)
        await memo.start()

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await login()

    @kopf.on.cleanup(registry=registry)
    async def stop(memo: Any, **_: Any) -> None:
        await memo.stop()
