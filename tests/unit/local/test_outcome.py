"""Exit codes of `muster run`."""

from __future__ import annotations

import pytest

from muster.api.status import CheckpointStatus, Condition, ConditionType, FailureClass, Phase, Progress, Reason, TrainingJobStatus
from muster.local.outcome import exit_code, stop_code
from tests.unit.local.local_jobs import NOW, failed

APPLICATION, INFRASTRUCTURE, PREEMPTION = FailureClass.APPLICATION, FailureClass.INFRASTRUCTURE, FailureClass.PREEMPTION

FAILURES = [
    # reason of the condition, reason and class of the last failed attempt, exit code
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
def test_the_exit_code_shows_the_cause_of_the_failure(condition: Reason, reason: Reason, failure_class: FailureClass, code: int) -> None:
    conditions = (Condition(type=ConditionType.FAILED, status="True", reason=condition, last_transition_time=NOW),)
    status = TrainingJobStatus(phase=Phase.FAILED, conditions=conditions, attempts=(failed(0, reason=reason, failure_class=failure_class),))
    assert exit_code(status) == code


def test_success_has_exit_code_0_after_any_failures() -> None:
    assert exit_code(TrainingJobStatus(phase=Phase.SUCCEEDED, attempts=(failed(0),))) == 0


def test_a_deadline_without_a_failure_has_the_exit_code_of_a_spent_budget() -> None:
    conditions = (Condition(type=ConditionType.FAILED, status="True", reason=Reason.ACTIVE_DEADLINE, last_transition_time=NOW),)
    assert exit_code(TrainingJobStatus(phase=Phase.FAILED, conditions=conditions)) == 20


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([21, 21], 21), ([21, 0], 21), ([21, 22], 22), ([22], 22), ([137, 21], 22), ([0], 22), ([None], 22)],
)
def test_a_stop_is_saved_only_if_a_replica_saved_and_none_failed_to(codes: list[int | None], expected: int) -> None:
    assert stop_code(codes, TrainingJobStatus()) == expected


@pytest.mark.parametrize(
    ("codes", "done", "saved", "expected"),
    [
        pytest.param([], 0, 0, 21, id="nothing ran, nothing was done"),
        pytest.param([], 40, 40, 21, id="nothing ran, all is saved"),
        pytest.param([], 43, 40, 22, id="nothing ran, three steps are lost"),
        pytest.param([0, 0], 66, 66, 21, id="the trainer came to its end"),
        pytest.param([0, 0], 66, 0, 22, id="the trainer came to its end, and saves nothing"),
        pytest.param([21, 22], 40, 40, 21, id="killed in an evaluation, after a commit of which one replica knows"),
        pytest.param([22, 22], 43, 40, 22, id="killed in an evaluation, after steps that are not saved"),
        pytest.param([137, 22], 40, 40, 22, id="who knows what the one without a termination message did"),
        pytest.param([None], 66, 66, 21, id="ended at once, with no step left to do"),
        pytest.param([None], 40, 40, 22, id="ended at once, in a step that may be done"),
    ],
)
def test_the_newest_commit_decides_if_the_number_of_steps_is_reported(
    codes: list[int | None], done: int, saved: int, expected: int
) -> None:
    checkpoint = CheckpointStatus(step=saved, path="p", committed_at=NOW) if saved else None
    status = TrainingJobStatus(progress=Progress(step=done, total_steps=66, updated_at=NOW), checkpoint=checkpoint)
    assert stop_code(codes, status) == expected
