"""The spans of a job's trace: what each change of the status finishes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from muster.api.job import TrainingJob
from muster.api.status import TrainingJobStatus
from muster.api.times import EARLIEST, LATEST
from muster.lifecycle.observed import Observed, ReplicaPhase, ReplicaView
from muster.tools.tracing import spans
from muster.tools.tracing.spans import JobSpan, job_attributes, span_id, spans_between, trace_id, traceparent
from muster_contract.events import MAX_ATTEMPT, MAX_SECONDS
from muster_contract.reports import Report, TerminationMessage
from muster_contract.wire import LARGEST_INT, decode

ROOT = Path(__file__).resolve().parents[4]
CREATED = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOW = CREATED + timedelta(hours=1)
RUNNING: dict[str, Any] = {"phase": "Running", "startTime": CREATED, "attempts": [{"attempt": 0, "startTime": CREATED}]}


def at(seconds: float) -> datetime:
    return CREATED + timedelta(seconds=seconds)


def job(status: dict[str, Any], **metadata: Any) -> TrainingJob:
    fields = {"name": "digits", "namespace": "team", "uid": "u", "creationTimestamp": CREATED, **metadata}
    document = {"metadata": fields, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}}
    return TrainingJob.model_validate(document).with_status(TrainingJobStatus.from_wire(status))


def finished(old: dict[str, Any], new: dict[str, Any], observed: Observed = Observed()) -> list[JobSpan]:
    return list(spans_between(job(old), TrainingJobStatus.from_wire(new), observed, NOW))


def shown(old: dict[str, Any], new: dict[str, Any], observed: Observed = Observed()) -> list[tuple[str, float, float]]:
    """Name, begin and end of each span, in seconds since the job's creation."""
    return [
        (span.name, (span.begin - CREATED).total_seconds(), (span.end - CREATED).total_seconds()) for span in finished(old, new, observed)
    ]


def record(attempt: int, begin: float, end: float | None = None, **fields: Any) -> dict[str, Any]:
    ended = {} if end is None else {"endTime": at(end)}
    return {"attempt": attempt, "startTime": at(begin), **ended, **fields}


def broken(**fields: Any) -> dict[str, Any]:
    failure = {"class": "Infrastructure", "reason": "ProcessKilled", "replica": "worker-1", "failedTime": at(9), "message": "signal 9"}
    return record(0, 1, 10, **{**failure, "settled": True, **fields})


ALL = {"detectSeconds": 1, "scheduleSeconds": 2, "startSeconds": 3, "loadSeconds": 0, "firstStepSeconds": 0.5}
PARTLY = {"detectSeconds": 0, "scheduleSeconds": 2}
COMPLETE = {"phase": "Succeeded", "completionTime": at(30), "startTime": at(3)}
STARTED = {"startTime": at(3)}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param({}, STARTED, [("queued", 0, 3)], id="all replicas run"),
        pytest.param({}, {**COMPLETE, "startTime": None}, [("queued", 0, 30), ("job", 0, 30)], id="it ends before it ran"),
        pytest.param(STARTED, COMPLETE, [("job", 0, 30)], id="it ends"),
        pytest.param(COMPLETE, {**COMPLETE, "message": "other"}, [], id="it has ended"),
        pytest.param(
            {**STARTED, "attempts": [record(0, 1)]}, {**STARTED, "attempts": [broken(settled=False)]}, [], id="the cause may change"
        ),
        pytest.param(
            {**STARTED, "attempts": [broken(settled=False)]},
            {**STARTED, "attempts": [broken(), record(1, 11)]},
            [("attempt", 1, 10)],
            id="the cause is settled",
        ),
        pytest.param(
            {**STARTED, "attempts": [broken(settled=False)]},
            {**COMPLETE, "attempts": [broken(settled=False)]},
            [("attempt", 1, 10), ("job", 0, 30)],
            id="the job ends before the cause is settled",
        ),
        pytest.param(
            {**STARTED, "attempts": [record(0, 1)]},
            {**STARTED, "attempts": [record(0, 1, phases=ALL)]},
            [("detect", 1, 2), ("schedule", 2, 4), ("start", 4, 7), ("firstStep", 7, 7.5)],
            id="the first step",
        ),
        pytest.param(
            {**STARTED, "attempts": [broken(), record(1, 11)]},
            {**STARTED, "attempts": [broken(), record(1, 11, phases=ALL)]},
            [("recovery", 9, 15.5), ("detect", 9, 10), ("schedule", 10, 12), ("start", 12, 15), ("firstStep", 15, 15.5)],
            id="the first step after a failure",
        ),
        pytest.param(
            {**STARTED, "attempts": [record(0, 1)]},
            {**STARTED, "attempts": [record(0, 1, phases=PARTLY)]},
            [],
            id="a program that has reported no step yet",
        ),
        pytest.param(
            {**STARTED, "attempts": [record(0, 1, phases=PARTLY)]},
            {**STARTED, "attempts": [record(0, 1, 20, phases=PARTLY, reason="Completed", settled=True)]},
            [("schedule", 1, 3), ("attempt", 1, 20)],
            id="a program that reports no steps",
        ),
        pytest.param(
            {**STARTED, "attempts": [record(0, 1, 10, reason="Suspended", settled=True)]},
            {**STARTED, "attempts": [record(0, 1, 10, reason="Suspended", settled=True), record(1, 25)]},
            [("suspended", 10, 25)],
            id="it goes on after a suspension",
        ),
    ],
)
def test_a_change_finishes_these_spans(old: dict[str, Any], new: dict[str, Any], expected: list[tuple[str, float, float]]) -> None:
    assert shown(old, new) == expected
    assert shown(new, new) == []


