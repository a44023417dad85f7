"""Suspension: a suspended job has no replicas, and a resume is a new attempt that costs no budget."""

from __future__ import annotations

from muster.api.status import Phase
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, failed, job, replica, report, running, running_story


def test_a_job_is_suspended_once_all_its_replicas_are_gone() -> None:
    story = running_story(2)
    story.edit(suspend=True)
    decision = story.see(*running(2), seconds=20)
    assert deleted(decision) == ["worker-0/0", "worker-1/0"]
    assert [action.grace_seconds for action in decision.actions] == [None, None]
    assert story.condition("Ready")[1] == "Suspended"
    story.see(replica("worker-0", deleting=at(20)), seconds=21)
    assert story.status.phase is not Phase.SUSPENDED
    story.see(seconds=22)
    assert story.status.phase is Phase.SUSPENDED
    assert story.condition("Suspended") == ("True", "Suspended")


def test_a_cached_observation_does_not_suspend_a_job() -> None:
    story = running_story(1)
    story.edit(suspend=True)
    story.see(*running(1), seconds=20)
    decision = story.see(seconds=21, live=False)
    assert story.status.phase is not Phase.SUSPENDED
    assert [type(action).__name__ for action in decision.actions] == ["LookLive"]


def test_a_resume_is_a_new_attempt_that_costs_no_budget() -> None:
    story = running_story(1)
    story.edit(suspend=True)
    story.see(*running(1), seconds=20)
    story.see(failed(code=21, deleting=at(20), seconds=22), seconds=22)
    story.see(seconds=23)
    story.edit(suspend=False)
    decision = story.see(seconds=100)
    assert created(decision) == ["worker-0/1"]
    assert story.status.restarts.total == 0
    assert story.condition("Suspended") == ("False", "Resumed")
    assert story.status.phase is Phase.STARTING


def test_the_record_of_a_suspended_attempt_has_its_last_saved_step() -> None:
    story = running_story(1)
    story.see(replica(report=report(step=5)), seconds=19)
    story.edit(suspend=True)
    story.see(replica(report=report(step=5)), seconds=20)
    story.see(failed(code=21, deleting=at(20), seconds=22, step=7), seconds=22)
    story.see(seconds=23)
    assert (story.record.last_step, story.record.end_time) == (7, at(20))


def test_a_job_that_is_created_suspended_starts_with_attempt_0() -> None:
    story = Story(job(workers=1, suspend=True))
    decision = story.see(seconds=0)
    assert (story.status.phase, decision.actions) == (Phase.SUSPENDED, ())
    assert story.status.attempts == ()
    story.edit(suspend=False)
    assert created(story.see(seconds=60)) == ["worker-0/0"]


def test_a_resume_waits_until_the_old_replicas_are_gone() -> None:
    story = running_story(1)
    story.edit(suspend=True)
    story.see(*running(1), seconds=20)
    story.edit(suspend=False)
    going = replica(deleting=at(20))
    assert created(story.see(going, seconds=21)) == []
    assert created(story.see(seconds=22)) == ["worker-0/1"]


def test_the_steps_of_a_suspended_attempt_are_progress() -> None:
    story = running_story(1)
    story.see(replica(report=report(step=36, at_second=15)), seconds=15)
    story.edit(suspend=True)
    story.see(replica(report=report(step=36, at_second=15)), seconds=20)
    story.see(seconds=23)
    story.edit(suspend=False)
    story.see(seconds=100)
    assert (story.status.attempt, story.status.restarts.best_step) == (1, 36)
