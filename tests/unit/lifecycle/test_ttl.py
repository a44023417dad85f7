"""The removal of ended jobs."""

from __future__ import annotations

from muster.lifecycle.actions import DeleteJob
from tests.unit.lifecycle.lifecycle_cases import at, replica, running, running_story

DONE = replica(phase="Succeeded", exit_code=0)


def test_a_finished_job_is_deleted_when_its_time_to_live_is_over() -> None:
    story = running_story(1, ttlSecondsAfterFinished=100)
    assert story.see(DONE, seconds=50).wake == at(150)
    assert story.see(DONE, seconds=149).actions == ()
    assert story.see(DONE, seconds=150).actions == (DeleteJob(uid="job-uid"),)


def test_a_finished_job_without_a_time_to_live_stays() -> None:
    story = running_story(1)
    decision = story.see(DONE, seconds=50)
    assert (decision.actions, decision.wake) == ((), None)
    assert story.see(DONE, seconds=10**8).actions == ()


def test_a_running_job_has_no_time_to_live() -> None:
    assert running_story(1, ttlSecondsAfterFinished=0).see(*running(1), seconds=10_000).actions == ()
