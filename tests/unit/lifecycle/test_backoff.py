"""The back-off: the pause before the next attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.api.status import FailureClass
from muster.lifecycle.facts.facts import read
from muster.lifecycle.observed import Observed
from muster.lifecycle.policy import Policy
from muster.lifecycle.transition import budget
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, ended_with, failed, job, replica, report, running_story


@pytest.mark.parametrize(
    ("failure_class", "delays"),
    [
        (FailureClass.PREEMPTION, [0, 0, 0, 1, 2, 4, 8, 16, 32]),
        (FailureClass.INFRASTRUCTURE, [0, 0, 1, 2, 4, 8, 16, 32, 60]),
        (FailureClass.APPLICATION, [10, 10, 20, 40, 80, 160, 300, 300, 300]),
    ],
)
def test_the_delay_doubles_with_each_attempt_without_progress(failure_class: FailureClass, delays: list[float]) -> None:
    subject = job()
    facts = read(subject, Observed(), at(0))
    for without_progress, expected in enumerate(delays):
        restarts = replace(subject.status.restarts, without_progress=without_progress)
        assert budget.delay(replace(subject.status, restarts=restarts), facts, failure_class) == expected


def test_the_delay_of_a_very_long_crash_loop_is_bounded() -> None:
    subject = job()
    restarts = replace(subject.status.restarts, without_progress=100_000)
    status = replace(subject.status, restarts=restarts)
    assert budget.delay(status, read(subject, Observed(), at(0)), FailureClass.APPLICATION) == 300


def test_the_next_attempt_starts_after_the_back_off() -> None:
    story = running_story(1)
    decision = story.see(failed(code=10, seconds=20), seconds=20)
    assert story.status.next_attempt_time == at(30)
    assert created(decision) == []
    waiting = story.see(seconds=29)
    assert (created(waiting), waiting.wake) == ([], at(30))
    assert created(story.see(seconds=30)) == ["worker-0/1"]


def test_pods_of_a_failed_attempt_stay_until_the_back_off_is_over() -> None:
    story = running_story(2)
    ended = failed("worker-0", 10, seconds=20)
    assert deleted(story.see(ended, replica("worker-1"), seconds=20)) == ["worker-1/0"], "what still runs is ended"
    ended_too = failed("worker-1", 20, seconds=21, deleting=at(20))
    for seconds in (21, 25, 29.9):
        assert deleted(story.see(ended, ended_too, seconds=seconds)) == []
    assert deleted(story.see(ended, seconds=30)) == ["worker-0/0"]
    assert created(story.see(seconds=31)) == ["worker-0/1", "worker-1/1"]


def test_a_failed_pod_with_a_running_side_car_is_removed_at_once() -> None:
    story = running_story(1)
    assert deleted(story.see(failed(code=10, seconds=20, side_car_runs=True), seconds=20)) == ["worker-0/0"]


@pytest.mark.parametrize("code", [21, 22, 31, 10])
def test_the_delay_of_a_program_without_steps_grows_for_every_failure_class(code: int) -> None:
    story = running_story(1, trainer={"script": "train.py"}, recovery={"infrastructure": {"limit": -1}, "application": {"limit": -1}})
    now, waits = 20.0, []
    for attempt in range(8):
        story.see(failed(code=code, attempt=attempt, seconds=now), seconds=now)
        until = story.status.next_attempt_time
        waits.append((until - at(now)).total_seconds() if until else 0.0)
        now += waits[-1]
        story.see(seconds=now)
        story.see(replica(attempt=attempt + 1), seconds=now + 1)
        now += 2
    assert waits == sorted(waits)
    assert waits[-1] >= 32


def test_a_long_attempt_without_steps_does_not_count_as_without_progress() -> None:
    story = running_story(1, trainer={"script": "train.py"})
    now = 20.0
    for attempt in range(6):
        story.see(failed(code=21, attempt=attempt, seconds=now + 700), seconds=now + 700)
        assert story.status.restarts.without_progress == 0
        assert story.status.next_attempt_time is None
        story.see(replica(attempt=attempt + 1), seconds=now + 702)
        now += 702


def test_there_is_no_delay_after_a_first_preemption() -> None:
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


def test_a_policy_without_delays_restarts_at_once() -> None:
    story = Story(job(workers=1), policy=Policy(pace=0))
    story.see(seconds=0)
    story.see(replica(), seconds=5)
    story.see(failed(code=10, seconds=6), seconds=6)
    assert created(story.see(seconds=6.2)) == ["worker-0/1"]


def test_a_world_that_a_late_cause_completes_waits_for_the_back_off() -> None:
    """A peer reports the loss of its connection first. The worker that failed then reports its error and acknowledges the next attempt at
    once."""
    story = running_story()
    lost = report("worker-1", in_place=True, waiting=True, termination=ended_with(20, "its peers are gone", attempt=0))
    story.see(replica("worker-0", report=report("worker-0", in_place=True)), replica("worker-1", report=lost), seconds=60)
    assert (story.status.attempt, story.status.next_attempt_time) == (1, None)
    error = report("worker-0", attempt=1, in_place=True, waiting=True, termination=ended_with(10, "an error of the program", attempt=0))
    views = (replica("worker-0", report=error), replica("worker-1", report=replace(lost, attempt=1)))
    story.see(*views, seconds=60.2)
    assert story.status.attempts[0].failure_class is FailureClass.APPLICATION
    assert story.status.next_attempt_time == at(70)
    assert story.status.world
    assert story.status.world.ready_time is None
    story.see(*views, seconds=69.9)
    assert story.status.world.ready_time is None
    story.see(*views, seconds=70)
    assert story.status.world.ready_time == at(70)
