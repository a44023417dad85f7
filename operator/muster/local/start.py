"""Opens a run: a new one, one that starts over, or one that resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from muster.acceptance.presets import no_file_for
from muster.api.grace import seconds as grace_seconds
from muster.api.job import TrainingJob
from muster.api.status import Phase, Restarts, TrainingJobStatus
from muster.lifecycle.decide import caught_up
from muster.lifecycle.observed import Observed
from muster.local.errors import ConfigurationError, FieldError
from muster.local.localize import checkpoint_folder
from muster.local.rundir import RunDirectory, continued, has_run, move_aside, new_run, open_run_directory, probe_writable, progress_phrase
from muster.local.sweep import RUN_MARK, sweep
from muster.local.traces import traces_of

MOST_SHOWN = 5
"""Run directories in a message."""


@dataclass(frozen=True)
class Start:
    """A run that may begin. The job has its identity and status, and the directory is locked. `finished` means that nothing is left to do.

    A run that continues also has its status `before`, and the `observed` state from which its status was updated."""

    job: TrainingJob
    directory: RunDirectory
    finished: bool = False
    before: TrainingJobStatus | None = None
    observed: Observed = field(default_factory=Observed)


def open_run(job: TrainingJob, path: Path, *, resume: bool, fresh: bool, now: datetime, command: str, say: Callable[[str], None]) -> Start:
    """Locks the run directory. If it has a run that the user resumes or replaces, ends the processes that an earlier `muster run` left.

    Raises ConfigurationError if the directory has a run and neither `resume` nor `fresh` is set, if it has none and `resume` is set, or if
    another `muster run` uses it. `command` is the command line without these two options.
    """
    if job.spec.preset is not None:
        raise FieldError(f"spec.preset: {no_file_for(job.spec.preset)}")
    if resume and not has_run(path):
        raise ConfigurationError(
            f"{path}: there is no run to resume{'' if path.is_dir() else ', not even a folder'}; {_choices(path, command)}"
        )
    directory = open_run_directory(path)
    try:
        run = directory.load() if not fresh else _load_if_readable(directory)
        if run is not None and not (fresh or resume):
            go_on = "" if run.status.phase is Phase.SUCCEEDED else f" Continue it with: {command} --resume."
            raise ConfigurationError(f"{path}: this run {progress_phrase(run)}.{go_on} Start over with: {command} --fresh")
        if run is not None:
            _end_leftovers(run, directory, say)
        if fresh:
            start = _start_over(job, run, directory, now, say)
        elif run is None:
            start = Start(new_run(job, now), directory)
        else:
            start = _resume(job, run, directory, now)
        if not start.finished:
            _write(start)
        return start
    except BaseException:
        directory.release()
        raise


def _choices(path: Path, command: str) -> str:
    """What the user can do when the directory has no run."""
    folders = path.parent.iterdir() if path.parent.is_dir() else ()
    runs = sorted(str(folder) for folder in folders if has_run(folder))
    shown = ", ".join(runs[:MOST_SHOWN]) + (", ..." if len(runs) > MOST_SHOWN else "")
    others = f"name one of these with --run-dir: {shown}; or " if runs else ""
    return f"{others}start a new run with: {command}"


def _write(start: Start) -> None:
    folder = checkpoint_folder(start.job, start.directory)
    try:
        if folder is not None:
            probe_writable(folder)
    except OSError as error:
        raise FieldError(
            f"spec.checkpoint.storage: {folder} cannot be written: {error.strerror}; make room, or name another folder"
        ) from None
    start.directory.write_job(start.job)
    start.directory.write_status(start.job.status)


def _load_if_readable(directory: RunDirectory) -> TrainingJob | None:
    try:
        return directory.load()
    except ConfigurationError:
        return None


def _end_leftovers(run: TrainingJob, directory: RunDirectory, say: Callable[[str], None]) -> None:
    grace = min(10.0, grace_seconds(run.spec, run.status))
    mark = directory.mark(run.metadata.uid)
    remaining = sweep(RUN_MARK, mark, grace_seconds=grace)
    if remaining:
        say(f"{remaining} processes of an earlier run do not end. They have {RUN_MARK}={mark} in their environment")


def _start_over(job: TrainingJob, run: TrainingJob | None, directory: RunDirectory, now: datetime, say: Callable[[str], None]) -> Start:
    is_empty = all(child.name == "lock" for child in directory.path.iterdir())
    if is_empty:
        return Start(new_run(job, now), directory)
    directory, aside = move_aside(directory)
    say(f"the earlier run was moved to {aside}")
    return Start(new_run(job, now, replaces=run), directory)


def _resume(job: TrainingJob, run: TrainingJob, directory: RunDirectory, now: datetime) -> Start:
    job = continued(job, run)
    if run.status.phase is Phase.SUCCEEDED and job.spec == run.spec:
        return Start(job, directory, finished=True)
    status, observed = _caught_up(run, directory, now)
    return Start(job.with_status(reopened(status)), directory, before=run.status, observed=observed)


def _caught_up(run: TrainingJob, directory: RunDirectory, now: datetime) -> tuple[TrainingJobStatus, Observed]:
    """The status, updated from the traces of what the last attempt did after the last write. If `muster run` was killed, supervisors have
    saved and ended."""
    if not run.status.attempts:
        return run.status, Observed()
    traces = traces_of(directory.path, run.status.attempt)
    last_event = min(now, traces.last_event or run.status.attempts[-1].start_time)
    observed = Observed(traces.replicas)
    return caught_up(run, observed, last_event, message="muster run was ended"), observed


def reopened(status: TrainingJobStatus) -> TrainingJobStatus:
    """The status of a run that the user resumes. It is as after a suspension, so the next attempt costs nothing.

    The budgets start again, because the user has decided to continue. The attempt number does not.
    """
    if not status.attempts:
        return status
    return replace(
        status,
        phase=Phase.SUSPENDED,
        conditions=(),
        completion_time=None,
        next_attempt_time=None,
        restarts=Restarts(total=status.restarts.total, best_step=status.restarts.best_step),
        attempts=(*status.attempts[:-1], replace(status.attempts[-1], failure_class=None, settled=True)),
    )
