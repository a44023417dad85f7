"""The operator's channel and a supervisor's reporter, over HTTPS on loopback: every kind of report, and every kind of reply.

Each side has tests of its own against a stub of the other side. These tests have no stub between the two.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from muster.channel import coordination
from muster.channel.certificate import new_certificate
from muster.channel.rate_limits import REPORTS_PER_POD
from muster.channel.reports import Reports
from muster.control.admission import Admission
from muster.control.job_store import Store
from muster.kubernetes.objects import Object
from muster.kubernetes.queue import WorkQueue
from muster.operator.channel import ClusterChannel
from muster.operator.views import child_of
from muster.render.defaults import JobDefaults
from muster.render.images import default_images
from muster_contract.environment import ReplicaEnvironment
from muster_contract.events import Commit, Evaluation, Fingerprint, Pace, Resumed
from muster_contract.notices import Notice, NoticeReason
from muster_contract.reports import Marks, ProcessReport, Progress, Reply, Report, Stack, TerminationMessage
from muster_contract.wire import encode
from muster_trainer.supervisor import reporting
from muster_trainer.supervisor.reporting import Reporter, report_of
from muster_trainer.supervisor.succession import Succession
from muster_trainer.supervisor.termination import termination_of
from tests.support.waiting import wait_until
from tests.unit.channel.test_tokens import ApiServer, token
from tests.unit.control.control_worlds import job_object
from tests.unit.operator.test_operator import Unmeasured, pod

UID = "pod-0"
START, END = "2026-11-21T10:00:00Z", "2026-11-21T10:01:00Z"
MEMBERS = [{"role": "worker", "index": 0, "uid": UID}, {"role": "worker", "index": 1, "uid": "pod-1"}]
RUNS = {
    "phase": "Running",
    "attempt": 0,
    "attempts": [{"attempt": 0, "startTime": START}],
    "world": {"attempt": 0, "size": 2, "createdTime": START, "readyTime": START, "members": MEMBERS},
}
LOST_PEER = {"attempt": 0, "startTime": START, "endTime": END, "failedTime": END, "class": "Infrastructure", "reason": "PeerLost"}
EVICTED = {**LOST_PEER, "class": "Preemption", "reason": "Evicted"}
HUNG = {**LOST_PEER, "reason": "Hang"}
COMPLETED = {"attempt": 0, "startTime": START, "endTime": END, "reason": "Completed"}
GRACE = 120.0
"""The grace period in seconds that a job has by default."""


def restarts(ended: dict[str, Any], *, ready: bool = False) -> dict[str, Any]:
    """The status of a job whose attempt 0 has ended and whose attempt 1 has begun. `ready`: all members have acknowledged it."""
    members = MEMBERS if ready else [{**member, "awaited": True} for member in MEMBERS]
    world = {"attempt": 1, "size": 2, "createdTime": END, "members": members, **({"readyTime": END} if ready else {})}
    return {"phase": "Recovering", "attempt": 1, "attempts": [ended, {"attempt": 1, "startTime": END}], "world": world}


class Operator:
    """The channel of an operator with one job, `default/digits`. It serves in a thread. The API server is a stub."""

    def __init__(self) -> None:
        self.reports = Reports()
        self.refused: list[tuple[str, float]] = []
        self.certificate = new_certificate("localhost", datetime.now(UTC))
        self._store = Store(time.monotonic)
        self._version = 0
        self.set_status({})
        replica = pod(0)
        replica["metadata"] |= {"uid": UID, "ownerReferences": [{"uid": "job", "controller": True}]}
        child = child_of(replica)
        assert child is not None
        self._store.put_child(child)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Operator:
        self._thread.start()
        self.url = f"https://localhost:{self._run(self._start())}"
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._channel.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set_status(self, status: dict[str, Any]) -> None:
        """Changes the status, as the reconciler does."""
        self._version += 1
        job = job_object()
        job["metadata"] |= {"uid": "job", "generation": 1, "creationTimestamp": START, "resourceVersion": str(self._version)}
        self._store.put_job({**job, "status": status})

    def exhaust_rate(self, seconds: float) -> None:
        """Makes the pod exceed its rate of reports for this time."""
        self._channel._limits._pods[UID].bucket.tokens = 1 - REPORTS_PER_POD * seconds

    @property
    def report(self) -> Report | None:
        """The newest report of the replica, as it was decoded."""
        received = self.reports.of(UID)
        return received.report if received else None

    async def _start(self) -> int:
        admission = Admission(default_images(), JobDefaults())

        def admit(obj: Object) -> Any:
            return admission.admit(obj).job

        queue = WorkQueue(Unmeasured(), workers=1)
        queue.open()
        self._channel = ClusterChannel(
            ApiServer(),
            self._store,
            queue=queue,
            reports=self.reports,
            admit=admit,
            on_refusal=lambda reason: self.refused.append((reason, time.monotonic())),
        )
        return await self._channel._listener.start("127.0.0.1", 0, self.certificate.context())

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)


class Inbox:
    """The supervisor's inbox without signal handlers."""

    def __init__(self) -> None:
        self.stops = 0
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        os.write(self._write, b"\0")

    def drain(self) -> None:
        os.set_blocking(self._read, False)
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Supervisor:
    """The reporting half of a supervisor, without processes."""

    def __init__(self, operator: Operator, folder: Path) -> None:
        self.token_file = folder / "token"
        self.token_file.write_text(token(UID))
        replica = ReplicaEnvironment(
            job="default/digits",
            job_uid="job",
            job_created=datetime(2026, 11, 21, tzinfo=UTC),
            strategy="DDP",
            role="worker",
            index=0,
            attempt=0,
            processes=1,
            trainer="{}",
            pod_name="digits-worker-0",
            pod_uid=UID,
            coordinator=operator.url,
            coordinator_authority=operator.certificate.certificate,
            token_file=self.token_file,
        )
        self.messages: list[str] = []
        self.inbox = Inbox()
        self.reporter = Reporter(replica, self.messages.append, self.inbox.wake)
        self.first = report_of(replica)
        self._operator = operator

    def send(self, report: Report) -> Report:
        """Sends a report and returns it as the operator has decoded it."""
        self.reporter.update(report)
        return self.until_received(lambda received: replace(received, sequence=0) == report)

    def until_received(self, condition: Callable[[Report], bool]) -> Report:
        def matching() -> Report | None:
            report = self._operator.report
            return report if report is not None and condition(report) else None

        return wait_until(matching, f"the report; {self.messages}", 60)

    def until_reply(self, condition: Callable[[Reply], bool]) -> Reply:
        def matching() -> Reply | None:
            reply = self.reporter.reply
            return reply if reply is not None and condition(reply) else None

        return wait_until(matching, f"the reply; {self.messages}", 60)

    def close(self) -> None:
        self.reporter.finish(self.first, seconds=60)
        self.reporter._connection.close()
        self.inbox.close()


