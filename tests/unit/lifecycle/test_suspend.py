"""A suspended job holds nothing, and comes back as a new attempt that costs nothing."""

from __future__ import annotations

from muster.api.status import Phase
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, failed, job, replica, report, running, running_story


def test_suspension_deletes_every_replica_gracefully_and_is_reached_when_none_is_left() -> None:
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


def test_a_cached_look_cannot_call_a_job_suspended() -> None:
    story = running_story(1)
    story.edit(suspend=True)
    story.see(*running(1), seconds=20)
    decision = story.see(seconds=21, live=False)
    assert story.status.phase is not Phase.SUSPENDED
    assert [type(action).__name__ for action in decision.actions] == ["LookLive"]


def test_it_comes_back_as_a_new_attempt_that_costs_nothing() -> None:
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


def test_its_record_has_the_steps_that_were_done_until_it_had_saved() -> None:
    story = running_story(1)
    story.see(replica(report=report(step=5)), seconds=19)
    story.edit(suspend=True)
    story.see(replica(report=report(step=5)), seconds=20)
    story.see(failed(code=21, deleting=at(20), seconds=22, step=7), seconds=22)
    story.see(seconds=23)
    assert (story.record.last_step, story.record.end_time) == (7, at(20))


def test_a_job_that_is_born_suspended_makes_nothing_and_begins_with_attempt_0() -> None:
    story = Story(job(workers=1, suspend=True))
    decision = story.see(seconds=0)
    assert (story.status.phase, decision.actions) == (Phase.SUSPENDED, ())
    assert story.status.attempts == ()
    story.edit(suspend=False)
    assert created(story.see(seconds=60)) == ["worker-0/0"]


def test_resuming_waits_until_the_old_replicas_are_gone() -> None:
    story = running_story(1)
    story.edit(suspend=True)
    story.see(*running(1), seconds=20)
    story.edit(suspend=False)
    going = replica(deleting=at(20))
    assert created(story.see(going, seconds=21)) == []
    assert created(story.see(seconds=22)) == ["worker-0/1"]
