"""Evictions of KEP-4563 on a cluster in memory: what Muster reports of its part, and when a job learns of an eviction."""

from __future__ import annotations

import asyncio
import copy
from datetime import timedelta
from typing import Any

import pytest

from muster.control.errors import ConflictError, UnavailableError
from muster.control.evictions import RETRY_SECONDS, STOP_SECONDS, Evictions, Responder
from muster.render.evictions import HEARTBEAT_SECONDS, RESPONDER, active_eviction, with_responder
from tests.unit.control.test_reconciler import KEY, NOW, World

RUNNING = {"startedAt": "2026-11-21T12:00:00Z"}
NAME = "Eviction", "default", "digits-worker-1"
REQUESTER = {"name": "drain.example.com/nodes", "intent": "Eviction"}


class Evicting(World):
    """A world in which a job of two workers runs, and in which Muster answers Evictions. `now` is the time of the answers."""

    def __init__(self, **job: Any) -> None:
        self.evictions, self.now, self.woken = Evictions(served=True), NOW, list[str]()
        super().__init__(evictions=self.evictions)
        self.submit(**job)
        self.reconcile()
        for index in range(2):
            self.pod(index, running=RUNNING)
        self.reconcile()
        self.lead()

    def lead(self, controller: str = "muster.dev/operator") -> None:
        """Begins with a new responder, as a new leader does."""
        self.responder = Responder(
            self.cluster,
            self.store,
            self.evictions,
            job_of=lambda obj: self.reconciler.job_of(obj),
            enqueue=self.woken.append,
            now=lambda: self.now,
            controller=controller,
        )

    def evict(self, *, state: str = "Active", uid: str = "", requesters: tuple[dict[str, str], ...] = (REQUESTER,)) -> None:
        """The Eviction of the pod of worker 1, as its controller writes it. Nobody has seen it yet."""
        target = {"name": "digits-worker-1", "uid": uid or self.pod(1).view.uid}
        status = {
            "requesters": list(requesters),
            "targetResponders": [{"name": RESPONDER, "priority": 10000, "state": state}],
            "responders": [{"name": RESPONDER, "startTime": f"{self.now:%Y-%m-%dT%H:%M:%SZ}"}],
        }
        metadata = {"name": NAME[2], "namespace": "default"}
        self.cluster.put({"kind": "Eviction", "metadata": metadata, "spec": {"target": {"pod": target}}, "status": status})

    def watch(self, kind: str = "ADDED") -> None:
        self.evictions.update(kind, self.cluster.objects[NAME])

    def look(self, *, after: float = 0.0) -> dict[str, Any]:
        """What Muster has written once it has looked."""
        self.now += timedelta(seconds=after)
        asyncio.run(self.responder.look())
        return self.answer()

    def answer(self) -> dict[str, Any]:
        return dict(self.cluster.objects[NAME]["status"]["responders"][0])

    def writes(self) -> int:
        return self.cluster.requests.count(("status", "Eviction"))

    def remove_pods(self) -> None:
        for index in range(2):
            child = self.pod(index)
            del self.cluster.objects["Pod", "default", child.view.name]
            self.store.drop_child(KEY, child.view.uid)


def test_the_job_learns_of_an_eviction_after_the_answer_to_it() -> None:
    world = Evicting()
    uid = world.pod(1).view.uid
    world.evict()
    world.watch()
    assert world.evictions.of(uid) is None

    def refuse(verb: str, kind: str) -> None:
        if verb == "status":
            raise UnavailableError("no answer")

    world.cluster.before = refuse
    world.look()
    assert (world.evictions.of(uid), world.woken) == (None, [])
    world.cluster.before = lambda verb, kind: None
    answer = world.look(after=60)
    assert answer["heartbeatTime"] == "2026-11-21T12:01:01Z"
    assert "all ranks save" in answer["message"]
    assert world.woken == [KEY]
    world.reconcile()
    record = world.status()["attempts"][0]
    assert (record["reason"], record["message"]) == (
        "EvictionRequested",
        "the eviction of digits-worker-1 is requested by drain.example.com/nodes",
    )


