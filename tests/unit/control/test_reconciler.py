"""One pass over one job, against a cluster in memory: what is written first, what is done when something fails."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from muster.control.cluster import Child
from muster.control.dependencies import Dependencies
from muster.control.errors import ClusterError, ConflictError, RefusedError, UnavailableError
from muster.control.reconciler import Reconciler
from muster.control.reports import Reports
from muster.control.store import Store
from muster.kubernetes.views import child_of
from muster.render.defaults import JobDefaults
from muster.render.images import Images
from muster.strategies.registry import strategy_of
from muster_contract.reports import Report
from muster_contract.wire import decode
from tests.unit.control.control_worlds import MemoryCluster, job_object

IMAGES = Images({"PyTorch": "torch", "TensorFlow": "tensorflow"}, supervisor="operator")
KEY = "default/digits"
NOW = datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)


class World:
    """A cluster, a store that knows its jobs, and a reconciler."""

    def __init__(self, **settings: Any) -> None:
        self.cluster = MemoryCluster()
        self.store = Store(time.monotonic)
        self.reports = Reports()
        self.reconciler = Reconciler(Dependencies(self.cluster, self.store, self.reports, images=IMAGES, now=lambda: NOW, **settings))

    def submit(self, **changes: Any) -> None:
        self.store.put_job(self.cluster.put(job_object(**changes)))

    def look(self) -> float | None:
        return asyncio.run(self.reconciler.reconcile(KEY))

    def status(self) -> dict[str, Any]:
        [job] = self.cluster.of("TrainingJob")
        return dict(job.get("status", {}))

    def pod(self, index: int, **status: Any) -> Child:
        """The worker's pod, with this as the state of its container."""
        [pod] = [pod for pod in self.cluster.of("Pod") if pod["metadata"]["labels"]["muster.dev/index"] == str(index)]
        if status:
            pod["status"] = {"containerStatuses": [{"name": "trainer", "state": status}]}
        child = child_of(self.cluster.put(pod))
        assert child
        self.store.put_child(child)
        return child

    def says(self, child: Child, **report: Any) -> None:
        fields = {"job": KEY, "pod": child.view.name, "role": "worker", "index": child.view.index, "inPlace": True, **report}
        assert self.reports.record(child.view.uid, decode(Report, fields), NOW)


def test_the_status_is_written_before_anything_is_made() -> None:
    world = World()
    world.submit()
    world.look()
    writes = [asked for asked in world.cluster.asked if asked[0] in ("status", "create") and asked[1] != "Event"]
    assert writes == [("status", "TrainingJob"), ("create", "Service"), ("create", "Pod"), ("create", "Pod")]


def test_nothing_is_made_when_the_status_cannot_be_written() -> None:
    world = World()
    world.submit()

    def conflict(verb: str, kind: str) -> None:
        if verb == "status":
            raise ConflictError("the job has changed")

    world.cluster.before = conflict
    with pytest.raises(ConflictError):
        world.look()
    assert not [asked for asked in world.cluster.asked if asked[0] == "create"]


def test_a_pass_that_broke_off_anywhere_is_finished_by_the_next() -> None:
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
                world.look()
        assert len(world.cluster.of("Pod")) == 3, f"request {broken}"
        assert len(world.cluster.of("Service")) == len(world.cluster.of("NetworkPolicy")) == 1
        assert world.status()["attempt"] == 0


def test_the_place_of_a_lost_pod_is_filled_as_soon_as_it_is_gone_though_another_pod_is_kept() -> None:
    world = World()
    world.submit()
    world.look()
    running = {"startedAt": "2026-11-21T12:00:00Z"}
    kept, lost = world.pod(0, running=running), world.pod(1, running=running)
    world.says(kept, attempt=0)
    world.look()
    world.pod(1, terminated={"exitCode": 137, "finishedAt": "2026-11-21T12:00:01Z"})
    world.look()
    assert world.status()["attempt"] == 1
    world.says(kept, attempt=1, waiting=True)
    world.look()
    world.store.drop_child(KEY, lost.view.uid)  # so says the watch
    world.look()
    assert {world.pod(index).view.attempt for index in (0, 1)} == {0, 1}
    assert world.pod(0).view.uid == kept.view.uid


def test_a_pass_over_an_unchanged_job_asks_nothing() -> None:
    world = World()
    world.submit()
    world.look()
    world.look()  # writes down which pods they are
    world.cluster.asked.clear()
    world.look()
    assert world.cluster.asked == []


def test_a_job_that_is_being_deleted_loses_its_pods_and_gets_no_others() -> None:
    world = World()
    world.submit()
    world.look()
    [job] = world.cluster.of("TrainingJob")
    job["metadata"] |= {"deletionTimestamp": "2026-11-21T12:00:00Z", "finalizers": ["example.com/theirs"]}
    world.store.put_job(world.cluster.put(job))
    world.cluster.asked.clear()
    assert world.look() is None
    assert world.cluster.asked == [("delete", "Pod"), ("delete", "Pod")]
    for uid in [child.view.uid for child in world.store.children(KEY)]:
        world.store.drop_child(KEY, uid)  # as the watch reports
    world.cluster.asked.clear()
    assert world.look() is None
    assert world.cluster.asked == []


def test_a_job_deleted_since_the_watch_spoke_of_it_gets_nothing() -> None:
    world = World()
    world.submit()
    world.cluster.objects.clear()
    assert world.look() is None
    assert world.cluster.objects == {}