def reporting(**fields: Any) -> Observed:
    """One worker with this report."""
    base = {"job": "team/digits", "pod": "p", "role": "worker", "index": 0, "attempt": 0}
    report = decode(Report, {**base, **fields})
    return Observed((ReplicaView("p", "uid", "worker", 0, 0, ReplicaPhase.RUNNING, CREATED, report=report),))


def with_commit(step: int, **fields: Any) -> dict[str, Any]:
    return {**RUNNING, "checkpoint": {"step": step, "path": "x", "committedAt": at(10), "seconds": 2, **fields}}


def reported_commit(seconds: float) -> Observed:
    return reporting(checkpoint={"step": 5, "path": "x", "time": at(seconds).timestamp()})


def test_a_save_ends_when_its_commit_was_reported_to_the_millisecond() -> None:
    assert shown(RUNNING, with_commit(5)) == [("save", 8, 10)]
    assert shown(RUNNING, with_commit(5), reported_commit(10.75)) == [("save", 8.75, 10.75)]
    words = TerminationMessage(code=0, commit=decode(Report, {**_BASE, "checkpoint": {"step": 5, "time": at(10.5).timestamp()}}).checkpoint)
    ended = Observed((ReplicaView("p", "uid", "worker", 0, 0, ReplicaPhase.FAILED, CREATED, termination=words),))
    assert shown(RUNNING, with_commit(5), ended) == [("save", 8.5, 10.5)]
    assert shown(with_commit(5), with_commit(5, verified=True)) == []
    assert shown(RUNNING, with_commit(5, verified=True)) == []  # of an earlier job


_BASE = {"job": "team/digits", "pod": "p", "role": "worker", "index": 0, "attempt": 0}


@pytest.mark.parametrize(("reported", "expected"), [(-1e9, (0, 0)), (1e9, (3598, 3600)), (1.0, (0, 1))])
def test_a_wrong_clock_cannot_put_a_span_before_the_attempt_or_into_the_future(reported: float, expected: tuple[float, float]) -> None:
    time = max(0.0, at(0).timestamp() + reported)
    observed = reporting(checkpoint={"step": 5, "path": "x", "time": time})
    assert shown(RUNNING, with_commit(5), observed) == [("save", *expected)]


def with_metrics(**metrics: float) -> dict[str, Any]:
    return {**RUNNING, "progress": {"step": 5, "metrics": metrics}}


