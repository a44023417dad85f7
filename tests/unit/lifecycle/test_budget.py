"""The budgets of restarts, and the ends of jobs that exceed them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.status import Phase, Reason, Restarts
from muster.lifecycle.policy import Policy
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, failed, job, replica, report, running_story


def breaks(story: Story, code: int, *, seconds: float, message: str, step: int | None = None) -> None:
    """Lets the only worker of the current attempt start and fail."""
    attempt = story.status.attempt
    story.see(replica(attempt=attempt), seconds=seconds)
    story.see(failed(code=code, attempt=attempt, seconds=seconds + 1, message=message, step=step), seconds=seconds + 1)


@pytest.mark.parametrize(
    ("field", "code", "reason"),
    [
        ("preemption", 21, Reason.PREEMPTION_LIMIT),
        ("infrastructure", 31, Reason.INFRASTRUCTURE_LIMIT),
        ("application", 10, Reason.APPLICATION_LIMIT),
    ],
)
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_each_class_has_a_limit_of_restarts(field: str, code: int, reason: Reason, limit: int) -> None:
    story = running_story(1, recovery={field: {"limit": limit}, "attemptsWithoutProgress": 99})
    for number in range(limit):
        breaks(story, code, seconds=1000 * number + 100, message=f"error {number}")
        assert story.status.phase is Phase.RECOVERING
    breaks(story, code, seconds=1000 * limit + 100, message="the last")
    assert story.condition("Failed") == ("True", reason.value)
    assert story.status.restarts.total == limit
    assert story.status.attempt == limit


def test_a_limit_of_minus_one_means_no_limit() -> None:
    story = running_story(1, recovery={"preemption": {"limit": -1}, "attemptsWithoutProgress": 99})
    for number in range(30):
        breaks(story, 21, seconds=1000 * number + 100, message="preempted")
    assert story.status.restarts.total == 30
    assert len(story.status.attempts) == 10
    assert len(story.status.restarts.preemption) == 10


def test_only_infrastructure_failures_in_the_window_count() -> None:
    recovery = {"infrastructure": {"limit": 1, "windowSeconds": 600}, "attemptsWithoutProgress": 99}
    story = running_story(1, recovery=recovery)
    for number in range(5):
        breaks(story, 31, seconds=700 * number + 100, message="storage away")
    assert story.status.restarts.infrastructure_count == 5
    breaks(story, 31, seconds=700 * 4 + 300, message="storage away")
    assert story.condition("Failed") == ("True", "InfrastructureLimitExceeded")


def test_bad_configuration_is_never_retried() -> None:
    story = running_story(2)
    story.see(failed(code=11, message="no module named nowhere"), replica("worker-1"), seconds=20)
    assert story.condition("Failed") == ("True", "BadConfiguration")
    assert story.record.message == "no module named nowhere"
    assert story.status.restarts.total == 0


@pytest.mark.parametrize(
    ("first", "second", "ends"),
    [
        ({"message": "NaN", "step": 7}, {"message": "NaN", "step": 7}, True),
        ({"message": "NaN", "step": 7}, {"message": "NaN", "step": 8}, False),
        ({"message": "NaN", "step": 7}, {"message": "Inf", "step": 7}, False),
        ({"message": "ImportError"}, {"message": "ImportError"}, True),
        ({"message": "worker (pid 7) is killed", "step": 7}, {"message": "worker (pid 8) is killed", "step": 9}, True),
        ({"message": "worker (pid 7) is killed", "step": 7}, {"message": "worker (pid 8) is killed", "step": 29}, False),
        ({"message": "rank 1: NaN", "step": 7}, {"message": "rank 0: NaN", "step": 7}, True),
    ],
)
def test_the_same_error_at_the_same_step_twice_ends_the_job(first: dict[str, Any], second: dict[str, Any], ends: bool) -> None:
    story = running_story(1)
    breaks(story, 10, seconds=100, **first)
    breaks(story, 10, seconds=500, **second)
    assert (story.status.phase is Phase.FAILED) is ends
    if ends:
        assert story.condition("Failed") == ("True", "RepeatedError")


def test_equal_errors_of_a_script_without_steps_do_not_end_the_job() -> None:
    story = running_story(1, trainer={"script": "train.py"})
    breaks(story, 10, seconds=100, message="exit code 1")
    breaks(story, 10, seconds=500, message="exit code 1")
    assert story.status.phase is Phase.RECOVERING


def test_a_local_script_ends_after_one_repeat_of_a_quick_error() -> None:
    for ended, ends in (((20, 60), True), ((20, 660), False)):
        story = Story(job(workers=1, trainer={"script": "train.py"}), policy=Policy(repeats_without_steps=True))
        for attempt, seconds in enumerate(ended):
            story.see(replica(attempt=attempt), seconds=20 * attempt + 10)
            story.see(failed(code=10, attempt=attempt, seconds=seconds, message=f"rank {attempt}: KeyError: 'b'"), seconds=seconds)
        assert (story.status.phase is Phase.FAILED) is ends
        if ends:
            assert story.condition("Failed") == ("True", "RepeatedError")


def test_attempts_without_a_new_step_end_the_job_for_every_class() -> None:
    story = running_story(1, recovery={"attemptsWithoutProgress": 3})
    for number, code in enumerate([21, 31, 21]):
        assert not story.status.phase.final
        breaks(story, code, seconds=1000 * number + 100, message="gone", step=5)
    assert not story.status.phase.final, "the first of them did step 5"
    breaks(story, 31, seconds=4000, message="gone", step=5)
    assert story.condition("Failed") == ("True", "NoProgress")


def test_a_new_step_clears_the_count() -> None:
    story = running_story(1, recovery={"attemptsWithoutProgress": 3})
    for number in range(8):
        breaks(story, 21, seconds=1000 * number + 100, message="preempted", step=10 * number)
    assert not story.status.phase.final
    assert story.status.restarts.best_step == 70


def test_the_job_fails_only_once_all_replicas_of_the_attempt_have_ended() -> None:
    story = running_story(2, recovery={"infrastructure": {"limit": 0}})
    decision = story.see(failed("worker-0", 20, seconds=20), replica("worker-1"), seconds=20)
    assert story.status.phase is Phase.RECOVERING
    assert created(decision) == []
    story.see(failed("worker-0", 20, seconds=20), failed("worker-1", 21, seconds=19, disruption="PreemptionByScheduler"), seconds=25)
    assert story.status.attempt == 1
    assert story.status.attempts[0].failure_class == "Preemption"
    assert story.status.restarts.preemption_count == 1


def test_the_job_fails_after_the_settling_time_if_a_replica_does_not_end() -> None:
    story = running_story(2, recovery={"infrastructure": {"limit": 0}})
    stuck = replica("worker-1", deleting=at(21))
    story.see(failed("worker-0", 20, seconds=20), replica("worker-1"), seconds=20)
    story.see(failed("worker-0", 20, seconds=20), stuck, seconds=79)
    assert story.status.phase is Phase.RECOVERING
    story.see(failed("worker-0", 20, seconds=20), stuck, seconds=80)
    assert story.condition("Failed") == ("True", "InfrastructureLimitExceeded")


def test_a_corrected_class_moves_a_restart_to_the_other_budget() -> None:
    story = running_story(2)
    story.see(failed("worker-0", 20, seconds=20), replica("worker-1"), seconds=20)
    assert (story.status.attempt, story.status.restarts.infrastructure_count) == (1, 1)
    for _ in range(3):
        story.see(failed("worker-0", 20, seconds=20), failed("worker-1", 10, seconds=19), seconds=22)
    restarts = story.status.restarts
    assert (restarts.total, restarts.infrastructure_count, restarts.application_count) == (1, 0, 1)
    assert (restarts.infrastructure, restarts.application) == ((), (at(20),))
    assert story.status.attempts[0].settled


def test_forged_counts_of_restarts_do_not_become_negative() -> None:
    """The API server refuses a status with a negative count."""
    story = running_story(2)
    story.see(replica("worker-0"), failed("worker-1", 20, seconds=20), seconds=20)
    story.job = story.job.with_status(replace(story.status, restarts=Restarts()))
    story.see(failed("worker-0", 10, seconds=19), failed("worker-1", 20, seconds=20), seconds=21)
    assert story.status.restarts.application_count == 1
    assert story.status.restarts.infrastructure_count == 0


def test_a_restart_that_a_corrected_class_forbids_is_not_made_and_not_counted() -> None:
    story = running_story(2, recovery={"application": {"limit": 0}})
    story.see(failed("worker-0", 20, seconds=20), replica("worker-1"), seconds=20)
    assert story.status.attempt == 1
    decision = story.see(failed("worker-0", 20, seconds=20), failed("worker-1", 10, seconds=19), seconds=22)
    assert story.condition("Failed") == ("True", "ApplicationLimitExceeded")
    assert created(decision) == []
    assert story.status.restarts.total == 0


def test_reported_steps_count_as_progress() -> None:
    story = running_story(1, recovery={"attemptsWithoutProgress": 1})
    story.see(replica(report=report(step=3), reported=at(15)), seconds=15)
    story.see(failed(code=21, seconds=20), seconds=20)
    assert story.status.phase is Phase.RECOVERING
    assert story.status.attempts[0].last_step == 3
