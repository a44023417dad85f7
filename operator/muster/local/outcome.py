"""The exit code of `muster run`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from muster.api.status import AttemptRecord, ConditionType, FailureClass, Phase, Reason, TrainingJobStatus
from muster_contract.codes import FINER_REASONS, ExitCode

OF_REASON = {
    Reason.INVALID: ExitCode.BAD_CONFIGURATION,
    Reason.BAD_CONFIGURATION: ExitCode.BAD_CONFIGURATION,
    Reason.CHECKPOINT_DAMAGED: ExitCode.CHECKPOINT_DAMAGED,
    Reason.STORAGE_UNAVAILABLE: ExitCode.STORAGE_UNAVAILABLE,
    Reason.INPUT_UNAVAILABLE: ExitCode.INPUT_UNAVAILABLE,
    Reason.INPUT_REFUSED: ExitCode.INPUT_REFUSED,
    Reason.APPLICATION_LIMIT: ExitCode.USER_ERROR,
    Reason.REPEATED_ERROR: ExitCode.USER_ERROR,
    Reason.USER_ERROR: ExitCode.USER_ERROR,
    **{Reason(reason): code for code, reasons in FINER_REASONS.items() for reason in reasons},
}
"""The exit code of each reason that has one. With all other reasons, infrastructure failures have used up a budget."""

ORDERLY = {ExitCode.COMPLETED, ExitCode.PREEMPTED, ExitCode.PREEMPTED_NOT_SAVED}
"""Codes of a supervisor that was stopped and has reported everything that its processes did."""


def exit_code(status: TrainingJobStatus) -> ExitCode:
    """The exit code for a job in a final phase.

    The reason of the last failed attempt takes precedence over the budget that it used up. A job that ends because storage stayed full
    therefore ends with 31.
    """
    if status.phase is Phase.SUCCEEDED:
        return ExitCode.COMPLETED
    last = last_failure(status)
    failed = status.condition(ConditionType.FAILED)
    for reason in (last.reason if last else None, failed.reason if failed else None):
        if reason in OF_REASON:
            return OF_REASON[reason]
    if last is not None and last.failure_class is FailureClass.APPLICATION:
        return ExitCode.USER_ERROR
    return ExitCode.PEER_LOST


def last_failure(status: TrainingJobStatus) -> AttemptRecord | None:
    """The record of the newest attempt that failed."""
    return next((record for record in reversed(status.attempts) if record.failure_class is not None), None)


def stop_code(codes: Iterable[int | None], status: TrainingJobStatus) -> ExitCode:
    """The exit code for a job that the user stopped. It shows whether steps of the job are lost.

    `codes` are the exit codes of the replicas that ran at that time. Only the replica that saves reports steps and commits. A replica that
    was killed in an evaluation reports that it did not save, although every step is saved. So the newest commit decides, unless a replica
    ended without a termination message, because it may have done steps that it did not report. If no replica ran, every step was reported.
    """
    ended = set(codes)
    done, total = (status.progress.step, status.progress.total_steps) if status.progress else (0, None)
    saved = status.checkpoint.step if status.checkpoint else 0
    if done <= saved and (not ended or (done > 0 and (ended <= ORDERLY or done == total))):
        return ExitCode.PREEMPTED
    all_saved = ExitCode.PREEMPTED in ended and ended <= {ExitCode.PREEMPTED, ExitCode.COMPLETED}
    return ExitCode.PREEMPTED if all_saved else ExitCode.PREEMPTED_NOT_SAVED