def test_heartbeats_come_every_twenty_seconds_and_the_end_at_once() -> None:
    world = Evicting()
    world.evict()
    world.watch()
    world.look()
    for _ in range(10):
        world.look(after=HEARTBEAT_SECONDS / 8)
    assert world.writes() == 2
    world.remove_pods()
    answer = world.look(after=1)
    assert answer["completionTime"] == "2026-11-21T12:00:27Z"
    assert "pod digits-worker-1 is gone" in answer["message"]
    assert world.evictions.active == []
    requests = len(world.cluster.requests)
    world.look(after=60)
    assert len(world.cluster.requests) == requests


def test_heartbeats_end_if_the_pod_does_not_begin_to_end() -> None:
    world = Evicting()
    world.evict()
    world.watch()
    beats = {world.look(after=HEARTBEAT_SECONDS)["heartbeatTime"] for _ in range(40)}
    assert len(beats) == STOP_SECONDS / HEARTBEAT_SECONDS


def test_a_pod_that_the_cache_lacks_counts_as_gone_only_if_it_is() -> None:
    world = Evicting()
    world.evict()
    world.watch()
    child = world.pod(1)
    world.store.drop_child(KEY, child.view.uid)
    assert "completionTime" not in world.look()
    del world.cluster.objects["Pod", "default", child.view.name]
    assert "completionTime" in world.look(after=10)


def test_a_new_leader_goes_on_with_what_the_old_one_reported() -> None:
    world = Evicting()
    world.evict()
    world.watch()
    world.look()
    world.evictions = Evictions(served=True)
    world.woken.clear()
    world.lead()
    world.watch()
    world.look(after=5)
    assert world.writes() == 1, "the last heartbeat is recent"
    assert world.woken == [KEY]
    world.remove_pods()
    assert "completionTime" in world.look(after=5)


@pytest.mark.parametrize("state", ["Inactive", "Interrupted", "Canceled", "Completed"])
def test_only_an_active_responder_acts(state: str) -> None:
    world = Evicting()
    world.evict(state=state)
    world.watch()
    assert "heartbeatTime" not in world.look()
    assert (world.evictions.active, world.woken) == ([], [])


def test_a_cancellation_before_the_answer_changes_nothing() -> None:
    world = Evicting()
    world.evict()
    world.watch()
    world.evict(state="Canceled")  # the watch is late
    assert "heartbeatTime" not in world.look()
    assert (world.evictions.of(world.pod(1).view.uid), world.woken) == (None, [])


def test_an_eviction_that_is_deleted_is_dropped() -> None:
    world = Evicting()
    world.evict()
    world.watch()
    world.look()
    world.watch("DELETED")
    assert world.evictions.of(world.pod(1).view.uid) is None
    world.watch()
    del world.cluster.objects[NAME]
    world.now += timedelta(seconds=60)
    asyncio.run(world.responder.look())
    assert world.evictions.active == []


def test_a_conflict_is_tried_again_at_the_next_look() -> None:
    world = Evicting()
    world.evict()
    world.watch()
    failures = [ConflictError("changed")]

    def conflict(verb: str, kind: str) -> None:
        if (verb, kind) == ("status", "Eviction") and failures:
            raise failures.pop()

    world.cluster.before = conflict
    assert "heartbeatTime" not in world.look()
    assert "heartbeatTime" in world.look(after=0.5)


