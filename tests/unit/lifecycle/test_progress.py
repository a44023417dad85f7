"""The progress, the checkpoint and the notices in the status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster.api.status import ConditionType, SnapshotStatus
from muster.lifecycle.policy import Policy
from muster_contract.events import Evaluation
from tests.unit.lifecycle.lifecycle_cases import Story, at, ended_with, failed, job, replica, report, running_story


def reporting(**fields: Any) -> Any:
    return replica(report=report(**fields))


def test_the_figures_of_rank_0_become_the_progress() -> None:
    story = running_story(1)
    story.see(reporting(step=25), seconds=20)
    progress = story.status.progress
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.percent, progress.loss, progress.updated_at) == (25, 100, 25, "0.5", at(20))
    assert story.record.phases
    assert story.record.phases.total_seconds == 20


def test_a_job_with_nothing_left_to_do_is_at_the_step_it_resumed_at() -> None:
    story = running_story(1)
    story.see(reporting(resumed={"committedStep": 100, "step": 100}, evaluation={"step": 100, "metrics": {"accuracy": 0.9}}), seconds=20)
    progress = story.status.progress
    assert progress is not None
    assert (progress.step, progress.metrics) == (100, {"accuracy": 0.9})


def test_progress_alone_is_written_at_a_limited_rate() -> None:
    story = running_story(1)
    story.see(reporting(step=1), seconds=20)
    decision = story.see(reporting(step=2), seconds=21)
    assert story.status.progress is not None
    assert (story.status.progress.step, decision.wake) == (1, at(50))
    story.see(reporting(step=30), seconds=50)
    assert story.status.progress.step == 30


def test_every_step_is_written_without_a_limit_of_the_rate() -> None:
    story = Story(job(workers=1), policy=Policy(progress_seconds=0))
    story.see(seconds=0)
    for step in range(1, 5):
        story.see(reporting(step=step), seconds=10 + step / 10)
        assert story.status.progress is not None
        assert story.status.progress.step == step


def test_delayed_progress_is_written_with_any_other_change() -> None:
    story = running_story(1)
    story.see(reporting(step=1), seconds=20)
    story.see(replica(phase="Succeeded", termination=ended_with(0, step=100), report=report(step=99)), seconds=22)
    assert story.status.progress is not None
    assert (story.status.progress.step, story.status.progress.percent) == (100, 100)


def test_a_termination_message_has_the_progress_since_the_last_report() -> None:
    story = running_story(1)
    story.see(reporting(step=1), seconds=20)
    last = ended_with(0, step=100, loss="0.125", evaluation=Evaluation(step=100, metrics={"accuracy": 0.97}))
    story.see(replica(phase="Succeeded", termination=last), seconds=60)
    assert story.status.progress is not None
    assert (story.status.progress.step, story.status.progress.loss) == (100, "0.125")
    assert story.status.progress.metrics == {"accuracy": 0.97}


def test_a_late_report_does_not_lower_the_progress() -> None:
    story = running_story(1)
    story.see(reporting(step=50, checkpoint={"step": 40, "path": "b"}), seconds=20)
    story.see(reporting(step=30, checkpoint={"step": 20, "path": "a"}), seconds=60)
    assert story.status.progress is not None
    assert story.status.checkpoint is not None
    assert (story.status.progress.step, story.status.checkpoint.step) == (50, 40)


def test_invalid_values_are_left_out_of_the_status() -> None:
    story = running_story(1)
    reported = report(step=3, evaluation={"step": 3, "metrics": {"accuracy": 0.9}})
    assert reported.progress is not None
    odd = replace(reported.progress, samples_per_second=float("nan"), loss="?" * 99, epoch=-1, total_steps=-5)
    story.see(replica(report=replace(reported, progress=odd)), seconds=20)
    progress = story.status.progress
    assert progress is not None
    assert (progress.samples_per_second, progress.epoch, progress.total_steps, len(progress.loss or "")) == (None, None, None, 32)
    assert progress.metrics == {"accuracy": 0.9}


def restarted(resumed: dict[str, Any], **spec: Any) -> Story:
    """A job that did 50 steps and committed 40 in attempt 0, and reports its resume in attempt 1."""
    story = running_story(1, **spec)
    story.see(reporting(step=50, checkpoint={"step": 40, "path": "c40", "time": at(30).timestamp()}), seconds=40)
    story.see(failed(code=31, seconds=60, step=52), seconds=60)
    story.see(seconds=61)
    story.see(replica(attempt=1, report=report(attempt=1, resumed=resumed)), seconds=70)
    return story


def test_a_resume_is_verified_and_in_the_status() -> None:
    story = restarted({"committedStep": 40, "step": 40, "path": "c40"})
    assert (story.record.step_committed, story.record.step_resumed, story.record.steps_lost) == (40, 40, 12)
    assert story.status.checkpoint is not None
    assert story.status.checkpoint.verified
    assert story.condition("ResumeRegression") == ("False", "ResumedAtCommit")
    assert story.status.progress is not None
    assert story.status.progress.step == 40


def test_a_resume_from_memory_is_in_the_record_and_leaves_the_commit() -> None:
    story = restarted({"committedStep": 40, "step": 52, "source": "Memory"})
    assert (story.record.step_resumed, story.record.steps_lost, story.record.resumed_from) == (52, 0, "Memory")
    assert story.status.checkpoint is not None
    assert (story.status.checkpoint.step, story.status.checkpoint.verified) == (40, False)
    assert story.condition("ResumeRegression") == ("False", "ResumedAtCommit")


def test_the_attempt_before_had_done_the_step_that_the_next_resumes_from() -> None:
    """A supervisor that was killed may not have reported it."""
    assert [record.last_step for record in restarted({"committedStep": 60, "step": 60, "path": "c60"}).status.attempts] == [60, None]
    assert [record.last_step for record in restarted({"committedStep": 40, "step": 40, "path": "c40"}).status.attempts] == [52, None]


def test_the_newest_snapshot_is_written_with_the_progress() -> None:
    story = running_story(1)
    story.see(reporting(step=1, snapshot={"step": 1, "bytes": 2048, "copies": 1}), seconds=20)
    story.see(reporting(step=2, snapshot={"step": 2, "bytes": 2048, "copies": 1}), seconds=21)
    assert story.status.snapshot == SnapshotStatus(step=1, bytes=2048, copies=1)
    story.see(reporting(step=30, snapshot={"step": 30, "bytes": 2048, "copies": 1}), seconds=50)
    assert story.status.snapshot == SnapshotStatus(step=30, bytes=2048, copies=1)


def test_a_start_at_step_0_after_a_commit_is_a_regression() -> None:
    story = restarted({"committedStep": None, "step": 0})
    assert story.condition("ResumeRegression") == ("True", "StartedOver")
    assert story.status.checkpoint is None


def test_a_resume_at_an_older_commit_without_a_reason_is_a_regression() -> None:
    assert restarted({"committedStep": 20, "step": 20, "path": "c20"}).condition("ResumeRegression") == ("True", "StartedOver")


def test_a_regression_in_the_condition_of_an_older_version_stays() -> None:
    story = restarted({"committedStep": None, "step": 0})
    regression = story.status.condition(ConditionType.RESUME_REGRESSION)
    attempts = tuple(replace(record, step_skipped=None) for record in story.status.attempts)
    story.job = story.job.with_status(replace(story.status, attempts=attempts))
    story.see(replica(attempt=1, report=report(attempt=1, resumed={"committedStep": None, "step": 0}, step=3)), seconds=120)
    assert story.status.condition(ConditionType.RESUME_REGRESSION) == regression


def test_skipping_a_damaged_commit_is_no_regression() -> None:
    story = restarted({"committedStep": 20, "step": 20, "path": "c20", "skipped": [{"path": "c40", "reason": "checksum"}]})
    assert story.condition("ResumeRegression") == ("False", "ResumedAtCommit")
    assert story.status.checkpoint is not None
    assert (story.status.checkpoint.step, story.status.checkpoint.path) == (20, "c20")


def test_a_resume_at_an_unreported_commit_shows_that_commit() -> None:
    story = restarted({"committedStep": 52, "step": 52, "path": "/checkpoints/digits/c52"})
    checkpoint = story.status.checkpoint
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.path, checkpoint.verified, checkpoint.committed_at) == (52, "c52", True, at(70))
    assert (story.record.step_committed, story.record.step_resumed) == (52, 52)


def test_a_resume_at_the_commit_of_an_earlier_job_shows_that_commit() -> None:
    story = running_story(1)
    story.see(reporting(resumed={"committedStep": 30, "step": 30, "path": "s3://bucket/digits/c30"}), seconds=20)
    checkpoint = story.status.checkpoint
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.path, checkpoint.verified) == (30, "c30", True)


def test_the_cost_of_a_commit_is_not_shown_for_an_older_one() -> None:
    story = running_story(1)
    story.see(reporting(step=50, checkpoint={"step": 40, "path": "c40", "seconds": 3.0, "blockedSeconds": 1.0}), seconds=40)
    story.see(failed(code=31, seconds=60, step=52), seconds=60)
    story.see(seconds=61)
    story.see(replica(attempt=1, report=report(attempt=1, resumed={"committedStep": 40, "step": 20, "path": "/c/c20"})), seconds=70)
    checkpoint = story.status.checkpoint
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.path, checkpoint.seconds, checkpoint.blocked_seconds) == (20, "c20", None, None)


def test_a_job_that_never_resumes_has_no_regression() -> None:
    story = restarted({"committedStep": None, "step": 0}, checkpoint={"resume": "Never"})
    assert story.status.condition("ResumeRegression") is None  # type: ignore[arg-type]


def test_notices_are_copied_to_the_status() -> None:
    story = running_story(1)
    damaged = {"reason": "CheckpointDamaged", "message": "step-40 is damaged"}
    story.see(reporting(notices=[damaged, damaged, {"message": "x" * 5000}]), seconds=20)
    assert [(notice.reason, len(notice.message)) for notice in story.status.notices] == [("CheckpointDamaged", 18), ("Notice", 1024)]
