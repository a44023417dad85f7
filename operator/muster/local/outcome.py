"""What a run's end means: the exit code of `muster run`. Pure; the codes are those of docs/architecture.md."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from muster.api.status import AttemptRecord, ConditionType, FailureClass, Phase, Reason, TrainingJobStatus


class ExitCode(IntEnum):
    """Exit codes of `muster run`."""

    SUCCEEDED = 0
    USER_ERROR = 10
    BAD_CONFIGURATION = 11
    BUDGET_EXHAUSTED = 20
    SAVED = 21
    NOT_SAVED = 22
    CHECKPOINT_DAMAGED = 30
    STORAGE_UNAVAILABLE = 31


OF_REASON = {
    Reason.INVALID: ExitCode.BAD_CONFIGURATION,
    Reason.BAD_CONFIGURATION: ExitCode.BAD_CONFIGURATION,
    Reason.CHECKPOINT_DAMAGED: ExitCode.CHECKPOINT_DAMAGED,
    Reason.STORAGE_UNAVAILABLE: ExitCode.STORAGE_UNAVAILABLE,
    Reason.APPLICATION_LIMIT: ExitCode.USER_ERROR,
    Reason.REPEATED_ERROR: ExitCode.USER_ERROR,
    Reason.USER_ERROR: ExitCode.USER_ERROR,
}
"""Reasons that say by themselves what the end means."""

SPOKEN = {ExitCode.SUCCEEDED, ExitCode.SAVED, ExitCode.NOT_SAVED}
"""How a supervisor ends that was asked to stop, and has told all that its processes did."""


def exit_code(status: TrainingJobStatus) -> ExitCode:
    """The exit code for a job in a final phase.

    What broke the last attempt says more than which budget it used up: a job that ends because storage stayed full ends with 31.
    """
    if status.phase is Phase.SUCCEEDED:
        return ExitCode.SUCCEEDED
    last = last_failure(status)
    failed = status.condition(ConditionType.FAILED)
    for reason in (last.reason if last else None, failed.reason if failed else None):
        if reason in OF_REASON:
            return OF_REASON[reason]
    if last is not None and last.failure_class is FailureClass.APPLICATION:
        return ExitCode.USER_ERROR
    return ExitCode.BUDGET_EXHAUSTED


def last_failure(status: TrainingJobStatus) -> AttemptRecord | None:
    """The record of the newest attempt that failed."""
    return next((record for record in reversed(status.attempts) if record.failure_class is not None), None)


def stop_code(codes: Iterable[int | None], status: TrainingJobStatus) -> ExitCode:
    """The exit code for a job that was asked to stop: were the steps it had done saved?

    `codes` are what the replicas that ran when it was asked ended with. Only the one that saves tells steps and commits, so one that was
    killed in an evaluation says that it did not save though all is saved: the newest commit decides, unless a replica ended without last
    words and may have done steps that nobody knows of.
    """
    ended = set(codes)
    done, total = (status.progress.step, status.progress.total_steps) if status.progress else (0, None)
    saved = status.checkpoint.step if status.checkpoint else 0
    if 0 < done <= saved and (ended <= SPOKEN or done == total):
        return ExitCode.SAVED
    return ExitCode.SAVED if ExitCode.SAVED in ended and ended <= {ExitCode.SAVED, ExitCode.SUCCEEDED} else ExitCode.NOT_SAVED
