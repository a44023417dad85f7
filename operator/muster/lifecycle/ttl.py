"""When is a job that has ended removed?"""

from __future__ import annotations

from datetime import datetime, timedelta

from muster.api.status import TrainingJobStatus
from muster.lifecycle.actions import Action, DeleteJob
from muster.lifecycle.situation import Situation


def due(case: Situation, status: TrainingJobStatus) -> datetime | None:
    """The end of its time to live; None: it is kept."""
    seconds = case.spec.ttl_seconds_after_finished
    if seconds is None or status.completion_time is None:
        return None
    return status.completion_time + timedelta(seconds=seconds)


def actions(case: Situation, status: TrainingJobStatus) -> tuple[Action, ...]:
    """Deletes the job itself; its children go with it, by their owner references."""
    end = due(case, status)
    return (DeleteJob(uid=case.job.metadata.uid),) if end and case.now >= end else ()
