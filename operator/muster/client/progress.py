"""The progress of a job as plain values, and when waiting for a job is over. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from muster.api.job import TrainingJob
from muster.api.status import ConditionType, Phase
from muster.client import errors


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a job is."""

    name: str
    """Name of the job."""
    phase: Phase
    """Phase of the job, such as Running."""
    message: str = ""
    """What the job does or waits for, in one sentence."""
    step: int = 0
    """Number of steps done, over all attempts."""
    total_steps: int | None = None
    """Total number of steps. None if the program does not report it."""
    loss: float | None = None
    """Loss of the last step. It may be NaN. None if the program does not report it."""
    samples_per_second: float | None = None
    """Number of samples per second, over all devices."""
    eta_seconds: int | None = None
    """Estimated seconds to the end."""
    attempt: int = 0
    """Number of the current attempt."""
    restarts: int = 0
    """Number of restarts since the job was created."""

    @property
    def fraction(self) -> float | None:
        """The share of the steps that are done, from 0 to 1. None if the total is unknown."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else None


def progress_of(job: TrainingJob) -> Progress:
    """The progress in the status of the job."""
    status = job.status
    progress = status.progress
    figures = Progress(
        name=job.metadata.name,
        phase=status.phase,
        message=status.message,
        attempt=status.attempt,
        restarts=status.restarts.total,
    )
    if progress is None:
        return figures
    return Progress(
        **{
            **vars(figures),
            "step": progress.step,
            "total_steps": progress.total_steps,
            "loss": _number(progress.loss),
            "samples_per_second": progress.samples_per_second,
            "eta_seconds": progress.eta_seconds,
        }
    )


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def is_over(job: TrainingJob, until: Phase) -> bool:
    """Whether the job has reached the phase `until`, or has succeeded. Raises JobFailedError if it has failed instead.

    A phase that the job may leave again counts only once the operator has seen the newest spec.
    """
    status = job.status
    if status.phase.final:
        if status.phase is Phase.FAILED and until is not Phase.FAILED:
            failed = status.condition(ConditionType.FAILED)
            raise errors.JobFailedError(job.metadata.name, status, reason=failed.reason if failed else None)
        return True
    return status.phase is until and (status.observed_generation or 0) >= job.metadata.generation
