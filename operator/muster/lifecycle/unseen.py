"""An attempt whose end nobody watched: its status is caught up on, once, from what its replicas have left behind."""

from __future__ import annotations

from dataclasses import replace

from muster.api.status import Reason, TrainingJobStatus
from muster.lifecycle import attempts, goodput, progress
from muster.lifecycle.situation import Situation


def ended(case: Situation, *, message: str) -> TrainingJobStatus:
    """The status as a watcher would have left it at the last sign of life (`case.now`), with the attempt ended as by a suspension.

    What follows until somebody looks again is no time of training.
    """
    old = case.job.status
    case = replace(case, now=max(case.now, goodput.booked(case, old)))
    status = attempts.end(case, progress.read(case, old), Reason.SUSPENDED, message=message)
    return goodput.account(case, old, attempts.heard_out(case, status))
