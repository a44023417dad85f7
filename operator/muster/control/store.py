"""What the watches have told so far: jobs, their pods and services. A hint, never a proof: whatever hangs on absence is looked up live.

Every object is taken in by whichever way it comes (watch, list, answer to a write), and the latest resourceVersion wins.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable

from muster.admission.bounds import bounded
from muster.api.constants import ORPHAN_FINALIZER
from muster.control.cluster import Child, Listing, Object, Unreadable, owner_of

_GONE_KEPT = 20_000  # uids of deleted objects: a list that was on its way when they went must not bring them back


def key_of(obj: Object) -> str:
    """namespace/name"""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


_METADATA_READ = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")


def slim(job: Object) -> Object:
    """The job without what nobody reads: labels, managed fields and the like, and parts of its spec that are out of bounds.

    A tenant's object of a megabyte can take fifty in memory.
    """
    metadata = {name: job["metadata"][name] for name in _METADATA_READ if name in job["metadata"]}
    if ORPHAN_FINALIZER in (job["metadata"].get("finalizers") or ()):
        metadata["finalizers"] = [ORPHAN_FINALIZER]
    return {**job, "metadata": metadata, "spec": bounded(job.get("spec"))}


def _same_spec(one: Object, other: Object) -> bool:
    """Whether both are of one job and one generation: the API server counts that up with each change of the spec."""
    return all(one["metadata"].get(name) == other["metadata"].get(name) is not None for name in ("uid", "generation"))


def version_of(obj: Object) -> int:
    """The resourceVersion; of one kind they are ordered (Kubernetes documentation, "Resource versions")."""
    return int(obj["metadata"]["resourceVersion"])


class Store:
    """The caches. `clock` gives seconds, for the age of echoes; `gone` is called with the uid of each pod that is no more."""

    def __init__(self, clock: Callable[[], float], *, gone: Callable[[str], None] = lambda _: None) -> None:
        self._clock = clock
        self._tell_gone = gone
        self._jobs: dict[str, Object] = {}
        self._children: dict[str, dict[str, Child]] = defaultdict(dict)
        self._keys: dict[str, str] = {}
        self._services: dict[str, str] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._echoes: dict[str, float] = {}
        self._heard: dict[str, int] = {}
        self.unreadable: tuple[Unreadable, ...] = ()
        """What the last list could not read."""

    @property
    def keys(self) -> list[str]:
        """Every job known."""
        return list(self._jobs)

    def job(self, key: str) -> Object | None:
        return self._jobs.get(key)

    def children(self, key: str) -> list[Child]:
        return list(self._children.get(key, {}).values())

    def key_of_pod(self, uid: str) -> str | None:
        """The job that the pod belongs to."""
        return self._keys.get(uid)

    def child(self, uid: str) -> Child | None:
        """The pod with this uid."""
        return self._children.get(self._keys.get(uid, ""), {}).get(uid)

    def has_service(self, key: str, owner: str) -> bool:
        """Whether the job with this uid has its headless service, and the network policy that belongs to it."""
        return self._services.get(key) == owner

    def put_job(self, job: Object) -> None:
        uid, key = job["metadata"]["uid"], key_of(job)
        known = self._jobs.get(key)
        if uid in self._gone or (known is not None and version_of(known) > version_of(job)):
            return
        kept = slim(job)
        if known is not None and _same_spec(known, kept):
            kept["spec"] = known["spec"]  # what was read of it, and is kept by others, shares its parts
        self._jobs[key] = kept

    def drop_job(self, job: Object) -> None:
        uid, key = job["metadata"]["uid"], key_of(job)
        self._note_gone(uid)
        known = self._jobs.get(key)
        if known is not None and known["metadata"]["uid"] == uid:
            del self._jobs[key]

    def put_child(self, child: Child) -> None:
        uid = child.view.uid
        known = self._children[child.key].get(uid) if child.key in self._children else None
        if uid in self._gone or (known is not None and known.version > child.version):
            return
        self._children[child.key][uid] = child
        self._keys[uid] = child.key

    def drop_child(self, key: str, uid: str) -> None:
        self._note_gone(uid)
        self._keys.pop(uid, None)
        children = self._children.get(key)
        if children is not None:
            children.pop(uid, None)
            if not children:
                del self._children[key]
        self._tell_gone(uid)

    def put_service(self, key: str, owner: str) -> None:
        self._services[key] = owner

    def drop_service(self, key: str) -> None:
        self._services.pop(key, None)

    def replace_children(self, key: str, children: Iterable[Child], *, looked: frozenset[str]) -> None:
        """What a live list of one job's pods showed. Of those known when it was asked for (`looked`: uids), what it has not is gone."""
        listed = {child.view.uid: child for child in children}
        for uid in looked - set(listed):
            self.drop_child(key, uid)
        for child in listed.values():
            self.put_child(child)

    def replace(self, listing: Listing, *, before: frozenset[str]) -> None:
        """What a live list of everything showed. `before`: the uids known when it was asked for."""
        listed = {job["metadata"]["uid"] for job in listing.jobs} | {child.view.uid for child in listing.children}
        listed |= {each.uid for each in listing.unreadable}
        self.unreadable = listing.unreadable
        for job in [job for job in self._jobs.values() if job["metadata"]["uid"] in before - listed]:
            self.drop_job(job)
        for uid, key in [(uid, key) for uid, key in self._keys.items() if uid in before - listed]:
            self.drop_child(key, uid)
        guarded = {key_of(each): owner_of(each) for each in listing.policies or ()}
        services = {key_of(each): owner_of(each) for each in listing.services}
        self._services = {key: uid for key, uid in services.items() if listing.policies is None or guarded.get(key) == uid}
        for job in listing.jobs:
            known = self._jobs.get(key_of(job))
            if known is None or version_of(known) != version_of(job):
                self.put_job(job)
        for child in listing.children:
            self.put_child(child)

    @property
    def uids(self) -> frozenset[str]:
        """Of all jobs and pods."""
        return frozenset(job["metadata"]["uid"] for job in self._jobs.values()) | frozenset(self._keys)

    def expect(self, uid: str, version: int) -> None:
        """A write of ours must come back on a watch, and may have before it was answered. Where it does not, the watch is deaf."""
        if self._heard.get(uid, 0) < version:
            self._echoes.setdefault(uid, self._clock())

    def heard(self, uid: str, version: int) -> None:
        """A watch spoke of the object, at that version."""
        self._heard[uid] = version
        self._echoes.pop(uid, None)

    def silence(self) -> float:
        """Seconds that the oldest write of ours has waited for its echo."""
        return self._clock() - min(self._echoes.values(), default=self._clock())

    def _note_gone(self, uid: str) -> None:
        self._echoes.pop(uid, None)
        self._heard.pop(uid, None)
        self._gone[uid] = None
        while len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)
