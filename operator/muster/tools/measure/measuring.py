"""Runs that only measure. Their run directory is deleted if they succeed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from muster.api.job import TrainingJob
from muster.local.errors import RunError
from muster.local.event_files import recorded_events
from muster.local.session import run_job
from muster_contract.codes import ExitCode
from muster_contract.events import Event
from muster_contract.text import printable


class MeasuringError(RunError):
    """A run that measured nothing. `code` is the exit code of the run."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class RecordingDisplay:
    """A display that shows nothing and records its lines, with control characters escaped, because they are shown later."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, job: TrainingJob) -> None:
        return

    def line(self, text: str) -> None:
        self.lines.append(printable(text, keep="\n"))

    def close(self) -> None:
        return


def run_and_read_events(job: TrainingJob, *, job_file: Path) -> list[Event]:
    """Runs `job` and returns its events, replica by replica. Raises RunError with the run's last lines if it does not succeed."""
    directory = Path(tempfile.mkdtemp(prefix=f"muster-{job.metadata.name}-"))
    display = RecordingDisplay()
    code = run_job(job, directory, job_file=job_file, display=display)
    if code in (ExitCode.PREEMPTED, ExitCode.PREEMPTED_NOT_SAVED):
        shutil.rmtree(directory)
        raise MeasuringError("stopped before all was measured; the measurements are discarded", ExitCode.PREEMPTED_NOT_SAVED)
    if code is not ExitCode.COMPLETED:
        raise MeasuringError("\n".join(display.lines), code)
    recorded = list(recorded_events(directory))
    shutil.rmtree(directory)
    return recorded


def run_and_measure(job: TrainingJob, *, job_file: Path) -> list[Event]:
    """Runs `job` and returns its measurements. Raises RunError if nothing was measured."""
    measured = [event for event in run_and_read_events(job, job_file=job_file) if event.what is not None]
    if not measured:
        raise MeasuringError(
            f"{job.metadata.name}: nothing was measured; does the trainer have the task {job.spec.trainer.task}?", ExitCode.USER_ERROR
        )
    return measured
