"""The caches of jobs and pods: the newest version stays, and a deleted object stays deleted, in any order of events and lists."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.admission.bounds import MAX_BYTES, OutOfBounds
from muster.api.spec import WORKER
from muster.control.cluster import Child, Listing, Unreadable
from muster.control.job_store import Store, slim
from muster.kubernetes.objects import version_of
from muster.lifecycle.observed import ReplicaPhase, ReplicaView

KEY = "default/digits"


def child(uid: str = "pod", version: int = 1) -> Child:
    view = ReplicaView(
        name=uid, uid=uid, role=WORKER, index=0, attempt=0, phase=ReplicaPhase.PENDING, created=datetime(2026, 1, 1, tzinfo=UTC)
    )
    return Child(KEY, "job", version, view)


def job(uid: str = "job", version: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": "digits", "namespace": "default", "uid": uid, "resourceVersion": str(version), "managedFields": [1]}}


@given(st.permutations(range(1, 7)))
def test_the_newest_version_stays_in_any_order(versions: list[int]) -> None:
    store = Store(lambda: 0.0)
    for version in versions:
        store.put_child(child(version=version))
        store.put_job(job(version=version))
    assert [cached.version for cached in store.children(KEY)] == [6]
    cached = store.job(KEY)
    assert cached is not None
    assert version_of(cached) == 6


def test_versions_of_one_generation_share_the_spec() -> None:
    def version(number: int, *, generation: int, uid: str = "job") -> dict[str, Any]:
        made = job(uid, number)
        return {"metadata": {**made["metadata"], "generation": generation}, "spec": {"suspend": [generation]}, "status": {"step": number}}

    def cached_after_put(number: int, *, generation: int, uid: str = "job") -> dict[str, Any]:
        store.put_job(version(number, generation=generation, uid=uid))
        cached = store.job(KEY)
        assert cached is not None
        assert (cached["spec"], cached["status"]) == ({"suspend": [generation]}, {"step": number})
        return cached

    store = Store(lambda: 0.0)
    first = cached_after_put(1, generation=1)
    assert cached_after_put(2, generation=1)["spec"] is first["spec"]
    second = cached_after_put(3, generation=2)
    assert second["spec"] is not first["spec"]
    assert cached_after_put(4, generation=2, uid="another")["spec"] is not second["spec"]


def test_the_echo_of_a_write_changes_nothing() -> None:
    store, changed = Store(lambda: 0.0), list[str]()
    store.on_job_changed(changed.append)
    store.put_job({**job(version=2), "status": {"step": 1}})
    cached = store.job(KEY)
    store.put_job({**job(version=2), "status": {"step": 1}})
    assert (store.job(KEY) is cached, changed) == (True, [KEY])
    store.put_job({**job(version=2), "status": {}})
    assert (store.job(KEY), changed) == ({**slim(job(version=2)), "status": {}}, [KEY, KEY])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["PENDING", "RUNNING", "deleted"])), max_size=20))
def test_a_job_has_pending_pods_while_one_has_not_started(changes: list[tuple[str, str]]) -> None:
    store, phases = Store(lambda: 0.0), dict[str, str]()
    for version, (uid, phase) in enumerate(changes, start=1):
        name = f"{uid}-{version if phases.get(uid, '') == 'deleted' else 0}"  # a uid that was deleted does not come back
        if phases.get(name) == "deleted":
            continue
        phases[name] = phase
        if phase == "deleted":
            store.drop_child(KEY, name)
        else:
            made = child(name, version)
            store.put_child(replace(made, view=replace(made.view, phase=ReplicaPhase[phase])))
    alive = [phase for phase in phases.values() if phase != "deleted"]
    assert (store.has_pending(KEY), store.count(KEY)) == ("PENDING" in alive, len(alive))


def test_a_pod_whose_label_changes_is_a_child_of_one_job_only() -> None:
    def labelled(number: int) -> Child:
        return replace(child(version=number), key=f"default/job-{number}")

    store = Store(lambda: 0.0)
    for number in range(1, 100):  # any user who may patch pods can do this without end
        store.put_child(labelled(number))
    store.put_child(labelled(98))  # from an older list
    assert [number for number in range(100) if store.children(f"default/job-{number}")] == [99]
    assert [number for number in range(100) if store.has_pending(f"default/job-{number}")] == [99]
    store.drop_child("default/job-100", "pod")
    assert (store.children("default/job-99"), store.has_pending("default/job-99"), store.uids) == ([], False, frozenset())


def test_an_older_list_does_not_restore_deleted_objects() -> None:
    store = Store(lambda: 0.0)
    store.put_child(child())
    store.drop_child(KEY, "pod")
    store.drop_job(job())
    store.replace(Listing((job(),), (child(),), (), None), cached_before=frozenset())
    assert store.children(KEY) == []
    assert store.job(KEY) is None


def test_a_list_removes_missing_objects_except_those_newer_than_its_request() -> None:
    store = Store(lambda: 0.0)
    store.put_child(child("ghost"))
    before = store.uids
    store.put_child(child("newcomer"))
    store.replace(Listing((), (), (), None), cached_before=before)
    assert [cached.view.uid for cached in store.children(KEY)] == ["newcomer"]
    assert store.key_of_pod("ghost") is None


def test_listeners_are_called_for_each_pod_that_is_gone() -> None:
    gone: list[str] = []
    store = Store(lambda: 0.0)
    store.on_pod_deleted(gone.append)
    for uid in ("deleted", "not there", "not listed", "stays"):
        store.put_child(child(uid))
    store.drop_child(KEY, "deleted")
    store.replace_children(KEY, [child("stays")], cached_before=frozenset({"not there", "stays"}))
    store.replace(Listing((), (child("stays"),), (), None), cached_before=frozenset({"not listed", "stays"}))
    assert gone == ["deleted", "not there", "not listed"]


def test_a_list_replaces_only_changed_objects() -> None:
    store = Store(lambda: 0.0)
    store.put_job(job(version=3))
    cached = store.job(KEY)
    store.replace(Listing((job(version=3),), (), (), None), cached_before=store.uids)
    assert store.job(KEY) is cached
    store.replace(Listing((job(version=4),), (), (), None), cached_before=store.uids)
    newer = store.job(KEY)
    assert newer is not None
    assert version_of(newer) == 4


def test_a_job_has_its_service_only_together_with_its_network_policy() -> None:
    owner = [{"uid": "job", "controller": True}]
    service = {"metadata": {"name": "digits", "namespace": "default", "ownerReferences": owner}}
    store = Store(lambda: 0.0)
    store.replace(Listing((), (), (service,), None), cached_before=frozenset())
    assert store.has_service(KEY, "job")
    store.replace(Listing((), (), (service,), ()), cached_before=frozenset())
    assert not store.has_service(KEY, "job")
    store.replace(Listing((), (), (service,), (service,)), cached_before=frozenset())
    assert store.has_service(KEY, "job")
    assert not store.has_service(KEY, "another job of the name")


def test_only_the_fields_that_are_read_are_cached() -> None:
    large = {"epochs": 3, "x": ["y" * MAX_BYTES]}
    metadata = {**job()["metadata"], "annotations": {"huge": "x"}, "labels": {"a": "b"}, "finalizers": ["mine", "orphan"]}
    slimmed = slim(
        {"kind": "TrainingJob", "metadata": metadata, "spec": {"strategy": "DDP", "trainer": {"task": "digits", "config": large}}}
    )
    assert set(slimmed["metadata"]) == {"name", "namespace", "uid", "resourceVersion", "finalizers"}
    assert slimmed["metadata"]["finalizers"] == ["orphan"]
    assert isinstance(slimmed["spec"]["trainer"]["config"], OutOfBounds)
    assert (slimmed["spec"]["strategy"], slimmed["spec"]["trainer"]["task"]) == ("DDP", "digits")
    assert slim(slimmed) == slimmed


def test_a_cached_job_stays_if_a_list_cannot_read_it() -> None:
    store = Store(lambda: 0.0)
    store.put_job(job())
    unreadable = Unreadable("TrainingJob", "default", "digits", "job", "too odd")
    store.replace(Listing((), (), (), None, (unreadable,)), cached_before=store.uids)
    assert store.job(KEY) is not None
    assert store.unreadable == (unreadable,)
    store.replace(Listing((), (), (), None), cached_before=store.uids)
    assert store.job(KEY) is None
    assert store.unreadable == ()


class CountingSet(frozenset[str]):
    """Counts the differences that are computed from it."""

    differences = 0

    def __sub__(self, other: AbstractSet[object]) -> frozenset[str]:
        CountingSet.differences += 1
        return super().__sub__(other)


def test_a_list_is_compared_with_the_cache_once_and_not_once_for_each_object() -> None:
    """With 40,000 objects the operator stood still for minutes."""
    store = Store(lambda: 0.0)
    children = [child(f"pod-{number}") for number in range(50)]
    for each in children:
        store.put_child(each)
    store.put_job(job())
    before = CountingSet(store.uids)
    store.replace(Listing((job(),), tuple(children[:10]), (), None, ()), cached_before=before)
    assert len(store.children(KEY)) == 10
    assert CountingSet.differences == 1


def test_a_pod_that_is_gone_stays_until_the_status_has_counted_it() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    store = Store(lambda: 0.0, lambda: now)
    store.put_job(job())
    running = replace(child(), view=replace(child().view, node="n"))
    store.put_child(running)
    store.drop_child(KEY, "pod", seen=True)
    [departed] = store.departed(KEY)
    assert (departed.uid, departed.released) == ("pod", now)
    for version, counted in ((2, "2026-01-01T11:59:59.999Z"), (3, "2026-01-01T12:00:00.001Z")):
        assert len(store.departed(KEY)) == 1
        store.put_job({**job(version=version), "status": {"usage": {"countedUntil": counted}}})
    assert store.departed(KEY) == ()


def test_a_pod_whose_end_was_not_seen_or_that_is_of_no_job_is_not_kept() -> None:
    store = Store(lambda: 0.0)
    store.put_job(job())
    for name, owner in (("unseen", "job"), ("foreign", "other")):
        store.put_child(replace(child(name), owner=owner, view=replace(child(name).view, node="n")))
    store.drop_child(KEY, "unseen")
    store.drop_child(KEY, "foreign", seen=True)
    assert store.departed(KEY) == ()