@pytest.fixture
def operator() -> Iterator[Operator]:
    with Operator() as serving:
        yield serving


@pytest.fixture
def supervisor(operator: Operator, tmp_path: Path) -> Iterator[Supervisor]:
    reporting_one = Supervisor(operator, tmp_path)
    yield reporting_one
    reporting_one.close()


def running(report: Report) -> Report:
    """A report that has something in every field that a running replica fills in."""
    return replace(
        report,
        phase="Training",
        processes=(ProcessReport(rank=0, pid=4711, state="Running"),),
        progress=Progress(step=120, total_steps=345, epoch=5, loss="nan", samples_per_second=5120.0, updated_at=1795260507.1),
        checkpoint=Commit(step=100, path="step-00000100", time=1795260506.0, seconds=0.5, blocked_seconds=0.1, bytes=7),
        resumed=Resumed(step=50, time=1795260500.0, path="step-00000050"),
        evaluation=Evaluation(step=100, time=1795260506.5, metrics={"accuracy": 0.5}),
        fingerprints=(Fingerprint(framework="torch", version="2.15.0", libraries={"numpy": "2.0"}, devices=("cpu",)),),
        notices=(Notice("a notice", NoticeReason.INPUT_STALLED),),
        marks=Marks(restoring=1795260499.0, resumed=1795260500.0, stepped=1795260501.0),
        saved_seconds=0.5,
        idle_seconds=0.25,
        ranks=(Pace(step=120, seconds=0.02, own_seconds=0.01),),
    )


