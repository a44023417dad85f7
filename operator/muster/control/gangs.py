"""Which gang scheduler each job uses. It is chosen when a job starts, because all pods of a world must be in one PodGroup."""

from __future__ import annotations

from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.spec import GangMode
from muster.api.status import Phase, Reason
from muster.render.gang import chosen


class Gangs:
    """The PodGroup APIs that the cluster serves: a cache, which `replace` updates."""

    def __init__(self, served: tuple[str, ...] = ()) -> None:
        self.served = served
        """API groups, the preferred one first."""

    def replace(self, served: tuple[str, ...]) -> bool:
        """Sets the served API groups, and returns whether they have changed."""
        changed, self.served = served != self.served, served
        return changed

    def scheduler_of(self, job: TrainingJob, *, has_pods: bool) -> str | None:
        """The value of `status.gangScheduler`. Pods of an attempt that has begun stay with their scheduler, even if `spec` changes."""
        if not _starts(job) or has_pods:
            return job.status.gang_scheduler
        scheduler = chosen(job.spec.scheduling.gang, self.served)
        return scheduler.group if scheduler else ""

    def problems(self, job: TrainingJob) -> list[Problem]:
        """A problem if the job requires a gang scheduler, starts now, and the cluster has none."""
        if job.spec.scheduling.gang is not GangMode.REQUIRED or self.served or not _starts(job):
            return []
        message = (
            "is Required, and this cluster serves no PodGroup that Muster may use: enable the feature gate GenericWorkload of "
            "Kubernetes 1.37, or install a gang scheduler and name it in gangScheduling.apiGroups of the chart, or write Auto"
        )
        return [Problem("spec.scheduling.gang", message, reason=Reason.GANG_UNAVAILABLE)]


def _starts(job: TrainingJob) -> bool:
    """Whether the next attempt of the job begins without pods of an earlier one."""
    return not job.status.attempts or job.status.phase is Phase.SUSPENDED
