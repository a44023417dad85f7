"""Passes of the reconciler over one job, on a cluster in memory: the order of the writes, and what follows a failure."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from muster.channel.reports import Reports
from muster.control.dependencies import Dependencies
from muster.control.reconciler import Reconciler
from muster.kubernetes.errors import ClusterError, ConflictError, RefusedError, UnavailableError
from muster.operator.views import child_of
from muster.render.defaults import JobDefaults
from muster.strategies.registry import strategy_of
from tests.support.texts import absent
from tests.unit.control.control_worlds import IMAGES, KEY, NOW, World


def test_the_status_is_written_before_objects_are_created() -> None:
    world = World()
    world.submit()
    world.reconcile()
    writes = [request for request in world.cluster.requests if request[0] in ("status", "create") and request[1] != "Event"]
    assert writes == [("status", "TrainingJob"), ("create", "Service"), ("create", "Pod"), ("create", "Pod")]


def test_no_object_is_created_if_the_status_cannot_be_written() -> None:
    world = World()
    world.submit()

    def conflict(verb: str, kind: str) -> None:
        if verb == "status":
            raise ConflictError("the job has changed")

    world.cluster.before = conflict
    with pytest.raises(ConflictError):
        world.reconcile()
    assert not [request for request in world.cluster.requests if request[0] == "create"]


def test_the_next_pass_finishes_a_pass_that_failed_at_any_request() -> None:
    for broken in range(1, 12):
        world = World(policies=True)
        world.submit(workers=3)
        count = 0

        def break_off(verb: str, kind: str, broken: int = broken) -> None:
            nonlocal count
            count += 1
            if count == broken:
                raise UnavailableError("no answer")

        world.cluster.before = break_off
        for _ in range(4):
            with suppress(ClusterError):
                world.reconcile()
        assert len(world.cluster.of("Pod")) == 3, f"request {broken}"
        assert len(world.cluster.of("Service")) == len(world.cluster.of("NetworkPolicy")) == 1
        assert world.status()["attempt"] == 0


def test_a_lost_pod_is_replaced_once_it_is_gone_and_other_pods_stay() -> None:
    world = World()
    world.submit()
    world.reconcile()
    running = {"startedAt": "2026-11-21T12:00:00Z"}
    staying, lost = world.pod(0, running=running), world.pod(1, running=running)
    world.receive_report(staying, attempt=0)
    world.reconcile()
    world.pod(1, terminated={"exitCode": 137, "finishedAt": "2026-11-21T12:00:01Z"})
    world.reconcile()
    assert world.status()["attempt"] == 1
    world.receive_report(staying, attempt=1, waiting=True)
    world.reconcile()
    world.store.drop_child(KEY, lost.view.uid)  # as the watch reports
    world.reconcile()
    assert {world.pod(index).view.attempt for index in (0, 1)} == {0, 1}
    assert world.pod(0).view.uid == staying.view.uid


def test_a_pass_over_an_unchanged_job_sends_no_request() -> None:
    world = World()
    world.submit()
    world.reconcile()
    world.reconcile()  # records which pods they are
    world.cluster.requests.clear()
    world.reconcile()
    assert world.cluster.requests == []


def test_a_job_that_is_being_deleted_loses_its_pods_and_gets_no_new_ones() -> None:
    world = World()
    world.submit()
    world.reconcile()
    [job] = world.cluster.of("TrainingJob")
    job["metadata"] |= {"deletionTimestamp": "2026-11-21T12:00:00Z", "finalizers": ["example.com/theirs"]}
    world.store.put_job(world.cluster.put(job))
    world.cluster.requests.clear()
    assert world.reconcile() is None
    assert world.cluster.requests == [("delete", "Pod"), ("delete", "Pod")]
    for uid in [child.view.uid for child in world.store.children(KEY)]:
        world.store.drop_child(KEY, uid)  # as the watch reports
    world.cluster.requests.clear()
    assert world.reconcile() is None
    assert world.cluster.requests == []


def test_a_job_that_was_deleted_since_the_last_watch_event_gets_nothing() -> None:
    world = World()
    world.submit()
    world.cluster.objects.clear()
    assert world.reconcile() is None
    assert world.cluster.objects == {}


def test_no_pod_is_created_for_a_job_that_changed_since_the_last_watch_event() -> None:
    world = World()
    world.submit()

    def no_pods(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Pod"):
            raise UnavailableError("no answer")

    world.cluster.before = no_pods
    with pytest.raises(UnavailableError):
        world.reconcile()
    world.cluster.before = lambda verb, kind: None
    [job] = world.cluster.of("TrainingJob")
    world.cluster.put({**job, "metadata": {**job["metadata"], "generation": 2}, "spec": {**job["spec"], "suspend": True}})
    with pytest.raises(ConflictError):
        world.reconcile()
    world.reconcile()
    assert world.cluster.of("Pod") == []


def test_pods_of_an_earlier_job_of_the_same_name_are_not_adopted() -> None:
    world = World()
    world.submit(workers=1)
    world.reconcile()
    [old] = world.cluster.of("Pod")
    world.cluster.objects.pop(("TrainingJob", "default", "digits"))
    world.cluster.objects.pop(("Service", "default", "digits"))
    world.submit(workers=1)
    with pytest.raises(ConflictError, match="digits-worker-0"):
        world.reconcile()
    assert world.cluster.of("Pod") == [old]
    world.cluster.objects.pop(("Pod", "default", "digits-worker-0"))
    world.reconcile()
    [new] = world.cluster.of("Pod")
    assert new["metadata"]["ownerReferences"][0]["uid"] != old["metadata"]["ownerReferences"][0]["uid"]


@pytest.mark.parametrize("owned", [False, True])
def test_a_pod_with_a_forged_attempt_does_not_touch_the_job(owned: bool) -> None:
    """A pod that the job controls is removed, and an Event names it. Any other pod stays."""
    events: list[Any] = []
    world = World(publish=events.append)
    world.submit(workers=1)
    world.reconcile()
    world.pod(0, running={"startedAt": "2026-11-21T12:00:05Z"})
    [pod] = world.cluster.of("Pod")
    labels = {**pod["metadata"]["labels"], "muster.dev/attempt": "999999999"}
    owners = pod["metadata"]["ownerReferences"] if owned else []
    forged = world.cluster.put(
        {"kind": "Pod", "metadata": {"name": "forged", "namespace": "default", "labels": labels, "ownerReferences": owners}}
    )
    child = child_of(forged)
    assert child
    world.store.put_child(child)
    for _ in range(3):
        world.reconcile()
    names = {pod["metadata"]["name"] for pod in world.cluster.of("Pod")}
    assert names == ({"digits-worker-0"} if owned else {"digits-worker-0", "forged"})
    removals = {event["metadata"]["name"]: event["message"] for event in events if event["reason"] == "PodRemoved"}
    assert len(removals) == owned
    assert all(absent(message, "forged", "999999999") == [] for message in removals.values())
    assert (world.status()["attempt"], world.status()["phase"], world.status()["replicas"]) == (0, "Running", 1)


def test_a_refused_pod_stops_the_creation_of_others_and_is_shown_in_the_status() -> None:
    world = World()
    world.submit(workers=200)

    def refuse(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Pod"):
            raise RefusedError("exceeded quota: few")

    world.cluster.before = refuse
    with pytest.raises(RefusedError):
        world.reconcile()
    assert world.cluster.requests.count(("create", "Pod")) <= 32
    with pytest.raises(RefusedError):
        world.reconcile()
    [ready] = [each for each in world.status()["conditions"] if each["type"] == "Ready"]
    assert (ready["reason"], ready["message"]) == ("ReplicasRefused", "exceeded quota: few")


def test_the_image_of_a_job_does_not_change_after_its_start() -> None:
    world = World()
    world.submit()
    world.reconcile()
    assert world.status()["image"] == "torch"
    images = replace(IMAGES, trainers={**IMAGES.trainers, "PyTorch": "newer"})
    newer = Reconciler(Dependencies(world.cluster, world.store, Reports(), images=images, now=lambda: NOW))
    for pod in world.cluster.of("Pod"):
        world.cluster.objects.pop(("Pod", "default", pod["metadata"]["name"]))
        world.store.drop_child(KEY, pod["metadata"]["uid"])
    for _ in range(4):
        asyncio.run(newer.reconcile(KEY))
    assert {pod["spec"]["containers"][0]["image"] for pod in world.cluster.of("Pod")} == {"torch"}


def test_the_template_of_a_job_overrides_the_template_of_the_installation() -> None:
    below = {"spec": {"nodeSelector": {"pool": "spot"}, "priorityClassName": "low", "containers": [{"name": "trainer", "tty": True}]}}
    world = World(defaults=JobDefaults(template=below))
    own = {"spec": {"nodeSelector": None, "priorityClassName": "high", "containers": [{"name": "trainer", "securityContext": None}]}}
    world.submit(roles={"worker": {"replicas": 1, "template": own}})
    world.reconcile()
    [pod] = world.cluster.of("Pod")
    [container] = pod["spec"]["containers"]
    assert "nodeSelector" not in pod["spec"]
    assert pod["spec"]["priorityClassName"] == "high"
    assert container["tty"] is True
    assert "securityContext" not in container, "a null of the user's reaches what is rendered, through the installation's template"


def test_a_missing_claim_is_in_the_status_and_is_read_until_it_exists() -> None:
    world = World()
    world.submit(checkpoint={"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}})
    world.reconcile()
    assert shared(world) == ("False", "ClaimNotFound")
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "default", "name": "ckpt"},
        "spec": {"accessModes": ["ReadWriteMany"]},
    }
    world.cluster.put(claim)
    world.reconcile()
    assert shared(world) == ("True", "ManyNodes")
    reads = world.cluster.requests.count(("get", "PersistentVolumeClaim"))
    world.reconcile()
    assert world.cluster.requests.count(("get", "PersistentVolumeClaim")) == reads


def shared(world: World) -> tuple[str, str]:
    [condition] = [each for each in world.status()["conditions"] if each["type"] == "StorageShared"]
    return condition["status"], condition["reason"]


def test_a_pass_creates_a_limited_number_of_replicas() -> None:
    world = World()
    world.submit(workers=200)
    counts = []
    for _ in range(4):
        later = world.reconcile()
        counts.append(len(world.cluster.of("Pod")))
        assert (later == 0.0) == (counts[-1] < 200), "it comes back at once while some are left"
    assert counts == [64, 128, 192, 200]
    assert len({pod["metadata"]["name"] for pod in world.cluster.of("Pod")}) == 200


@pytest.mark.parametrize("strategy", ["DDP", "MultiWorkerMirrored"])
def test_a_pass_makes_the_same_number_of_plans_for_any_number_of_replicas(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    def plans_made(workers: int) -> int:
        world = World()
        world.submit(workers=workers, strategy=strategy)
        kind = type(strategy_of(strategy))
        plan, made = kind.plan, []
        with monkeypatch.context() as patch:
            patch.setattr(kind, "plan", lambda self, spec: made.append(spec) or plan(self, spec))
            world.reconcile()
        assert len(world.cluster.of("Pod")) == workers
        return len(made)

    assert plans_made(4) == plans_made(60)


def test_a_job_recovers_only_once_its_replicas_have_run() -> None:
    world = World()
    world.submit(workers=1)
    world.reconcile()
    assert not world.reconciler.recovers(KEY)
    world.pod(0, running={"startedAt": "2026-11-21T12:00:00Z"})
    world.reconcile()
    assert world.reconciler.recovers(KEY)
    assert not world.reconciler.recovers("default/nobody")
