"""How long before the next attempt?"""

from __future__ import annotations

import pytest
from lifecycle_cases import Story, at, created, failed, job, replica, running_story

from muster.api.status import FailureClass
from muster.lifecycle import backoff
from muster.lifecycle.observed import Observed
from muster.lifecycle.policy import Policy
from muster.lifecycle.situation import Situation


@pytest.mark.parametrize(
    ("failure_class", "delays"),
    [
        (FailureClass.PREEMPTION, [0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (FailureClass.INFRASTRUCTURE, [0, 0, 1, 2, 4, 8, 16, 32, 60]),
        (FailureClass.APPLICATION, [10, 10, 20, 40, 80, 160, 300, 300, 300]),
    ],
)
def test_the_delay_doubles_with_each_attempt_without_progress(failure_class: FailureClass, delays: list[float]) -> None:
    subject = job()
    case = Situation(subject, Observed(), at(0))
    for without_progress, expected in enumerate(delays):
        books = subject.status.restarts.model_copy(update={"without_progress": without_progress})
        assert backoff.delay(case, subject.status.model_copy(update={"restarts": books}), failure_class) == expected


def test_a_very_long_crash_loop_is_still_bounded() -> None:
    subject = job()
    books = subject.status.restarts.model_copy(update={"without_progress": 100_000})
    status = subject.status.model_copy(update={"restarts": books})
    assert backoff.delay(Situation(subject, Observed(), at(0)), status, FailureClass.APPLICATION) == 300


def test_the_next_attempt_is_held_back_and_then_made() -> None:
    story = running_story(1)
    decision = story.see(failed(code=10, seconds=20), seconds=20)
    assert story.status.next_attempt_time == at(30)
    assert created(decision) == []
    held = story.see(seconds=29)
    assert (created(held), held.wake) == ([], at(30))
    assert "held back until 10:00:30 UTC" in story.status.message
    assert created(story.see(seconds=30)) == ["worker-0/1"]


def test_after_a_preemption_nothing_is_held_back() -> None:
    story = running_story(1)
    story.see(failed(code=21, seconds=20), seconds=20)
    assert story.status.next_attempt_time is None
    assert created(story.see(seconds=21)) == ["worker-0/1"]


def test_a_corrected_class_changes_the_delay() -> None:
    story = running_story(2)
    story.see(failed("worker-0", 20, seconds=20), replica("worker-1"), seconds=20)
    assert story.status.next_attempt_time is None
    story.see(failed("worker-0", 20, seconds=20), failed("worker-1", 10, seconds=19), seconds=22)
    assert story.status.next_attempt_time == at(30)


def test_a_laptop_that_waits_for_nothing_restarts_at_once() -> None:
    story = Story(job(workers=1), policy=Policy(pace=0))
    story.see(seconds=0)
    story.see(replica(), seconds=5)
    story.see(failed(code=10, seconds=6), seconds=6)
    assert created(story.see(seconds=6.2)) == ["worker-0/1"]
