"""What makes traces of jobs. Both backends report to it, and neither needs it: `muster.tools.tracing` implements it."""

from __future__ import annotations

from typing import Protocol

from muster.api.job import TrainingJob
from muster.api.status import TrainingJobStatus
from muster.lifecycle.observed import Observed


class Tracing(Protocol):
    """Gets every change of a job's status."""

    def record(self, job: TrainingJob, new: TrainingJobStatus, observed: Observed) -> None:
        """The status of the job changes to the new one. Never waits."""

    def variables(self, job: TrainingJob) -> dict[str, str]:
        """Environment variables with which spans of the job's own processes become parts of its trace."""