def test_nothing_is_made_for_a_job_that_has_changed_since_the_watch_spoke_of_it() -> None:
    world = World()
    world.submit()

    def no_pods(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Pod"):
            raise UnavailableError("no answer")

    world.cluster.before = no_pods
    with pytest.raises(UnavailableError):
        world.look()
    world.cluster.before = lambda verb, kind: None
    [job] = world.cluster.of("TrainingJob")
    world.cluster.put({**job, "metadata": {**job["metadata"], "generation": 2}, "spec": {**job["spec"], "suspend": True}})
    with pytest.raises(ConflictError):
        world.look()
    world.look()
    assert world.cluster.of("Pod") == []


def test_pods_of_an_earlier_job_of_the_name_are_waited_for_and_not_taken_over() -> None:
    world = World()
    world.submit(workers=1)
    world.look()
    [old] = world.cluster.of("Pod")
    world.cluster.objects.pop(("TrainingJob", "default", "digits"))
    world.cluster.objects.pop(("Service", "default", "digits"))
    world.submit(workers=1)
    with pytest.raises(ConflictError, match="digits-worker-0"):
        world.look()
    assert world.cluster.of("Pod") == [old]
    world.cluster.objects.pop(("Pod", "default", "digits-worker-0"))
    world.look()
    [new] = world.cluster.of("Pod")
    assert new["metadata"]["ownerReferences"][0]["uid"] != old["metadata"]["ownerReferences"][0]["uid"]


def test_after_one_refusal_the_others_are_not_tried_and_the_next_pass_tells() -> None:
    world = World()
    world.submit(workers=200)

    def refuse(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Pod"):
            raise RefusedError("exceeded quota: few")

    world.cluster.before = refuse
    with pytest.raises(RefusedError):
        world.look()
    assert world.cluster.asked.count(("create", "Pod")) <= 32
    with pytest.raises(RefusedError):
        world.look()
    [ready] = [each for each in world.status()["conditions"] if each["type"] == "Ready"]
    assert (ready["reason"], ready["message"]) == ("ReplicasRefused", "exceeded quota: few")


def test_the_image_of_a_job_stays_what_it_was_when_it_began() -> None:
    world = World()
    world.submit()
    world.look()
    assert world.status()["image"] == "torch"
    images = replace(IMAGES, trainers={**IMAGES.trainers, "PyTorch": "newer"})
    newer = Reconciler(Dependencies(world.cluster, world.store, Reports(), images=images, now=lambda: NOW))
    for pod in world.cluster.of("Pod"):
        world.cluster.objects.pop(("Pod", "default", pod["metadata"]["name"]))
        world.store.drop_child(KEY, pod["metadata"]["uid"])
    for _ in range(4):
        asyncio.run(newer.reconcile(KEY))
    assert {pod["spec"]["containers"][0]["image"] for pod in world.cluster.of("Pod")} == {"torch"}


def test_the_template_of_the_installation_lies_under_the_jobs_own() -> None:
    below = {"spec": {"nodeSelector": {"pool": "spot"}, "priorityClassName": "low", "containers": [{"name": "trainer", "tty": True}]}}
    world = World(defaults=JobDefaults(template=below))
    own = {"spec": {"nodeSelector": None, "priorityClassName": "high", "containers": [{"name": "trainer", "securityContext": None}]}}
    world.submit(roles={"worker": {"replicas": 1, "template": own}})
    world.look()
    [pod] = world.cluster.of("Pod")
    [container] = pod["spec"]["containers"]
    assert "nodeSelector" not in pod["spec"]
    assert pod["spec"]["priorityClassName"] == "high"
    assert container["tty"] is True
    assert "securityContext" not in container, "a null of the user's reaches what is rendered, through the installation's template"


def test_a_claim_that_is_missing_is_said_and_looked_at_again_until_it_is_there() -> None:
    world = World()
    world.submit(checkpoint={"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}})
    world.look()
    assert shared(world) == ("False", "ClaimNotFound")
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "default", "name": "ckpt"},
        "spec": {"accessModes": ["ReadWriteMany"]},
    }
    world.cluster.put(claim)
    world.look()
    assert shared(world) == ("True", "ManyNodes")
    asked = world.cluster.asked.count(("get", "PersistentVolumeClaim"))
    world.look()
    assert world.cluster.asked.count(("get", "PersistentVolumeClaim")) == asked


def shared(world: World) -> tuple[str, str]:
    [condition] = [each for each in world.status()["conditions"] if each["type"] == "StorageShared"]
    return condition["status"], condition["reason"]


def test_a_pass_makes_so_many_replicas_and_the_next_one_the_rest() -> None:
    world = World()
    world.submit(workers=200)
    counts = []
    for _ in range(4):
        later = world.look()
        counts.append(len(world.cluster.of("Pod")))
        assert (later == 0.0) == (counts[-1] < 200), "it comes back at once while some are left"
    assert counts == [64, 128, 192, 200]
    assert len({pod["metadata"]["name"] for pod in world.cluster.of("Pod")}) == 200


@pytest.mark.parametrize("strategy", ["DDP", "MultiWorkerMirrored"])
def test_a_pass_makes_its_plans_once_however_many_replicas_it_makes(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    def plans_made(workers: int) -> int:
        world = World()
        world.submit(workers=workers, strategy=strategy)
        kind = type(strategy_of(strategy))
        plan, made = kind.plan, []
        with monkeypatch.context() as patch:
            patch.setattr(kind, "plan", lambda self, spec: made.append(spec) or plan(self, spec))
            world.look()
        assert len(world.cluster.of("Pod")) == workers
        return len(made)

    assert plans_made(4) == plans_made(60)


def test_a_job_may_recover_once_its_replicas_have_run() -> None:
    world = World()
    world.submit(workers=1)
    world.look()
    assert not world.reconciler.recovers(KEY)
    world.pod(0, running={"startedAt": "2026-11-21T12:00:00Z"})
    world.look()
    assert world.reconciler.recovers(KEY)
    assert not world.reconciler.recovers("default/nobody")
