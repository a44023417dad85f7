"""The replies of the operator's channel."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from muster.channel.reports import Reports
from muster.control.admission import Admission
from muster.control.job_store import Store
from muster.control.reconciler import CALM_SECONDS
from muster.kubernetes.queue import WorkQueue
from muster.operator.channel import GATHER_SECONDS, PROGRESS_SECONDS, ClusterChannel
from muster.operator.views import child_of
from muster.render.defaults import JobDefaults
from muster.render.images import Images
from muster_contract.reports import ProcessReport, ProcessState, Report, SnapshotServer
from muster_contract.wire import encode
from tests.unit.operator.test_operator import Unmeasured, pod

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SPEC = {
    "strategy": "FSDP",
    "trainer": {"task": "digits"},
    "roles": {"worker": {"replicas": 1}},
    "checkpoint": {"memory": {"sizeMib": 64}},
    "recovery": {"spares": 1},
}


def admit(_: Any) -> Any:
    raise AssertionError("the common reply needs no parsed job")


async def request(*_: Any, **__: Any) -> Any:
    raise AssertionError("a reply needs no request")


class Requests:
    request = staticmethod(request)


def test_every_reply_has_grace_seconds() -> None:
    """Without them, a supervisor ends together with its processes, and the job loses its pods."""
    store = Store(time.monotonic)
    store.put_job({"metadata": {"name": "digits", "namespace": "default", "uid": "job", "resourceVersion": "1"}, "status": {"attempt": 0}})
    put_pod(store, 0, owner="job")
    channel = ClusterChannel(Requests(), store, queue=WorkQueue(Unmeasured(), workers=1), reports=Reports(), admit=admit)
    report = Report(job="default/digits", pod="digits-worker-0", role="worker", index=0, attempt=0)
    assert encode(channel.reply_to("uid-0", report)) == {"attempt": 0, "intervalSeconds": 1.0, "graceSeconds": 0.0}


def test_a_running_replica_learns_of_a_node_that_goes_until_the_notice_is_withdrawn() -> None:
    """Without that, the training does not save before its node goes. The job is not parsed for it."""
    notice = {"node": "spot-1", "signal": "cordoned", "meaning": "TakesNoPods", "since": "2026-11-21T12:00:00Z"}
    condition = {"type": "NodesStay", "reason": "NodeTakesNoPods", "message": "", "lastTransitionTime": "2026-11-21T12:00:00Z"}
    store = Store(time.monotonic)
    put_pod(store, 0, owner="job")
    channel = ClusterChannel(Requests(), store, queue=WorkQueue(Unmeasured(), workers=1), reports=Reports(), admit=admit)
    report = Report(job="default/digits", pod="digits-worker-0", role="worker", index=0, attempt=0)

    def notice_in_reply(**status: Any) -> Any:
        metadata = {"name": "digits", "namespace": "default", "uid": "job", "resourceVersion": "1"}
        store.put_job({"metadata": metadata, "status": {"attempt": 0, **status}})
        return encode(channel.reply_to("uid-0", report)).get("notice")

    found = {"node": "spot-1", "signal": "cordoned", "since": NOW.timestamp(), "goes": False}
    assert notice_in_reply(nodeNotices=[notice], conditions=[{**condition, "status": "False"}]) == found
    assert notice_in_reply(nodeNotices=[notice], conditions=[{**condition, "status": "True"}]) is None, "no node of the world"
    assert notice_in_reply(nodeNotices=["forged"], conditions="forged") is None
    assert notice_in_reply() is None


def put_pod(store: Store, number: int, *, owner: str, namespace: str = "default") -> None:
    replica = pod(number)
    replica["metadata"] |= {"namespace": namespace, "ownerReferences": [{"uid": owner, "controller": True}]}
    child = child_of(replica)
    assert child is not None
    store.put_child(child)


def test_a_forged_status_gives_a_spare_no_key_of_another_job() -> None:
    """The world in it names the pod of another tenant."""
    store, reports = Store(time.monotonic), Reports()
    members = [{"role": "worker", "index": index, "uid": f"uid-{index}"} for index in (0, 1)]
    world = {"attempt": 0, "size": 2, "createdTime": "2026-11-21T12:00:00Z", "members": members}
    record = {"attempt": 0, "startTime": "2026-11-21T12:00:00Z"}
    metadata = {"name": "digits", "namespace": "default", "uid": "job", "resourceVersion": "1"}
    store.put_job({"metadata": metadata, "spec": SPEC, "status": {"attempt": 0, "world": world, "attempts": [record]}})
    store.put_job({"metadata": {**metadata, "namespace": "other", "uid": "other"}, "spec": SPEC})
    put_pod(store, 0, owner="job")
    put_pod(store, 1, owner="other", namespace="other")
    put_pod(store, 2, owner="job")
    for number in (0, 1):
        server = SnapshotServer(7000 + number, f"key {number}")
        reports.record(f"uid-{number}", Report(job="", pod="", role="worker", index=0, attempt=0, snapshot_server=server), NOW)
    jobs = Admission(Images({"PyTorch": "torch"}, supervisor="operator"), JobDefaults())
    queue = WorkQueue(Unmeasured(), workers=1)
    channel = ClusterChannel(Requests(), store, queue=queue, reports=reports, admit=lambda obj: jobs.admit(obj).job)
    spare = Report(job="default/digits", pod="digits-worker-2", role="worker", index=2, attempt=0, waiting=True)
    assert [source.server.key for source in channel.reply_to("uid-2", spare).snapshot_sources] == ["key 0"]


class Delays:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def add_after(self, key: str, seconds: float, **_: Any) -> None:
        self.seconds.append(seconds)


def test_a_pass_follows_at_once_when_a_process_is_stopped() -> None:
    store, reports, delays = Store(time.monotonic), Reports(), Delays()
    store.put_job({"metadata": {"name": "digits", "namespace": "default", "uid": "job", "resourceVersion": "1"}, "status": {"attempt": 0}})
    put_pod(store, 0, owner="job")
    channel = ClusterChannel(Requests(), store, queue=delays, reports=reports, admit=admit)
    for sequence, state in enumerate([ProcessState.RUNNING, ProcessState.RUNNING, ProcessState.STOPPED, ProcessState.STOPPED]):
        process = ProcessReport(state=state)
        report = Report(
            job="default/digits", pod="digits-worker-0", role="worker", index=0, attempt=0, sequence=sequence, processes=(process,)
        )
        reports.record("uid-0", report, NOW)
        channel.wake("uid-0")
    assert delays.seconds == [CALM_SECONDS, PROGRESS_SECONDS, GATHER_SECONDS, CALM_SECONDS]