def test_an_evaluation_has_a_span_when_its_results_are_new() -> None:
    observed = reporting(evaluation={"step": 5, "metrics": {"accuracy": 0.5}, "time": at(20).timestamp(), "seconds": 4})
    assert shown(RUNNING, with_metrics(accuracy=0.5), observed) == [("evaluation", 16, 20)]
    assert shown(with_metrics(accuracy=0.5, loss=1), with_metrics(accuracy=0.5), observed) == []  # a termination message has only a part
    [one] = finished(RUNNING, with_metrics(accuracy=0.5), observed)
    [other] = finished(with_metrics(accuracy=0.5), with_metrics(accuracy=0.5, loss=1), observed)
    assert one.key != other.key


def test_a_failed_attempt_and_a_failed_job_are_errors_with_class_and_reason() -> None:
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "InfrastructureLimitExceeded",
        "message": "no budget",
        "lastTransitionTime": NOW,
    }
    old = {**STARTED, "attempts": [record(0, 1)]}
    attempt, whole = finished(old, {**COMPLETE, "phase": "Failed", "conditions": [failed], "attempts": [broken(node="node-7")]})
    assert (attempt.error, attempt.attributes["error.type"]) == ("signal 9", "ProcessKilled")
    assert (attempt.attributes["muster.failure.class"], attempt.attributes["k8s.node.name"]) == ("Infrastructure", "node-7")
    assert (whole.error, whole.attributes["error.type"]) == ("no budget", "InfrastructureLimitExceeded")


def test_text_of_tenants_is_escaped_and_cut() -> None:
    [attempt] = finished({**STARTED, "attempts": [record(0, 1)]}, {**STARTED, "attempts": [broken(message="\x1b[31m" + "x" * 4000)]})
    assert attempt.error is not None
    assert attempt.error.startswith("\\x1b[31m")
    assert len(attempt.error) == 256


@pytest.mark.parametrize("time", [EARLIEST, LATEST])
def test_a_forged_status_makes_no_span_that_cannot_be_encoded(time: datetime) -> None:
    """It has the earliest or latest times, and the largest numbers, that a status is read with."""
    forged = {"startTime": time, "completionTime": time, "phase": "Succeeded", "progress": {"step": LARGEST_INT}}
    phases = dict.fromkeys(ALL, MAX_SECONDS)
    attempts = [broken(failedTime=time, endTime=time), {**record(MAX_ATTEMPT - 1, 1), "startTime": time, "phases": phases}]
    commit = {"step": LARGEST_INT, "path": "x", "committedAt": time, "seconds": MAX_SECONDS}
    made = finished({"attempts": [record(0, 1)]}, {**forged, "attempts": attempts, "checkpoint": commit})
    assert {span.name for span in made} >= {"job", "attempt", "recovery", "save", "queued"}
    assert all(CREATED <= span.begin <= span.end <= NOW for span in made)
    assert all(value < 2**63 for span in made for value in span.attributes.values() if isinstance(value, int))


def test_ids_follow_from_the_uid_and_differ_between_jobs() -> None:
    assert traceparent("u") == f"00-{trace_id('u'):032x}-{span_id('u', 'job'):016x}-01"
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", traceparent("u"))
    assert trace_id("u") != trace_id("v")
    assert span_id("u", "job") != span_id("v", "job")


def test_the_page_names_every_span_and_every_attribute() -> None:
    """docs/tracing.md, against the words in the code."""
    source = Path(spans.__file__).read_text()
    attributes = set(re.findall(r'"((?:muster|k8s|error)\.[a-z_.]+)"', source)) | set(job_attributes(job({})))
    names = {spans.JOB, spans.QUEUED, spans.SUSPENDED, spans.ATTEMPT, spans.RECOVERY, spans.SAVE, spans.EVALUATION, *spans.PHASES.values()}
    page = (ROOT / "docs" / "tracing.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`([A-Za-z0-9_.]+)`", row[1])}
    assert documented >= names
    mentioned = set(re.findall(r"`((?:muster|k8s|error)\.[a-z_.]+)`", page))
    assert mentioned == attributes
