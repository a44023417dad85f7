"""Does it stand still? Told by reports alone: a replica that says nothing is never called hung, and neither is one that says it works.

Every clock runs from something of the current attempt (its world's start, its last step) to the moment of the newest report, never to
now: a caller that was away, or that hears nothing, restarts nothing.
"""

from __future__ import annotations

from datetime import timedelta

from muster.api.reports import Report
from muster.api.spec import Hang
from muster.api.status import FailureClass, Reason, TrainingJobStatus
from muster.lifecycle.failure import Cause
from muster.lifecycle.moments import moment
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.lifecycle.situation import Situation

_SAVES = frozenset({"Saving", "Evaluating"})


def hung(case: Situation, status: TrainingJobStatus) -> Cause | None:
    """The replica that has stood still for too long."""
    running = [(view, report) for view, report in case.reports(status.attempt) if view.phase is ReplicaPhase.RUNNING and view.reported]
    stepping = [(view, report) for view, report in running if report.progress]
    if stepping:
        view, report = max(stepping, key=lambda heard: heard[1].progress.step if heard[1].progress else 0)
        return _stands(case, status, view, report)
    return next((cause for view, _ in running if (cause := _never_started(case, status, view))), None)


def _stands(case: Situation, status: TrainingJobStatus, view: ReplicaView, report: Report) -> Cause | None:
    assert report.progress is not None
    assert view.reported is not None
    assert status.world is not None
    began = status.world.ready_time or status.world.created_time
    last = max(moment(report.progress.updated_at, fallback=view.reported), began)
    limit = _allowed(case.spec.recovery.hang, report)
    if view.reported - last < timedelta(seconds=limit):
        return None
    return _cause(case, view, f"no step after step {report.progress.step} for {limit} s; it says it is {report.phase or 'Training'}")


def _allowed(limits: Hang, report: Report) -> int:
    """Seconds from one step to the next; more where the last step was followed by a save or an evaluation, whose time is not the step's."""
    assert report.progress
    step = report.progress.step
    saved = report.checkpoint is not None and report.checkpoint.step == step
    evaluated = report.evaluation is not None and report.evaluation.step == step
    base = limits.save_seconds if report.phase in _SAVES else limits.step_seconds
    return base + (limits.save_seconds if saved or evaluated else 0)


def _never_started(case: Situation, status: TrainingJobStatus, view: ReplicaView) -> Cause | None:
    world = status.world
    if world is None or world.ready_time is None or world.first_step_time or not case.counts_steps(status.restarts.best_step):
        return None
    limit = case.spec.recovery.hang.start_seconds
    if view.reported is None or view.reported - world.ready_time < timedelta(seconds=limit):
        return None
    return _cause(case, view, f"no first step within {limit} s of its start")


def _cause(case: Situation, view: ReplicaView, message: str) -> Cause:
    return Cause(FailureClass.INFRASTRUCTURE, Reason.HANG, message, view.label, case.stamp)
