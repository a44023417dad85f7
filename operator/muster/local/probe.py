"""Runs that only measure: nothing of them stays, unless they fail."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from muster.api.job import TrainingJob
from muster.local.errors import RunError
from muster.local.outcome import ExitCode
from muster.local.session import run_job
from muster.report.history import events_of


class ProbeError(RunError):
    """A run that measured nothing; its code is the run's."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class Kept:
    """A display that shows nothing and keeps the last words for whom they concern."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, job: TrainingJob) -> None:
        return

    def line(self, text: str) -> None:
        self.lines.append(text)

    def close(self) -> None:
        return


def events(job: TrainingJob, *, job_file: Path) -> list[dict[str, Any]]:
    """What the processes of `job` said, replica after replica. Raises RunError with the run's last words, where it does not succeed."""
    directory = Path(tempfile.mkdtemp(prefix=f"muster-{job.metadata.name}-"))
    kept = Kept()
    code = run_job(job, directory, job_file=job_file, display=kept)
    if code in (ExitCode.SAVED, ExitCode.NOT_SAVED):
        shutil.rmtree(directory)
        raise ProbeError("stopped before all was measured; nothing of it is kept", ExitCode.NOT_SAVED)
    if code is not ExitCode.SUCCEEDED:
        raise ProbeError("\n".join(kept.lines), code)
    found = list(events_of(directory))
    shutil.rmtree(directory)
    return found


def measurements(job: TrainingJob, *, job_file: Path) -> list[dict[str, Any]]:
    """The same of what they measured. Raises RunError where that is nothing."""
    found = [event for event in events(job, job_file=job_file) if event["event"] == "measurement"]
    if not found:
        raise ProbeError(
            f"{job.metadata.name}: nothing was measured; does the trainer have the task {job.spec.trainer.task}?", ExitCode.USER_ERROR
        )
    return found
