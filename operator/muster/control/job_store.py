"""The caches of jobs, pods and services. What holds for the objects of any kind is in `muster.kubernetes.store`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from muster.admission.bounds import bounded
from muster.api.constants import ORPHAN_FINALIZER, PREBUILT_WORKLOAD_LABEL
from muster.api.status import FINAL_PHASES, members_in
from muster.api.times import parse_time
from muster.api.unchecked import items, mapping, mappings
from muster.control.cluster import Child, Listing, Unreadable
from muster.kubernetes.objects import Object, key_of, owner_of, version_of
from muster.kubernetes.store import Deletions, Echoes, ObjectStore
from muster.lifecycle.observed import ReplicaPhase, ReplicaView

MOST_DEPARTED = 10_000
"""Pods that are gone and not yet counted in the status of their job, over all jobs."""
_METADATA_READ = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")


def slim(job: Object) -> Object:
    """The job without its unused parts, such as most labels and managed fields, and without parts of the spec that are out of bounds.

    An object of 1 MB can take 50 MB in memory.
    """
    metadata = {name: job["metadata"][name] for name in _METADATA_READ if name in job["metadata"]}
    if ORPHAN_FINALIZER in (job["metadata"].get("finalizers") or ()):
        metadata["finalizers"] = [ORPHAN_FINALIZER]
    if PREBUILT_WORKLOAD_LABEL in (labels := job["metadata"].get("labels") or {}):
        metadata["labels"] = {PREBUILT_WORKLOAD_LABEL: labels[PREBUILT_WORKLOAD_LABEL]}
    return {**job, "metadata": metadata, "spec": bounded(job.get("spec"))}


def _same_spec(one: Object, other: Object) -> bool:
    """Whether both are of one job and one generation. The API server increments the generation with each change of the spec."""
    return all(one["metadata"].get(name) == other["metadata"].get(name) is not None for name in ("uid", "generation"))


def _noticed(job: Object) -> list[object]:
    return [notice.get("node") for _, notice in mappings(items((job.get("status") or {}).get("nodeNotices")))]


class Store:
    """The caches. `clock` returns monotonic seconds. It measures how long a write has waited for its echo on a watch. `now` returns the
    time."""

    def __init__(self, clock: Callable[[], float], now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._on_pod_deleted: list[Callable[[str], None]] = []
        self._on_job_changed: list[Callable[[str], None]] = []
        self._jobs: dict[str, Object] = {}
        self._deletions = Deletions()
        self._children: ObjectStore[Child] = ObjectStore(self._deletions)
        self.echoes = Echoes(clock)
        """What this operator has written, and the watches have delivered."""
        self._pending: dict[str, set[str]] = defaultdict(set)
        self._services: dict[str, str] = {}
        self._departed: dict[str, list[tuple[datetime, ReplicaView]]] = {}
        self._departed_count = 0
        self.unreadable: tuple[Unreadable, ...] = ()
        """Objects of the last list that could not be read."""

    @property
    def keys(self) -> list[str]:
        """The keys of all cached jobs."""
        return list(self._jobs)

    def job(self, key: str) -> Object | None:
        return self._jobs.get(key)

    def children(self, key: str) -> list[Child]:
        return self._children.group(key)

    def departed(self, key: str) -> tuple[ReplicaView, ...]:
        """The pods of the job that are gone, whose end is known, and that its status has not counted to their end."""
        return tuple(view for _, view in self._departed.get(key, ()))

    def count(self, key: str) -> int:
        """How many pods of the job are cached."""
        return self._children.count(key)

    def has_pending(self, key: str) -> bool:
        """Whether a pod of the job has not started yet."""
        return key in self._pending

    @property
    def keys_by_need(self) -> list[str]:
        """The keys of all cached jobs, those that lack a running replica first. A leader needs many seconds for thousands of jobs."""
        return sorted(self._jobs, key=self._is_whole)

    def _is_whole(self, key: str) -> bool:
        """Whether the job has ended, or each replica of its world has a pod that runs."""
        status = (self._jobs.get(key) or {}).get("status") or {}
        if status.get("phase") in FINAL_PHASES:
            return True
        children = self._children.group(key)
        return 0 < len(members_in(status.get("world") or {})) <= sum(child.view.is_active for child in children)

    def keys_on(self, node: str) -> list[str]:
        """The jobs that have a pod on this node, or whose status has a notice of it."""
        placed = {child.key for key in self._jobs for child in self._children.group(key) if child.view.node == node}
        return [key for key, job in self._jobs.items() if key in placed or node in _noticed(job)]

    def key_of_pod(self, uid: str) -> str | None:
        """The job that the pod belongs to."""
        return self._children.key(uid)

    def child(self, uid: str) -> Child | None:
        """The pod with this uid."""
        return self._children.get(uid)

    def has_service(self, key: str, owner: str) -> bool:
        """Whether the job with this uid has its headless service, and the network policy that belongs to it."""
        return self._services.get(key) == owner

    def on_job_changed(self, listener: Callable[[str], None]) -> None:
        """Calls the listener with the key of each job whose cached object changes."""
        self._on_job_changed.append(listener)

    def _job_changed(self, key: str) -> None:
        for listener in self._on_job_changed:
            listener(key)

    def on_pod_deleted(self, forget: Callable[[str], None]) -> None:
        """Calls `forget` with the uid of each pod that is deleted from now on."""
        self._on_pod_deleted.append(forget)

    def put_job(self, job: Object) -> None:
        uid, key = job["metadata"]["uid"], key_of(job)
        cached = self._jobs.get(key)
        if uid in self._deletions or (cached is not None and version_of(cached) > version_of(job)):
            return
        if cached is not None and version_of(cached) == version_of(job) and cached.get("status") == job.get("status"):
            return  # an echo of the operator's own write; a new object would be parsed again
        slimmed = slim(job)
        if cached is not None and _same_spec(cached, slimmed):
            slimmed["spec"] = cached["spec"]  # parsed specs share its parts, so keep one copy
        self._jobs[key] = slimmed
        self._forget_departed(key, slimmed)
        self._job_changed(key)

    def drop_job(self, job: Object) -> None:
        uid, key = job["metadata"]["uid"], key_of(job)
        self._deletions.add(uid)
        self.echoes.forget(uid)
        cached = self._jobs.get(key)
        if cached is not None and cached["metadata"]["uid"] == uid:
            del self._jobs[key]
            self._keep_departed(key, [])
            self._job_changed(key)

    def put_child(self, child: Child) -> None:
        uid = child.view.uid
        before = self._children.key(uid)
        if not self._children.put(child.key, uid, version=child.version, obj=child):
            return
        if before is not None:
            self._not_pending(before, uid)
        if child.view.phase is ReplicaPhase.PENDING:
            self._pending[child.key].add(uid)

    def drop_child(self, key: str, uid: str, *, seen: bool = False) -> None:
        """The pod is gone. `seen`: it went just now."""
        self._depart(self._children.get(uid), seen=seen)
        self._not_pending(self._children.key(uid) or key, uid)
        self.echoes.forget(uid)
        self._children.drop(uid)
        for forget in self._on_pod_deleted:
            forget(uid)

    def _depart(self, child: Child | None, *, seen: bool) -> None:
        """Keeps a pod whose end is known until the status has counted it. Pods beyond the limit count as not seen."""
        if child is None or not child.view.node or (self._jobs.get(child.key) or {}).get("metadata", {}).get("uid") != child.owner:
            return
        now = self._now()
        ended = child.view.released or (now if seen else None)
        if ended is not None and self._departed_count < MOST_DEPARTED:
            gone = (now, replace(child.view, released=ended, report=None))
            self._keep_departed(child.key, [*self._departed.get(child.key, ()), gone])

    def _forget_departed(self, key: str, job: Object) -> None:
        """Drops the pods that were gone when the use of devices was counted, by this operator or by another one."""
        departed = self._departed.get(key)
        counted = mapping(mapping(job.get("status")).get("usage")).get("countedUntil") if departed else None
        if not departed or not isinstance(counted, str):
            return
        with suppress(ValueError):
            until = parse_time(counted)
            self._keep_departed(key, [each for each in departed if each[0] >= until])

    def _keep_departed(self, key: str, departed: list[tuple[datetime, ReplicaView]]) -> None:
        self._departed_count += len(departed) - len(self._departed.pop(key, ()))
        if departed:
            self._departed[key] = departed

    def put_service(self, key: str, owner: str) -> None:
        self._services[key] = owner

    def drop_service(self, key: str) -> None:
        self._services.pop(key, None)

    def _not_pending(self, key: str, uid: str) -> None:
        pending = self._pending.get(key)
        if pending is not None:
            pending.discard(uid)
            if not pending:
                del self._pending[key]

    def replace_children(self, key: str, children: Iterable[Child], *, cached_before: frozenset[str]) -> None:
        """Takes over a live list of one job's pods. `cached_before` has the uids that were cached when the list was requested. Pods among
        them that are not in the list are gone."""
        listed = {child.view.uid: child for child in children}
        for uid in cached_before - set(listed):
            self.drop_child(key, uid)
        for child in listed.values():
            self.put_child(child)

    def replace(self, listing: Listing, *, cached_before: frozenset[str]) -> None:
        """Takes over a live list of all objects. `cached_before` has the uids that were cached when the list was requested."""
        listed = {job["metadata"]["uid"] for job in listing.jobs} | {child.view.uid for child in listing.children}
        listed |= {each.uid for each in listing.unreadable}
        self.unreadable = listing.unreadable
        gone = cached_before - listed
        for job in [job for job in self._jobs.values() if job["metadata"]["uid"] in gone]:
            self.drop_job(job)
        for uid, key in [(uid, key) for uid, key in self._children.keys.items() if uid in gone]:
            self.drop_child(key, uid)
        guarded = {key_of(each): owner_of(each) for each in listing.policies or ()}
        services = {key_of(each): owner_of(each) for each in listing.services}
        self._services = {key: uid for key, uid in services.items() if listing.policies is None or guarded.get(key) == uid}
        for job in listing.jobs:
            cached = self._jobs.get(key_of(job))
            if cached is None or version_of(cached) != version_of(job):
                self.put_job(job)
        for child in listing.children:
            self.put_child(child)

    @property
    def uids(self) -> frozenset[str]:
        """The uids of all cached jobs and pods."""
        return frozenset(job["metadata"]["uid"] for job in self._jobs.values()) | frozenset(self._children.keys)
