"""The deadlines of the start of a world and of a whole job."""

from __future__ import annotations

from muster.api.status import Phase
from tests.unit.lifecycle.lifecycle_cases import Story, at, deleted, failed, job, replica, report, running, running_story


def test_a_world_that_does_not_start_in_time_ends_the_job_with_the_reason() -> None:
    story = Story(job(workers=2, startupDeadlineSeconds=100))
    story.see(seconds=0)
    waiting = replica("worker-1", phase="Pending", reason="ImagePullBackOff", message="no such image")
    decision = story.see(replica("worker-0"), waiting, seconds=99)
    assert (story.status.phase, decision.wake) == (Phase.STARTING, at(100))
    decision = story.see(replica("worker-0"), waiting, seconds=100)
    assert story.condition("Failed") == ("True", "StartupDeadlineExceeded")
    assert deleted(decision) == ["worker-0/0", "worker-1/0"]


def test_the_status_keeps_why_the_pods_did_not_run() -> None:
    story = Story(job(workers=3, startupDeadlineSeconds=100))
    story.see(seconds=0)
    unplaced = [replica(f"worker-{index}", phase="Pending", reason="Unschedulable", message="0/3 nodes") for index in (0, 1)]
    pulling = replica("worker-2", phase="Pending", node="node-a", reason="ErrImagePull", message="no such image")
    story.see(*unplaced, pulling, seconds=50)
    assert story.status.awaited == ()
    story.see(*unplaced, pulling, seconds=100)
    assert [(each.kind, each.reason, each.replica) for each in story.status.awaited] == [
        ("Node", "Unschedulable", "worker-0"),
        ("Container", "ErrImagePull", "worker-2"),
    ]
    assert story.status.awaited[1].message == "no such image"


def test_the_startup_deadline_starts_with_each_attempt_after_its_back_off() -> None:
    story = running_story(1, startupDeadlineSeconds=100)
    story.see(failed(code=10, seconds=500), seconds=500)
    decision = story.see(seconds=605)
    assert not story.status.phase.final
    assert decision.wake == at(610)
    story.see(seconds=610)
    assert story.status.phase is Phase.FAILED


def test_the_startup_deadline_does_not_end_a_running_world() -> None:
    story = running_story(1, startupDeadlineSeconds=100)
    story.see(*running(1), seconds=5000)
    assert story.status.phase is Phase.RUNNING


def test_the_active_deadline_ends_a_running_job() -> None:
    story = running_story(1, activeDeadlineSeconds=300)
    assert story.see(*running(1), seconds=299).wake == at(300)
    decision = story.see(*running(1), seconds=300)
    assert story.condition("Failed") == ("True", "ActiveDeadlineExceeded")
    assert deleted(decision) == ["worker-0/0"]


def test_time_suspended_does_not_count() -> None:
    story = running_story(1, activeDeadlineSeconds=300)
    story.edit(suspend=True)
    story.see(*running(1), seconds=100)
    story.see(seconds=101)
    story.see(seconds=10_000)
    assert story.status.phase is Phase.SUSPENDED
    story.edit(suspend=False)
    story.see(seconds=10_100)
    assert not story.status.phase.final
    assert story.see(replica(attempt=1), seconds=10_110).wake == at(10_300)
    story.see(replica(attempt=1), seconds=10_300)
    assert story.status.phase is Phase.FAILED


def test_the_status_has_what_a_world_saves_after_its_deadline() -> None:
    story = running_story(1, activeDeadlineSeconds=300)
    story.see(replica(report=report(step=83)), seconds=299)
    story.see(replica(report=report(step=83)), seconds=300)
    commit = {"step": 84, "path": "c84", "bytes": 1, "reason": "Stop", "seconds": 0.1, "blockedSeconds": 0.1}
    story.see(replica(deleting=at(300), report=report(step=84, checkpoint=commit)), seconds=300.5)
    story.see(seconds=301)
    assert story.status.checkpoint is not None
    assert (story.status.checkpoint.step, story.record.last_step) == (84, 84)
    assert story.status.progress is not None
    assert story.status.progress.step == 84
    assert story.record.end_time == story.status.completion_time == at(300)
