"""Kubernetes Events of jobs. The name of an Event makes it one object, even if it is created more than once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.job import TrainingJob
from muster.api.status import Notice, TrainingJobStatus
from muster.control.kubernetes_events import JobEvent, event_of, events_between
from muster_contract.notices import NoticeReason
from tests.support.texts import absent

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
JOB = TrainingJob.model_validate(
    {"metadata": {"name": "digits", "namespace": "default", "uid": "u"}, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}}
)


def status(**fields: Any) -> TrainingJobStatus:
    return TrainingJobStatus.from_wire(fields)


def record(attempt: int, **fields: Any) -> dict[str, Any]:
    return {"attempt": attempt, "startTime": NOW, **fields}


def reasons(old: TrainingJobStatus, new: TrainingJobStatus) -> list[str]:
    return [event.reason for event in events_between(old, new)]


BROKEN = record(0, **{"class": "Infrastructure", "reason": "ProcessKilled", "replica": "worker-1", "message": "signal 9"})


def test_a_first_attempt_is_a_start_and_a_later_one_a_restart_with_its_cause() -> None:
    first, second = status(attempts=[record(0)]), status(attempts=[BROKEN, record(1)])
    assert reasons(status(), first) == ["AttemptStarted"]
    [restart] = events_between(first, second)
    assert (restart.reason, restart.warning) == ("Restarting", True)


def test_storage_that_not_all_pods_can_reach_gets_one_warning() -> None:
    condition = {"type": "StorageShared", "status": "False", "reason": "OneNode", "message": "one node", "lastTransitionTime": NOW}
    there = status(conditions=[condition])
    [warning] = events_between(status(), there)
    assert (warning.reason, warning.message, warning.warning) == ("StorageNotShared", "one node", True)
    assert reasons(there, there) == []


def test_a_first_attempt_that_resumes_says_whose_commit_it_was() -> None:
    """A job that is created again under an old name resumes where the old one was."""
    fields = {"checkpoint": {"step": 500, "path": "step-00000500-20261120T080000Z-0003", "committedAt": NOW}}
    old, new = status(attempts=[record(0)]), status(attempts=[record(0, stepResumed=500)], **fields)
    [resumed] = events_between(old, new)
    assert absent(resumed.message, "step 500", "an earlier job", "2026-11-20T08:00:00") == []
    later = status(attempts=[record(1, stepResumed=500)], **fields)
    [resumed] = events_between(status(attempts=[record(1)]), later)
    assert "earlier job" not in resumed.message


def test_a_world_on_one_node_gets_one_warning() -> None:
    condition = {"type": "SpreadOverNodes", "status": "False", "reason": "WorldOnOneNode", "message": "on a", "lastTransitionTime": NOW}
    alone = status(conditions=[condition])
    [warning] = events_between(status(), alone)
    assert (warning.reason, warning.warning) == ("WorldOnOneNode", True)
    assert reasons(alone, alone) == []


def test_a_grace_period_that_is_too_short_gets_one_warning_per_attempt() -> None:
    def short(holds: str, message: str) -> TrainingJobStatus:
        kind = {"type": "GraceSufficient", "reason": "GraceTooShort", "lastTransitionTime": NOW}
        return status(conditions=[{**kind, "status": holds, "message": message}])

    first, second = short("False", "attempt 0: too short"), short("False", "attempt 1: too short")
    [warning] = events_between(status(), first)
    assert (warning.reason, warning.message, warning.warning) == ("GraceTooShort", "attempt 0: too short", True)
    assert (reasons(first, first), reasons(first, second), reasons(second, short("True", "attempt 2: saved"))) == (
        [],
        ["GraceTooShort"],
        [],
    )


def test_an_unchanged_status_creates_no_event() -> None:
    same = status(phase="Running", attempts=[BROKEN, record(1)], notices=[Notice(reason=NoticeReason.INPUT_STALLED, message="careful")])
    assert reasons(same, same) == []


WARNINGS = {NoticeReason.CHECKPOINT_DAMAGED, NoticeReason.MEMORY_UNUSED, NoticeReason.SNAPSHOT_INCOMPLETE, NoticeReason.SAVE_FAILED}


@pytest.mark.parametrize("reason", NoticeReason)
def test_a_notice_becomes_an_event_and_those_about_lost_state_a_warning(reason: NoticeReason) -> None:
    (event,) = events_between(status(), status(notices=[Notice(reason=reason, message="a message")]))
    assert (event.reason, event.message) == (reason.value, "a message")
    assert event.warning == (reason in WARNINGS)


def test_a_corrected_failure_class_creates_an_event() -> None:
    corrected = {**BROKEN, "class": "Preemption", "reason": "Disrupted"}
    assert reasons(status(attempts=[BROKEN]), status(attempts=[corrected])) == ["FailureCorrected"]


def test_the_end_of_a_job_creates_an_event_and_a_failure_a_warning() -> None:
    assert reasons(status(phase="Running"), status(phase="Succeeded")) == ["Succeeded"]
    silent = {"type": "Complete", "status": "True", "reason": "CompletedWithoutReport", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    [event] = events_between(status(phase="Running"), status(phase="Succeeded", message="no step", conditions=[silent]))
    assert (event.reason, event.message) == ("Succeeded", "no step")
    [failed] = events_between(status(phase="Running"), status(phase="Failed", message="always fails"))
    assert (failed.reason, failed.message, failed.warning) == ("Failed", "always fails", True)


def test_equal_events_of_one_job_have_one_name() -> None:
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
