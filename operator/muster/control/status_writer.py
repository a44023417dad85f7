"""Writes the status of a job, and reports the change: to Events, metrics and traces. A pass does this before it acts."""

from __future__ import annotations

import logging

from muster.api.job import TrainingJob
from muster.api.status import TrainingJobStatus
from muster.control.dependencies import Dependencies
from muster.control.kubernetes_events import event_of, events_between
from muster.kubernetes.objects import Object, version_of
from muster.lifecycle.observed import Observed

log = logging.getLogger("muster.reconciler")


async def write_status(dependencies: Dependencies, obj: Object, job: TrainingJob, *, status: TrainingJobStatus, observed: Observed) -> None:
    """Writes the status if the job still has the resourceVersion of `obj`. Raises ConflictError if it has another one."""
    written = await dependencies.cluster.write_status(obj, status.wire())
    dependencies.store.put_job(written)
    if version_of(written) != version_of(obj):
        dependencies.store.echoes.expect(job.metadata.uid, version_of(written))
    log.info("%s: %s, attempt %d: %s", job.key, status.phase, status.attempt, status.message)
    for event in events_between(job.status, status):
        dependencies.publish(event_of(job, event, dependencies.now()))
    dependencies.changed(job.status, status)
    if dependencies.tracing is not None:
        dependencies.tracing.record(job, status, observed)
