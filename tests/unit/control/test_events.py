"""Kubernetes Events: what a user wants to know, each with a name that makes it one Event however often it is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.api.job import TrainingJob
from muster.api.status import TrainingJobStatus
from muster.control.events import Happening, event_of, happenings

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
JOB = TrainingJob.model_validate(
    {"metadata": {"name": "digits", "namespace": "default", "uid": "u"}, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}}
)


def status(**fields: Any) -> TrainingJobStatus:
    return TrainingJobStatus.model_validate(fields)


def record(attempt: int, **fields: Any) -> dict[str, Any]:
    return {"attempt": attempt, "startTime": NOW, **fields}


def told(old: TrainingJobStatus, new: TrainingJobStatus) -> list[str]:
    return [happening.reason for happening in happenings(old, new)]


BROKEN = record(0, **{"class": "Infrastructure", "reason": "ProcessKilled", "replica": "worker-1", "message": "signal 9"})


def test_a_first_attempt_is_told_as_a_start_and_one_after_a_failure_as_a_restart_with_its_cause() -> None:
    first, second = status(attempts=[record(0)]), status(attempts=[BROKEN, record(1)])
    assert told(status(), first) == ["AttemptStarted"]
    [restart] = happenings(first, second)
    assert (restart.reason, restart.warning) == ("Restarting", True)
    assert "worker-1" in restart.message
    assert "signal 9" in restart.message


def test_storage_that_not_all_pods_can_reach_is_told_once() -> None:
    condition = {"type": "StorageShared", "status": "False", "reason": "OneNode", "message": "one node", "lastTransitionTime": NOW}
    there = status(conditions=[condition])
    [warning] = happenings(status(), there)
    assert (warning.reason, warning.message, warning.warning) == ("StorageNotShared", "one node", True)
    assert told(there, there) == []


def test_a_grace_that_is_too_short_is_told_once_for_each_attempt_and_that_it_sufficed_is_not() -> None:
    def short(holds: str, message: str) -> TrainingJobStatus:
        kind = {"type": "GraceSufficient", "reason": "GraceTooShort", "lastTransitionTime": NOW}
        return status(conditions=[{**kind, "status": holds, "message": message}])

    first, second = short("False", "attempt 0: too short"), short("False", "attempt 1: too short")
    [warning] = happenings(status(), first)
    assert (warning.reason, warning.message, warning.warning) == ("GraceTooShort", "attempt 0: too short", True)
    assert (told(first, first), told(first, second), told(second, short("True", "attempt 2: saved"))) == ([], ["GraceTooShort"], [])


def test_what_stays_the_same_is_not_told() -> None:
    same = status(phase="Running", attempts=[BROKEN, record(1)], notices=["careful"])
    assert told(same, same) == []


def test_a_class_that_later_news_correct_is_told() -> None:
    corrected = {**BROKEN, "class": "Preemption", "reason": "Disrupted"}
    assert told(status(attempts=[BROKEN]), status(attempts=[corrected])) == ["FailureCorrected"]


def test_ends_are_told_and_a_bad_one_as_a_warning() -> None:
    assert told(status(phase="Running"), status(phase="Succeeded")) == ["Succeeded"]
    [failed] = happenings(status(phase="Running"), status(phase="Failed", message="always fails"))
    assert (failed.reason, failed.message, failed.warning) == ("Failed", "always fails", True)


def test_telling_the_same_twice_makes_one_event_and_another_job_of_the_name_its_own() -> None:
    happening = Happening("Restarting", "a message", mark="1")
    name = event_of(JOB, happening, NOW)["metadata"]["name"]
    assert event_of(JOB, Happening("Restarting", "told otherwise", mark="1"), NOW)["metadata"]["name"] == name
    assert event_of(JOB, Happening("Restarting", "a message", mark="2"), NOW)["metadata"]["name"] != name
    other = JOB.model_copy(update={"metadata": JOB.metadata.model_copy(update={"uid": "v"})})
    assert event_of(other, happening, NOW)["metadata"]["name"] != name


@given(st.text(max_size=3000))
def test_any_message_fits_into_an_event(message: str) -> None:
    written = event_of(JOB, Happening("Notice", message), NOW)["message"]
    assert len(written.encode()) <= 1024
    assert message.startswith(written)