@pytest.mark.parametrize("failure", [UnavailableError("no answer"), RuntimeError("a defect")])
def test_an_answer_that_fails_is_tried_again_after_a_pause(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Also if the pod is gone, so that the answer is due at once."""
    world = Evicting()
    world.evict()
    world.watch()
    world.remove_pods()

    def fail(verb: str, kind: str) -> None:
        if (verb, kind) == ("status", "Eviction"):
            raise failure

    world.cluster.before = fail
    requests = len(world.cluster.requests)
    for _ in range(40):
        assert "completionTime" not in world.look(after=0.5)
    assert len(caplog.records) <= 20 / RETRY_SECONDS
    assert len(world.cluster.requests) - requests <= 3 * 20 / RETRY_SECONDS
    world.cluster.before = lambda verb, kind: None
    assert "completionTime" in world.look(after=HEARTBEAT_SECONDS)


def test_a_job_that_cannot_be_read_does_not_end_the_responder() -> None:
    world = Evicting()
    world.evict()
    world.watch()
    job_of = world.reconciler.job_of
    world.reconciler.job_of = lambda obj: 1 // 0  # type: ignore[method-assign,assignment]
    assert "heartbeatTime" not in world.look()
    world.reconciler.job_of = job_of  # type: ignore[method-assign]
    assert "heartbeatTime" in world.look(after=HEARTBEAT_SECONDS)


def test_a_job_that_is_gone_does_not_hold_up_an_eviction() -> None:
    world = Evicting()
    world.evict()
    world.watch()
    [job] = world.cluster.of("TrainingJob")
    world.store.drop_job(job)
    assert "completionTime" in world.look()


def test_the_eviction_of_a_job_of_another_manager_gets_no_answer() -> None:
    world = Evicting()
    world.lead(controller="example.com/another")
    world.evict()
    world.watch()
    assert set(world.look()) == {"name", "startTime"}
    assert (world.woken, world.writes()) == ([], 0)


def eviction_of(pod: str, *, uid: str) -> dict[str, Any]:
    status = {"targetResponders": [{"name": RESPONDER, "priority": 10000, "state": "Active"}], "responders": [{"name": RESPONDER}]}
    return {"metadata": {"name": pod, "namespace": "default"}, "spec": {"target": {"pod": {"name": pod, "uid": uid}}}, "status": status}


def test_many_requesters_are_named_in_short() -> None:
    obj = eviction_of("digits-worker-1", uid="1")
    obj["status"]["requesters"] = [{"name": f"team-{index}.example.com/x", "intent": "Eviction"} for index in range(5)]
    obj["status"]["requesters"].append({"name": "gone.example.com/x", "intent": "Withdrawn"})
    eviction = active_eviction(obj)
    assert eviction
    assert eviction.requesters == "team-0.example.com/x, team-1.example.com/x, team-2.example.com/x and 2 more"


@pytest.mark.parametrize(
    "obj",
    [
        {"metadata": {"name": "a", "namespace": "b"}},
        {"metadata": {"name": "a", "namespace": "b"}, "spec": {"target": {}}, "status": {}},
        {"metadata": {"name": "a", "namespace": "b"}, "spec": None, "status": {"targetResponders": None, "responders": None}},
        {"metadata": {"name": "a", "namespace": "b"}, "status": {"targetResponders": [None, "x"], "responders": [None], "requesters": [1]}},
    ],
)
def test_an_eviction_without_a_status_or_a_pod_requests_nothing(obj: dict[str, Any]) -> None:
    assert active_eviction(obj) is None


OTHERS = [{"name": f"a{index}.example.com/x", "priority": 2000 + index} for index in range(10)]


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({}, [RESPONDER]),
        ({"evictionResponders": OTHERS[:1]}, ["a0.example.com/x", RESPONDER]),
        ({"evictionResponders": [{"name": RESPONDER, "priority": 5000}]}, [RESPONDER]),
        ({"evictionResponders": OTHERS}, [each["name"] for each in OTHERS]),
        ({"schedulingGroup": {"podGroupName": "digits"}}, []),
    ],
)
def test_pods_outside_pod_groups_name_muster_as_a_responder(spec: dict[str, Any], names: list[str]) -> None:
    pod = with_responder({"kind": "Pod", "spec": spec})
    assert [each["name"] for each in pod["spec"].get("evictionResponders", ())] == names


@pytest.mark.parametrize("served", [True, False])
def test_pods_name_the_responder_only_where_evictions_are_served(served: bool) -> None:
    world = World(evictions=Evictions(served=served))
    world.submit()
    world.reconcile()
    assert {"evictionResponders" in pod["spec"] for pod in world.cluster.of("Pod")} == {served}


def test_an_eviction_in_another_namespace_changes_nothing_about_the_pod_it_names() -> None:
    world = Evicting()
    uid = world.pod(1).view.uid
    world.evict()
    theirs = copy.deepcopy(world.cluster.objects[NAME])
    theirs["metadata"]["namespace"] = "theirs"
    del world.cluster.objects[NAME]
    world.cluster.put(theirs)
    world.evictions.update("ADDED", theirs)
    asyncio.run(world.responder.look())
    assert (world.evictions.of(uid), world.woken) == (None, [])
    world.evict()
    world.watch()
    world.look(after=10)
    accepted = world.evictions.of(uid)
    assert accepted is not None
    world.evictions.update("ADDED", theirs)
    world.evictions.update("DELETED", theirs)
    assert world.evictions.of(uid) is accepted