def test_a_replica_reports_its_start_its_progress_and_its_end(operator: Operator, supervisor: Supervisor) -> None:
    supervisor.send(supervisor.first)
    operator.set_status(RUNS)
    report = running(supervisor.first)
    supervisor.send(report)
    failed = replace(report.processes[0], state="Exited", exit_code=None, signal="SIGKILL")
    stack = Stack(attempt=0, rank=0, state="sleeping", frames=("recv (torch/distributed.py:7)",), waits=True)
    supervisor.send(replace(report, processes=(failed,), stacks=(stack,)))
    words = TerminationMessage(
        code=137, reason="ProcessKilled", message="killed", attempt=0, rank=0, signal="SIGKILL", step=120, loss="nan"
    )
    final = replace(report, termination=replace(words, commit=report.checkpoint, evaluation=report.evaluation, ended_at=1795260509.5))
    supervisor.reporter.finish(final, seconds=60)
    assert operator.report is not None
    assert replace(operator.report, sequence=0) == final
    assert supervisor.messages == []
    assert operator.refused == []


ATTEMPT_0 = Reply(attempt=0, interval_seconds=0.0, grace_seconds=0.0)
ATTEMPT_1 = replace(ATTEMPT_0, attempt=1)


@pytest.mark.parametrize(
    ("status", "reply"),
    [
        ({}, ATTEMPT_0),
        (RUNS, ATTEMPT_0),
        (restarts(LOST_PEER), ATTEMPT_1),
        (restarts(EVICTED), replace(ATTEMPT_1, grace_seconds=GRACE)),
        (restarts(HUNG), replace(ATTEMPT_1, dump=True)),
        ({**RUNS, "attempts": [LOST_PEER]}, replace(ATTEMPT_0, end=True)),
        ({**RUNS, "attempts": [HUNG]}, replace(ATTEMPT_0, end=True, dump=True)),
        ({**RUNS, "phase": "Failed", "attempts": [LOST_PEER]}, replace(ATTEMPT_0, end=True)),
        ({**RUNS, "phase": "Succeeded", "attempts": [COMPLETED]}, replace(ATTEMPT_0, end=True, succeeded=True, grace_seconds=GRACE)),
    ],
    ids=["first-report", "runs", "peer-lost", "evicted", "hang", "no-successor", "hang-without-successor", "failed", "succeeded"],
)
def test_a_running_replica_gets_the_reply_that_the_status_gives(
    operator: Operator, supervisor: Supervisor, status: dict[str, Any], reply: Reply
) -> None:
    """Every reply names a grace period. A supervisor treats a reply without one as that of an operator that cannot restart in place."""
    operator.set_status(status)
    supervisor.send(running(supervisor.first))
    assert wait_until(lambda: supervisor.reporter.replied and supervisor.reporter.reply, f"a reply; {supervisor.messages}", 60) == reply
    assert 0 < supervisor.reporter.interval < 1


def ended(supervisor: Supervisor, code: int) -> Succession:
    """The supervisor between two attempts, after the processes of attempt 0 ended with `code`."""
    return Succession(supervisor.reporter, supervisor.inbox, termination_of(code, "why", 0), supervisor.first)  # type: ignore[arg-type]


