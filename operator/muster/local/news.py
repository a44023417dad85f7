"""What there is to tell about a run, in lines for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, ConditionType, Phase, Reason, TrainingJobStatus
from muster.lifecycle.phases import recovered
from muster.local.outcome import ExitCode, last_failure

LONGEST = 400  # characters of a replica's words in a line of news
LOG_LINES = 15


def news(before: TrainingJobStatus, after: TrainingJobStatus) -> list[str]:
    """What happened between two statuses of a run: attempts that ended, where the next went on, what supervisors want known.

    An end is told once its cause is settled: the first to complain of a lost peer is not the one that was lost.
    """
    known = {record.attempt: record for record in before.attempts}
    lines = []
    for record in after.attempts:
        old = known.get(record.attempt)
        if record.failure_class is not None and record.settled and not (old and old.settled) and not after.phase.final:
            lines.append(f"attempt {record.attempt} ended: {why(record)}")
        if record.step_resumed is not None and (old is None or old.step_resumed is None):
            lines += _went_on(record)
    slow = after.condition(ConditionType.STRAGGLING)
    if slow and slow.status == "True" and slow != before.condition(ConditionType.STRAGGLING):
        lines.append(f"note: {shortened(slow.message)}")
    lines += _recovered(before, after)
    lines += [f"note: {shortened(notice)}" for notice in after.notices if notice not in before.notices]
    return lines


def _recovered(before: TrainingJobStatus, after: TrainingJobStatus) -> list[str]:
    """What it took to get over a failure."""
    told = {record.attempt for record in before.attempts if record.phases}
    pairs = zip(after.attempts, after.attempts[1:], strict=False)
    new = (record for failed, record in pairs if failed.failure_class and record.phases and record.attempt not in told)
    return [f"attempt {record.attempt} {recovered(record.phases)}" for record in new if record.phases]


def _went_on(record: AttemptRecord) -> list[str]:
    lost = f", {_steps(record.steps_lost)} redone" if record.steps_lost else ""
    if record.step_resumed:
        return [f"attempt {record.attempt}: resumed at step {record.step_resumed}{lost}"]
    return [f"attempt {record.attempt}: no checkpoint to go on from, starts at step 0{lost}"] if record.attempt else []


def why(record: AttemptRecord) -> str:
    """Why an attempt ended: which replica, and its own words or else the reason."""
    words = shortened(record.message) or (record.reason.value if record.reason else "it ended")
    return f"{record.replica}: {words}" if record.replica and record.replica not in words else words


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def progress_line(status: TrainingJobStatus) -> str:
    """Where the job stands in one line, for where there is no terminal: figures while it runs, else what it waits for."""
    if status.phase is Phase.SUSPENDED:
        return "stopped"  # the core's sentence speaks of a field; here somebody pressed Ctrl-C
    if status.phase is not Phase.RUNNING or status.progress is None:
        return f"{status.phase.value.lower()}: {shortened(status.message)}" if status.message else status.phase.value.lower()
    progress = status.progress
    parts = [f"step {progress.step}" + (f"/{progress.total_steps}" if progress.total_steps else ""), *figures(status)]
    return f"running: {', '.join(parts)}"


def figures(status: TrainingJobStatus) -> list[str]:
    """Loss, speed, time left, attempt, workers, last commit and restarts, as far as they are known."""
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


def rounded(loss: str) -> str:
    """A loss, which comes as text, to four digits."""
    try:
        return f"{float(loss):.4g}"
    except ValueError:
        return loss


def duration(seconds: float) -> str:
    """42 s, 3:05, 2:03:05"""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def success(job: TrainingJob, directory: Path) -> list[str]:
    """The closing lines of a job that succeeded."""
    status = job.status
    parts = [f"{job.metadata.name} succeeded"]
    if status.progress is not None and status.progress.step:
        parts.append(f"{_steps(status.progress.step)}")
        if status.progress.loss is not None:
            parts.append(f"loss {rounded(status.progress.loss)}")
    if status.restarts.total:
        parts.append(f"{status.restarts.total} restart{'s' if status.restarts.total > 1 else ''}")
    if status.admitted_time and status.completion_time:
        parts.append(duration((status.completion_time - status.admitted_time).total_seconds()))
    metrics = (status.progress.metrics if status.progress else None) or {}
    evaluated = [f"evaluation: {', '.join(f'{name} {value:.4g}' for name, value in metrics.items())}"] if metrics else []
    return [", ".join(parts), *evaluated, f"logs and checkpoints: {directory}"]


def failure(job: TrainingJob, job_file: str, log: Path | None) -> list[str]:
    """The closing lines of a job that failed: why, who failed first, and the end of that replica's log.

    A job that cannot run as written has said all in its message, and the file is where to look.
    """
    status = job.status
    record = last_failure(status)
    reason = record.reason.value if record and record.reason else "Failed"
    quiet = record is not None and record.reason is Reason.BAD_CONFIGURATION
    subject = f"{job_file}: {job.metadata.name} cannot run as written" if quiet else f"{job.metadata.name} failed"
    lines = [f"{subject}: {status.message or reason}"]
    if record is not None and record.message and record.message not in lines[0]:
        lines.append(f"  {why(record)}")
    if log is not None and log.exists():
        tail = [] if quiet else log_tail(log)
        lines.append(f"  log: {log}" + ("" if not tail else ", which ends with"))
        lines += [f"  | {line}" for line in tail]
    return lines


def stopped(job: TrainingJob, code: ExitCode, again: str) -> list[str]:
    """The closing lines of a job that was asked to stop; `again` is the command that continues it."""
    status = job.status
    if code is ExitCode.SAVED and status.checkpoint is not None:
        return [f"saved at step {status.checkpoint.step}. Continue with: {again}"]
    if code is ExitCode.SAVED:
        return [f"stopped and saved. Continue with: {again}"]
    if status.checkpoint is not None:
        return [f"stopped without saving; the last checkpoint is of step {status.checkpoint.step}. Continue from it with: {again}"]
    return [f"stopped; nothing was saved. Start again with: {again}"]


def log_tail(log: Path, lines: int = LOG_LINES) -> Sequence[str]:
    """The last lines of a log."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 65536))
        return file.read().decode(errors="replace").splitlines()[-lines:]


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"
