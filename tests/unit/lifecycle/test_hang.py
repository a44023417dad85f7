"""Does it stand still?"""

from __future__ import annotations

from typing import Any

import pytest
from lifecycle_cases import Story, at, replica, report, running, running_story

from muster.api.status import Reason

HANG = {"hang": {"stepSeconds": 60, "startSeconds": 200, "saveSeconds": 100}}


def heard(seconds: float, **said: Any) -> Any:
    return replica(report=report(**said), reported=at(seconds))


def story(**spec: Any) -> Story:
    return running_story(1, recovery=HANG, **spec)


@pytest.mark.parametrize(
    ("said", "seconds", "hangs"),
    [
        ({"step": 5, "at_second": 20}, 79, False),
        ({"step": 5, "at_second": 20}, 80, True),
        ({"step": 5, "at_second": 20, "phase": "Saving"}, 119, False),
        ({"step": 5, "at_second": 20, "phase": "Saving"}, 120, True),
        ({"step": 5, "at_second": 20, "phase": "Evaluating"}, 119, False),
        ({"step": 5, "at_second": 20, "checkpoint": {"step": 5, "path": "p"}}, 179, False),
        ({"step": 5, "at_second": 20, "checkpoint": {"step": 5, "path": "p"}}, 180, True),
        ({"step": 5, "at_second": 20, "checkpoint": {"step": 4, "path": "p"}}, 80, True),
        ({"step": 5, "at_second": 20, "evaluation": {"step": 5, "metrics": {}}}, 179, False),
        ({"phase": "Starting"}, 209, False),
        ({"phase": "Starting"}, 210, True),
    ],
)
def test_each_activity_has_a_limit_of_its_own(said: dict[str, Any], seconds: float, hangs: bool) -> None:
    subject = story()
    subject.see(heard(seconds, **said), seconds=seconds)
    assert (subject.status.attempt == 1) is hangs
    if hangs:
        record = subject.status.attempts[0]
        assert (record.reason, record.failure_class, record.replica) == (Reason.HANG, "Infrastructure", "worker-0")


def test_missing_reports_alone_restart_nothing() -> None:
    subject = story()
    subject.see(heard(20, step=5, at_second=20), seconds=20)
    subject.see(heard(20, step=5, at_second=20), seconds=100_000)
    assert subject.status.attempt == 0


def test_a_replica_that_never_reported_is_never_called_hung() -> None:
    subject = story()
    subject.see(*running(1), seconds=100_000)
    assert subject.status.attempt == 0


def test_a_caller_that_has_just_started_and_heard_nothing_restarts_nothing() -> None:
    subject = story()
    subject.see(heard(20, step=5, at_second=20), seconds=20)
    subject.see(*running(1), seconds=100_000)
    assert subject.status.attempt == 0


def test_the_clock_begins_anew_with_each_attempt() -> None:
    subject = story()
    subject.see(heard(80, step=5, at_second=20), seconds=80)
    subject.see(seconds=90)
    subject.see(replica(attempt=1), seconds=1000)
    subject.see(replica(attempt=1, report=report(step=5, at_second=20), reported=at(1001)), seconds=1001)
    assert subject.status.attempt == 1, "a report of the attempt before says nothing of this one"
    subject.see(replica(attempt=1, report=report(attempt=1, phase="Restoring"), reported=at(1199)), seconds=1199)
    assert subject.status.attempt == 1
    subject.see(replica(attempt=1, report=report(attempt=1, phase="Restoring"), reported=at(1200)), seconds=1200)
    assert subject.status.attempt == 2


def test_a_script_that_tells_no_steps_cannot_hang_by_steps() -> None:
    subject = story(trainer={"script": "train.py"})
    subject.see(heard(100_000, phase="Training"), seconds=100_000)
    assert subject.status.attempt == 0


def test_a_clock_that_is_nonsense_is_no_hang() -> None:
    subject = story()
    said = report(step=5).model_copy(update={"progress": report(step=5).progress.model_copy(update={"updated_at": 1e30})})
    subject.see(replica(report=said, reported=at(100_000)), seconds=100_000)
    assert subject.status.attempt == 0