def world_of(succession: Succession) -> tuple[threading.Thread, list[Any]]:
    """A thread that waits for the next world. The list gets what it returns."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(succession.await_world()))
    thread.start()
    return thread, result


@pytest.mark.parametrize(("code", "record"), [(20, LOST_PEER), (21, EVICTED), (137, LOST_PEER)])
def test_a_replica_with_ended_processes_waits_for_the_next_world_and_joins_it(
    operator: Operator, supervisor: Supervisor, code: int, record: dict[str, Any]
) -> None:
    operator.set_status(RUNS)
    supervisor.send(running(supervisor.first))
    supervisor.until_reply(lambda reply: reply.attempt == 0)
    thread, world = world_of(ended(supervisor, code))
    waiting = supervisor.until_received(lambda report: report.waiting)
    assert waiting.termination is not None
    assert (waiting.attempt, waiting.termination.code, waiting.processes) == (0, code, ())
    operator.set_status(restarts(record))
    acknowledged = supervisor.until_received(lambda report: report.attempt == 1)
    assert (acknowledged.waiting, acknowledged.in_place, acknowledged.progress) == (True, True, None)
    operator.set_status(restarts(record, ready=True))
    thread.join(60)
    [environment] = world
    assert (environment["MUSTER_ATTEMPT"], environment["WORLD_SIZE"], environment["PET_NODE_RANK"]) == ("1", "2", "0")
    assert environment["MASTER_ADDR"] == "worker-0.digits.default.svc"


def test_a_replica_that_reported_its_end_joins_without_another_report(operator: Operator, supervisor: Supervisor) -> None:
    operator.set_status(RUNS)
    supervisor.send(running(supervisor.first))
    supervisor.until_reply(lambda reply: reply.attempt == 0)
    thread, world = world_of(ended(supervisor, 20))
    supervisor.until_received(lambda report: report.waiting)
    operator.set_status(restarts(LOST_PEER, ready=True))
    thread.join(60)
    assert world[0]["MUSTER_ATTEMPT"] == "1"
    report = operator.report
    assert report is not None
    assert (report.attempt, report.waiting, report.termination, report.in_place) == (1, False, None, True)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_waiting_replica_ends_when_the_job_ends(operator: Operator, supervisor: Supervisor, phase: str) -> None:
    operator.set_status(RUNS)
    thread, world = world_of(ended(supervisor, 20))
    supervisor.until_received(lambda report: report.waiting)
    operator.set_status({**RUNS, "phase": phase, "attempts": [COMPLETED]})
    thread.join(60)
    assert world == [None]


def test_a_replica_that_reports_too_often_waits_for_retry_after(operator: Operator, supervisor: Supervisor) -> None:
    supervisor.send(supervisor.first)
    operator.exhaust_rate(2.0)
    supervisor.send(replace(supervisor.first, phase="Restoring"))
    times = [*(refused for _, refused in operator.refused), time.monotonic()]
    assert {reason for reason, _ in operator.refused} == {"rate"}
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.9, "Retry-After is 1 s"
    assert supervisor.messages == []


def test_a_refused_report_is_sent_again_without_the_refused_fields(operator: Operator, supervisor: Supervisor) -> None:
    operator.set_status(RUNS)
    words = TerminationMessage(code=10, message="why", attempt=0, exit_code=1)
    malformed = replace(running(supervisor.first), processes=(ProcessReport(rank=-1),), termination=words)
    supervisor.reporter.update(malformed)
    received = supervisor.until_received(lambda report: report.termination is not None)
    assert replace(received, sequence=0) == replace(supervisor.first, phase=None, termination=replace(words, message=""))
    [message] = supervisor.messages
    assert "400 Bad Request" in message
    assert "processes[0].rank: a whole number of at least 0" in message
    assert [reason for reason, _ in operator.refused] == ["invalid"]


def test_a_refused_token_is_read_again_from_its_file(operator: Operator, supervisor: Supervisor) -> None:
    supervisor.token_file.write_text(token(UID, signature="forged"))
    supervisor.reporter.update(supervisor.first)
    wait_until(lambda: supervisor.messages, "the message", 60)
    assert "401" in supervisor.messages[0]
    assert operator.report is None
    supervisor.token_file.write_text(token(UID))
    supervisor.send(replace(supervisor.first, phase="Restoring"))
    assert len(supervisor.messages) == 1


def test_a_supervisor_refuses_a_malformed_reply_and_accepts_the_next_one(
    operator: Operator, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.set_status(RUNS)
    with monkeypatch.context() as patched:
        patched.setattr(coordination, "encode", lambda reply: {**encode(reply), "attempt": "first"})
        supervisor.reporter.update(supervisor.first)
        wait_until(lambda: supervisor.messages, "the message", 60)
        assert "the reply.attempt: a whole number of at least 0" in supervisor.messages[0]
        assert supervisor.reporter.reply is None
    supervisor.reporter.update(replace(supervisor.first, phase="Training"))
    assert supervisor.until_reply(lambda reply: reply.attempt == 0) == ATTEMPT_0


def test_each_side_ignores_the_newer_fields_of_the_other(
    operator: Operator, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = {"fieldOfTheFuture": {"any": ["thing"]}}
    monkeypatch.setattr(coordination, "encode", lambda reply: {**encode(reply), **newer})
    monkeypatch.setattr(reporting, "encode", lambda report: {**encode(report), **newer})
    operator.set_status(RUNS)
    supervisor.send(running(supervisor.first))
    assert supervisor.until_reply(lambda reply: reply.attempt == 0) == ATTEMPT_0
    assert (supervisor.messages, operator.refused) == ([], [])
