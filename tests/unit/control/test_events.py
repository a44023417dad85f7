"""Kubernetes Events: what a user wants to know, each with a name that makes it one Event however often it is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.job import TrainingJob
from muster.api.status import Notice, TrainingJobStatus
from muster.control.events import JobEvent, event_of, events_between
from muster_contract.notices import NoticeReason

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
JOB = TrainingJob.model_validate(
    {"metadata": {"name": "digits", "namespace": "default", "uid": "u"}, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}}
)


def status(**fields: Any) -> TrainingJobStatus:
    return TrainingJobStatus.from_wire(fields)


def record(attempt: int, **fields: Any) -> dict[str, Any]:
    return {"attempt": attempt, "startTime": NOW, **fields}


def told(old: TrainingJobStatus, new: TrainingJobStatus) -> list[str]:
    return [event.reason for event in events_between(old, new)]


BROKEN = record(0, **{"class": "Infrastructure", "reason": "ProcessKilled", "replica": "worker-1", "message": "signal 9"})


def test_a_first_attempt_is_told_as_a_start_and_one_after_a_failure_as_a_restart_with_its_cause() -> None:
    first, second = status(attempts=[record(0)]), status(attempts=[BROKEN, record(1)])
    assert told(status(), first) == ["AttemptStarted"]
    [restart] = events_between(first, second)
    assert (restart.reason, restart.warning) == ("Restarting", True)
    assert "worker-1" in restart.message
    assert "signal 9" in restart.message


def test_storage_that_not_all_pods_can_reach_is_told_once() -> None:
    condition = {"type": "StorageShared", "status": "False", "reason": "OneNode", "message": "one node", "lastTransitionTime": NOW}
    there = status(conditions=[condition])
    [warning] = events_between(status(), there)
    assert (warning.reason, warning.message, warning.warning) == ("StorageNotShared", "one node", True)
    assert told(there, there) == []


def test_a_grace_that_is_too_short_is_told_once_for_each_attempt_and_that_it_sufficed_is_not() -> None:
    def short(holds: str, message: str) -> TrainingJobStatus:
        kind = {"type": "GraceSufficient", "reason": "GraceTooShort", "lastTransitionTime": NOW}
        return status(conditions=[{**kind, "status": holds, "message": message}])

    first, second = short("False", "attempt 0: too short"), short("False", "attempt 1: too short")
    [warning] = events_between(status(), first)
    assert (warning.reason, warning.message, warning.warning) == ("GraceTooShort", "attempt 0: too short", True)
    assert (told(first, first), told(first, second), told(second, short("True", "attempt 2: saved"))) == ([], ["GraceTooShort"], [])


def test_what_stays_the_same_is_not_told() -> None:
    same = status(phase="Running", attempts=[BROKEN, record(1)], notices=[Notice(reason=NoticeReason.INPUT_STALLED, message="careful")])
    assert told(same, same) == []


@pytest.mark.parametrize("reason", NoticeReason)
def test_a_notice_becomes_an_event_with_its_reason_and_only_a_damaged_checkpoint_is_a_warning(reason: NoticeReason) -> None:
    (event,) = events_between(status(), status(notices=[Notice(reason=reason, message="a message")]))
    assert (event.reason, event.message) == (reason.value, "a message")
    assert event.warning == (reason is NoticeReason.CHECKPOINT_DAMAGED)


def test_a_class_that_later_news_correct_is_told() -> None:
    corrected = {**BROKEN, "class": "Preemption", "reason": "Disrupted"}
    assert told(status(attempts=[BROKEN]), status(attempts=[corrected])) == ["FailureCorrected"]


def test_ends_are_told_and_a_bad_one_as_a_warning() -> None:
    assert told(status(phase="Running"), status(phase="Succeeded")) == ["Succeeded"]
    silent = {"type": "Complete", "status": "True", "reason": "CompletedWithoutReport", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    [event] = events_between(status(phase="Running"), status(phase="Succeeded", message="no step", conditions=[silent]))
    assert (event.reason, event.message) == ("Succeeded", "no step")
    [failed] = events_between(status(phase="Running"), status(phase="Failed", message="always fails"))
    assert (failed.reason, failed.message, failed.warning) == ("Failed", "always fails", True)


def test_telling_the_same_twice_makes_one_event_and_another_job_of_the_name_its_own() -> None:
    event = JobEvent("Restarting", "a message", mark="1")
    name = event_of(JOB, event, NOW)["metadata"]["name"]
    assert event_of(JOB, JobEvent("Restarting", "told otherwise", mark="1"), NOW)["metadata"]["name"] == name
    assert event_of(JOB, JobEvent("Restarting", "a message", mark="2"), NOW)["metadata"]["name"] != name
    other = JOB.model_copy(update={"metadata": JOB.metadata.model_copy(update={"uid": "v"})})
    assert event_of(other, event, NOW)["metadata"]["name"] != name


@given(st.text(max_size=3000))
def test_any_message_fits_into_an_event(message: str) -> None:
    written = event_of(JOB, JobEvent("Notice", message), NOW)["message"]
    assert len(written.encode()) <= 1024
    assert message.startswith(written)
