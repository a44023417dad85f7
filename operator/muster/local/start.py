"""Before anything runs: which run is this, may it start, and does it start over, go on, or refuse?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from muster.api.grace import seconds as grace_seconds
from muster.api.job import TrainingJob
from muster.api.status import Phase, Restarts, TrainingJobStatus
from muster.lifecycle import unseen
from muster.lifecycle.observed import Observed
from muster.lifecycle.situation import Situation
from muster.local.errors import ConfigurationError, FieldError
from muster.local.localize import checkpoint_folder
from muster.local.rundir import RunDirectory, continued, move_aside, new_run, open_run_directory, probe_writable, standing
from muster.local.sweep import RUN_MARK, sweep
from muster.local.traces import traces_of


@dataclass(frozen=True)
class Start:
    """A run that may begin: its job with identity and status, and its locked directory. `finished`: there is nothing left to do."""

    job: TrainingJob
    directory: RunDirectory
    finished: bool = False


def open_run(job: TrainingJob, path: Path, *, resume: bool, fresh: bool, now: datetime, again: str, say: Callable[[str], None]) -> Start:
    """Takes the run directory. Where the user takes up or replaces the run in it, ends what an earlier `muster run` left alive of that run.

    Raises ConfigurationError where the directory holds a run and neither `resume` nor `fresh` was asked for, and where another
    `muster run` has it. `again` is the command line without either.
    """
    directory = open_run_directory(path)
    try:
        run = directory.load() if not fresh else _load_if_whole(directory)
        if run is not None and not (fresh or resume):
            raise ConfigurationError(
                f"{path}: holds a run of {run.metadata.name} that is {standing(run)}; "
                f"go on with it: {again} --resume, or move it aside and start over: {again} --fresh"
            )
        if run is not None:
            _end_leftovers(run, directory, say)
        if fresh:
            start = _start_over(job, run, directory, now, say)
        elif run is None:
            start = Start(new_run(job, now), directory)
        else:
            start = _go_on(job, run, directory, now)
        if not start.finished:
            _write(start)
        return start
    except BaseException:
        directory.release()
        raise


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


def _load_if_whole(directory: RunDirectory) -> TrainingJob | None:
    try:
        return directory.load()
    except ConfigurationError:
        return None


def _end_leftovers(run: TrainingJob, directory: RunDirectory, say: Callable[[str], None]) -> None:
    grace = min(10.0, grace_seconds(run.spec, run.status))
    mark = directory.mark(run.metadata.uid)
    left = sweep(RUN_MARK, mark, grace_seconds=grace)
    if left:
        say(f"{left} processes of an earlier run cannot be ended; look for {RUN_MARK}={mark} in their environment")


def _start_over(job: TrainingJob, run: TrainingJob | None, directory: RunDirectory, now: datetime, say: Callable[[str], None]) -> Start:
    holds_something = any(child.name != "lock" for child in directory.path.iterdir())
    if not holds_something:
        return Start(new_run(job, now), directory)
    directory, aside = move_aside(directory)
    say(f"the run before was moved to {aside}")
    return Start(new_run(job, now, replaces=run), directory)


def _go_on(job: TrainingJob, run: TrainingJob, directory: RunDirectory, now: datetime) -> Start:
    job = continued(job, run)
    if run.status.phase is Phase.SUCCEEDED and job.spec == run.spec:
        return Start(job, directory, finished=True)
    return Start(job.with_status(reopened(_caught_up(run, directory, now))), directory)


def _caught_up(run: TrainingJob, directory: RunDirectory, now: datetime) -> TrainingJobStatus:
    """The status with what its last attempt did after `muster run` wrote it: where that was killed, supervisors have saved and ended."""
    if not run.status.attempts:
        return run.status
    left = traces_of(directory.path, run.status.attempt)
    case = Situation(run, Observed(left.replicas), min(now, left.seen or run.status.attempts[-1].start_time))
    return unseen.ended(case, message="muster run was ended")


def reopened(status: TrainingJobStatus) -> TrainingJobStatus:
    """The status of a run that a user takes up again: as after a suspension, so that the next attempt costs nothing.

    What a user has looked at and started again has its budgets whole; the number of the attempt goes on.
    """
    if not status.attempts:
        return status
    return status.model_copy(
        update={
            "phase": Phase.SUSPENDED,
            "conditions": [],
            "completion_time": None,
            "next_attempt_time": None,
            "restarts": Restarts(total=status.restarts.total, best_step=status.restarts.best_step),
            "attempts": [*status.attempts[:-1], status.attempts[-1].model_copy(update={"failure_class": None, "settled": True})],
        }
    )
