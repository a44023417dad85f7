"""Exit codes of `muster run`."""

from __future__ import annotations

import pytest
from local_jobs import NOW, failed

from muster.api.status import CheckpointStatus, Condition, ConditionType, FailureClass, Phase, Progress, Reason, TrainingJobStatus
from muster.local.outcome import exit_code, stop_code

APPLICATION, INFRASTRUCTURE, PREEMPTION = FailureClass.APPLICATION, FailureClass.INFRASTRUCTURE, FailureClass.PREEMPTION

FAILURES = [
    # condition's reason, reason and class of the last failed attempt, exit code
    (Reason.APPLICATION_LIMIT, Reason.USER_ERROR, APPLICATION, 10),
    (Reason.REPEATED_ERROR, Reason.USER_ERROR, APPLICATION, 10),
    (Reason.APPLICATION_LIMIT, Reason.OUT_OF_MEMORY, APPLICATION, 10),
    (Reason.APPLICATION_LIMIT, Reason.PROCESS_KILLED, APPLICATION, 10),
    (Reason.BAD_CONFIGURATION, Reason.BAD_CONFIGURATION, APPLICATION, 11),
    (Reason.INFRASTRUCTURE_LIMIT, Reason.PEER_LOST, INFRASTRUCTURE, 20),
    (Reason.INFRASTRUCTURE_LIMIT, Reason.PROCESS_KILLED, INFRASTRUCTURE, 20),
    (Reason.NO_PROGRESS, Reason.HANG, INFRASTRUCTURE, 20),
    (Reason.PREEMPTION_LIMIT, Reason.POD_DELETED, PREEMPTION, 20),
    (Reason.APPLICATION_LIMIT, Reason.CHECKPOINT_DAMAGED, APPLICATION, 30),
    (Reason.INFRASTRUCTURE_LIMIT, Reason.STORAGE_UNAVAILABLE, INFRASTRUCTURE, 31),
    (Reason.NO_PROGRESS, Reason.STORAGE_UNAVAILABLE, INFRASTRUCTURE, 31),
]


@pytest.mark.parametrize(("condition", "reason", "failure_class", "code"), FAILURES)
def test_the_exit_code_says_what_broke_the_job(condition: Reason, reason: Reason, failure_class: FailureClass, code: int) -> None:
    conditions = [Condition(type=ConditionType.FAILED, status="True", reason=condition, last_transition_time=NOW)]
    status = TrainingJobStatus(phase=Phase.FAILED, conditions=conditions, attempts=[failed(0, reason=reason, failure_class=failure_class)])
    assert exit_code(status) == code


def test_success_is_zero_whatever_broke_on_the_way() -> None:
    assert exit_code(TrainingJobStatus(phase=Phase.SUCCEEDED, attempts=[failed(0)])) == 0


def test_a_deadline_without_any_failure_is_the_budgets_code() -> None:
    conditions = [Condition(type=ConditionType.FAILED, status="True", reason=Reason.ACTIVE_DEADLINE, last_transition_time=NOW)]
    assert exit_code(TrainingJobStatus(phase=Phase.FAILED, conditions=conditions)) == 20


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([21, 21], 21), ([21, 0], 21), ([21, 22], 22), ([22], 22), ([137, 21], 22), ([0], 22), ([None], 22)],
)
def test_a_stop_is_saved_only_when_a_replica_saved_and_none_failed_to(codes: list[int | None], expected: int) -> None:
    assert stop_code(codes, TrainingJobStatus()) == expected


@pytest.mark.parametrize(("done", "saved", "expected"), [(0, 0, 22), (40, 40, 21), (43, 40, 22)])
def test_when_nothing_ran_the_newest_commit_decides(done: int, saved: int, expected: int) -> None:
    checkpoint = CheckpointStatus(step=saved, path="p", committed_at=NOW) if saved else None
    status = TrainingJobStatus(progress=Progress(step=done, updated_at=NOW), checkpoint=checkpoint)
    assert stop_code([], status) == expected
