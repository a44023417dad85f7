"""How far is it?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster.api.status import ConditionType
from muster.lifecycle.policy import Policy
from muster_contract.events import Evaluation
from tests.unit.lifecycle.lifecycle_cases import Story, at, failed, job, replica, report, running_story, words


def heard(**said: Any) -> Any:
    return replica(report=report(**said))


def test_the_figures_of_rank_0_become_the_progress() -> None:
    story = running_story(1)
    story.see(heard(step=25), seconds=20)
    progress = story.status.progress
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.percent, progress.loss, progress.updated_at) == (25, 100, 25, "0.5", at(20))
    assert story.record.phases
    assert story.record.phases.total_seconds == 20


def test_a_job_that_finds_all_done_stands_at_the_step_that_it_resumed_at() -> None:
    story = running_story(1)
    story.see(heard(resumed={"found": 100, "step": 100}, evaluation={"step": 100, "metrics": {"accuracy": 0.9}}), seconds=20)
    progress = story.status.progress
    assert progress is not None
    assert (progress.step, progress.metrics) == (100, {"accuracy": 0.9})


def test_progress_alone_is_written_only_so_often() -> None:
    story = running_story(1)
    story.see(heard(step=1), seconds=20)
    decision = story.see(heard(step=2), seconds=21)
    assert story.status.progress is not None
    assert (story.status.progress.step, decision.wake) == (1, at(50))
    story.see(heard(step=30), seconds=50)
    assert story.status.progress.step == 30


def test_a_laptop_hears_every_step() -> None:
    story = Story(job(workers=1), policy=Policy(progress_seconds=0))
    story.see(seconds=0)
    for step in range(1, 5):
        story.see(heard(step=step), seconds=10 + step / 10)
        assert story.status.progress is not None
        assert story.status.progress.step == step


def test_what_is_held_back_is_written_when_anything_else_changes() -> None:
    story = running_story(1)
    story.see(heard(step=1), seconds=20)
    story.see(replica(phase="Succeeded", last_words=words(0, step=100), report=report(step=99)), seconds=22)
    assert story.status.progress is not None
    assert (story.status.progress.step, story.status.progress.percent) == (100, 100)


def test_what_nobody_heard_before_the_end_is_known_from_last_words() -> None:
    story = running_story(1)
    story.see(heard(step=1), seconds=20)
    said = words(0, step=100, loss="0.125", evaluation=Evaluation(step=100, metrics={"accuracy": 0.97}))
    story.see(replica(phase="Succeeded", last_words=said), seconds=60)
    assert story.status.progress is not None
    assert (story.status.progress.step, story.status.progress.loss) == (100, "0.125")
    assert story.status.progress.metrics == {"accuracy": 0.97}


def test_a_report_that_comes_late_takes_nothing_back() -> None:
    story = running_story(1)
    story.see(heard(step=50, checkpoint={"step": 40, "path": "b"}), seconds=20)
    story.see(heard(step=30, checkpoint={"step": 20, "path": "a"}), seconds=60)
    assert story.status.progress is not None
    assert story.status.checkpoint is not None
    assert (story.status.progress.step, story.status.checkpoint.step) == (50, 40)


def test_figures_that_a_status_may_not_hold_are_left_out() -> None:
    story = running_story(1)
    said = report(step=3, evaluation={"step": 3, "metrics": {"accuracy": 0.9}})
    assert said.progress is not None
    odd = replace(said.progress, samples_per_second=float("nan"), loss="?" * 99, epoch=-1, total_steps=-5)
    story.see(replica(report=replace(said, progress=odd)), seconds=20)
    progress = story.status.progress
    assert progress is not None
    assert (progress.samples_per_second, progress.epoch, progress.total_steps, len(progress.loss or "")) == (None, None, None, 32)
    assert progress.metrics == {"accuracy": 0.9}


def restarted(resumed: dict[str, Any], **spec: Any) -> Story:
    """Attempt 0 did 50 steps and committed 40; attempt 1 says where it resumed."""
    story = running_story(1, **spec)
    story.see(heard(step=50, checkpoint={"step": 40, "path": "c40", "time": at(30).timestamp()}), seconds=40)
    story.see(failed(code=31, seconds=60, step=52), seconds=60)
    story.see(seconds=61)
    story.see(replica(attempt=1, report=report(attempt=1, resumed=resumed)), seconds=70)
    return story


def test_a_resume_is_verified_and_shown() -> None:
    story = restarted({"found": 40, "step": 40, "path": "c40"})
    assert (story.record.step_found, story.record.step_resumed, story.record.steps_lost) == (40, 40, 12)
    assert story.status.checkpoint is not None
    assert story.status.checkpoint.verified
    assert story.condition("ResumeRegression") == ("False", "ResumedAtCommit")
    assert story.status.progress is not None
    assert story.status.progress.step == 40


def test_starting_over_though_there_was_a_commit_is_a_regression() -> None:
    story = restarted({"found": None, "step": 0})
    assert story.condition("ResumeRegression") == ("True", "StartedOver")
    assert story.status.checkpoint is None


def test_an_older_commit_without_a_word_is_a_regression() -> None:
    assert restarted({"found": 20, "step": 20, "path": "c20"}).condition("ResumeRegression") == ("True", "StartedOver")


def test_a_regression_that_an_older_version_recorded_in_the_condition_alone_stays() -> None:
    story = restarted({"found": None, "step": 0})
    regression = story.status.condition(ConditionType.RESUME_REGRESSION)
    attempts = tuple(replace(record, step_skipped=None) for record in story.status.attempts)
    story.job = story.job.with_status(replace(story.status, attempts=attempts))
    story.see(replica(attempt=1, report=report(attempt=1, resumed={"found": None, "step": 0}, step=3)), seconds=120)
    assert story.status.condition(ConditionType.RESUME_REGRESSION) == regression


def test_passing_over_a_damaged_commit_is_none() -> None:
    story = restarted({"found": 20, "step": 20, "path": "c20", "skipped": [{"path": "c40", "reason": "checksum"}]})
    assert story.condition("ResumeRegression") == ("False", "ResumedAtCommit")
    assert story.status.checkpoint is not None
    assert (story.status.checkpoint.step, story.status.checkpoint.path) == (20, "c20")


def test_a_resume_at_a_commit_that_nobody_reported_shows_that_commit() -> None:
    story = restarted({"found": 52, "step": 52, "path": "/checkpoints/digits/c52"})
    checkpoint = story.status.checkpoint
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.path, checkpoint.verified, checkpoint.committed_at) == (52, "c52", True, at(70))
    assert (story.record.step_found, story.record.step_resumed) == (52, 52)


def test_a_job_that_goes_on_from_the_commit_of_another_before_it_shows_that_commit() -> None:
    story = running_story(1)
    story.see(heard(resumed={"found": 30, "step": 30, "path": "s3://bucket/digits/c30"}), seconds=20)
    checkpoint = story.status.checkpoint
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.path, checkpoint.verified) == (30, "c30", True)


def test_what_a_commit_cost_is_not_said_of_the_older_one_that_was_read() -> None:
    story = running_story(1)
    story.see(heard(step=50, checkpoint={"step": 40, "path": "c40", "seconds": 3.0, "blockedSeconds": 1.0}), seconds=40)
    story.see(failed(code=31, seconds=60, step=52), seconds=60)
    story.see(seconds=61)
    story.see(replica(attempt=1, report=report(attempt=1, resumed={"found": 40, "step": 20, "path": "/c/c20"})), seconds=70)
    checkpoint = story.status.checkpoint
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.path, checkpoint.seconds, checkpoint.blocked_seconds) == (20, "c20", None, None)


def test_who_never_resumes_has_no_regression() -> None:
    story = restarted({"found": None, "step": 0}, checkpoint={"resume": "Never"})
    assert story.status.condition("ResumeRegression") is None  # type: ignore[arg-type]


def test_notices_of_the_attempt_are_passed_on() -> None:
    story = running_story(1)
    damaged = {"reason": "CheckpointDamaged", "message": "step-40 is damaged"}
    story.see(heard(notices=[damaged, damaged, {"message": "x" * 5000}]), seconds=20)
    assert [(notice.reason, len(notice.message)) for notice in story.status.notices] == [("CheckpointDamaged", 18), ("Notice", 1024)]
