"""The lines that `muster run` prints about a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.api.figures import duration, rounded
from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, ConditionType, Phase, Reason, TrainingJobStatus
from muster.lifecycle.changes import attempt_changes, changed_condition, new_notices
from muster.lifecycle.present.message import after_failure, failure_sentence
from muster.lifecycle.recording.phases import recovery_sentence
from muster.local.files import tail_of
from muster.local.outcome import last_failure
from muster_contract.codes import ExitCode
from muster_contract.metric_names import of_the_model

LONGEST = 400  # characters of a replica's message in one line
LOG_LINES = 15
MOST_LOG_BYTES = 1 << 16


def change_lines(before: TrainingJobStatus, after: TrainingJobStatus) -> list[str]:
    """Lines about what changed between two statuses of a run.

    The end of an attempt is shown once its cause is settled, because the replica that first reports a lost peer is not the lost one.
    """
    lines = []
    for change in attempt_changes(before, after):
        if change.has_settled and not after.phase.final:
            lines.append(_end(change.record))
        if change.has_resumed:
            lines += _resumed(change.record)
        if change.has_recovered and change.record.phases:
            lines.append(f"attempt {change.record.attempt} {recovery_sentence(change.record.phases)}")
    slow = changed_condition(before, after, ConditionType.STRAGGLING, holds=True)
    notes = [slow.message] if slow else []
    notes += [notice.message for notice in new_notices(before, after)]
    return [*lines, *(f"note: {shortened(note)}" for note in notes)]


def _resumed(record: AttemptRecord) -> list[str]:
    lost = f"; {_steps(record.steps_lost)} {'is' if record.steps_lost == 1 else 'are'} done again" if record.steps_lost else ""
    if record.step_resumed:
        return [f"attempt {record.attempt}: resumed at step {record.step_resumed}{lost}"]
    return [f"attempt {record.attempt}: there is no checkpoint, so it starts over at step 0{lost}"] if record.attempt else []


def _end(record: AttemptRecord) -> str:
    """Why an attempt ended."""
    if record.failure_class is not None:
        return shortened(failure_sentence(record))
    return (
        f"attempt {record.attempt} ended: {shortened(record.message) or (record.reason.value if record.reason else 'no reason is known')}"
    )


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def progress_line(status: TrainingJobStatus) -> str:
    """The progress of the job in one line: figures while it runs, else what it waits for."""
    if status.phase is Phase.SUSPENDED:
        return "stopped"  # the status message names spec.suspend, but here the user pressed Ctrl-C
    if status.phase is not Phase.RUNNING or status.progress is None:
        return f"{status.phase.value.lower()}: {shortened(_without_cause(status))}" if status.message else status.phase.value.lower()
    progress = status.progress
    parts = [f"step {progress.step}" + (f"/{progress.total_steps}" if progress.total_steps else ""), *figures(status)]
    return f"running: {', '.join(parts)}"


def _without_cause(status: TrainingJobStatus) -> str:
    """The message of the status without the cause of the last failure, because a line of its own shows that."""
    message = status.message.removeprefix(after_failure(last_failure(status)))
    return message[:1].lower() + message[1:]


def figures(status: TrainingJobStatus) -> list[str]:
    """Loss, speed, time left, attempt, workers, last commit and restarts, if the status has them."""
    progress, parts = status.progress, []
    if progress is not None and progress.loss is not None:
        parts.append(f"loss {rounded(progress.loss)}")
    if progress is not None and progress.samples_per_second:
        parts.append(f"{progress.samples_per_second:,.0f} samples/s")
    if progress is not None and progress.eta_seconds is not None:
        parts.append(f"ETA {duration(progress.eta_seconds)}")
    parts.append(f"attempt {status.attempt}")
    if status.workers:
        parts.append(f"workers {status.workers}")
    if status.checkpoint is not None:
        parts.append(f"saved at step {status.checkpoint.step}")
    if status.restarts.total:
        parts.append(f"restarts {status.restarts.total}")
    return parts


def success(job: TrainingJob, directory: Path) -> list[str]:
    """The last lines about a job that succeeded."""
    metrics = of_the_model((job.status.progress.metrics if job.status.progress else None) or {})
    evaluated = [f"evaluation: {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}"] if metrics else []
    return [success_sentence(job), *evaluated, f"logs and checkpoints: {directory}"]


def success_sentence(job: TrainingJob) -> str:
    """A sentence such as `digits succeeded, 100 steps, loss 0.1234, 1 restart, 42 s`."""
    status = job.status
    parts = [f"{job.metadata.name} succeeded"]
    if status.progress is not None and status.progress.step:
        parts.append(_steps(status.progress.step))
        if status.progress.loss is not None:
            parts.append(f"loss {rounded(status.progress.loss)}")
    if status.restarts.total:
        parts.append(f"{status.restarts.total} restart{'s' if status.restarts.total > 1 else ''}")
    if status.admitted_time and status.completion_time:
        parts.append(duration((status.completion_time - status.admitted_time).total_seconds()))
    complete = status.condition(ConditionType.COMPLETE)
    if complete is not None and complete.reason is Reason.COMPLETED_WITHOUT_REPORT:
        parts.append(complete.message)
    return ", ".join(parts)


def failure(job: TrainingJob, job_file: str, log: Path | None) -> list[str]:
    """The last lines about a job that failed: the reason, the replica that failed first, and the end of its log.

    If the configuration is at fault, the lines name the job file and leave the log out, because the message is complete.
    """
    status = job.status
    record = last_failure(status)
    reason = record.reason.value if record and record.reason else "Failed"
    is_misconfigured = record is not None and record.reason is Reason.BAD_CONFIGURATION
    subject = f"{job_file}: {job.metadata.name} cannot run as written" if is_misconfigured else f"{job.metadata.name} failed"
    lines = [f"{subject}: {status.message or reason}"]
    if record is not None and record.message and record.message not in lines[0]:
        lines.append(f"  {shortened(failure_sentence(record))}")
    if log is not None and log.exists():
        tail = [] if is_misconfigured else log_tail(log)
        lines.append(f"  log: {log}" + ("" if not tail else ", which ends with:"))
        lines += [f"  | {line}" for line in tail]
    return lines


def stopped(job: TrainingJob, code: ExitCode, resume_command: str) -> list[str]:
    """The last lines about a job that the user stopped. `resume_command` is the command that continues it."""
    status = job.status
    if code is ExitCode.PREEMPTED and status.checkpoint is not None:
        return [f"saved at step {status.checkpoint.step}. Continue with: {resume_command}"]
    if code is ExitCode.PREEMPTED and status.progress is None:
        return [f"stopped before the first step. Continue with: {resume_command}"]
    if code is ExitCode.PREEMPTED:
        return [f"stopped and saved. Continue with: {resume_command}"]
    if status.checkpoint is not None:
        return [f"stopped without a save. Continue from the checkpoint of step {status.checkpoint.step} with: {resume_command}"]
    return [f"stopped, and nothing was saved. Start again with: {resume_command}"]


def log_tail(log: Path) -> Sequence[str]:
    """The last lines of a log, without earlier states of a progress bar, and without an earlier end of the same kind. Empty if it cannot be
    read."""
    printed = [line.rstrip("\r").rpartition("\r")[2] for line in tail_of(log, MOST_LOG_BYTES).rstrip("\n").split("\n")]
    lines = printed[-LOG_LINES:]
    begins = max((at + 1 for at, line in enumerate(lines[:-1]) if line == lines[-1]), default=0)
    return lines[begins:] if any(lines) else []


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"
