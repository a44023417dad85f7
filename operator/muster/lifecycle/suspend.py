"""A job that is suspended: its replicas save and go, and it comes back as a new attempt that costs nothing."""

from __future__ import annotations

from muster.api.status import Reason, TrainingJobStatus
from muster.lifecycle import records
from muster.lifecycle.actions import Action, LookLive, removal
from muster.lifecycle.situation import Situation


def is_suspended(status: TrainingJobStatus) -> bool:
    """Whether the newest attempt ended by suspension, so that no attempt is wanted until the user says so."""
    record = records.current(status)
    return record is not None and record.reason is Reason.SUSPENDED


def holds(case: Situation, status: TrainingJobStatus) -> bool:
    """Whether suspension keeps the next attempt from beginning."""
    return not records.is_open(status) and (case.spec.suspend or is_suspended(status))


def emptied(case: Situation) -> bool:
    """Whether a suspended job's replicas are provably gone."""
    return case.observed.live and not case.observed.everyone


def actions(case: Situation, *, confirmed: bool) -> tuple[Action, ...]:
    """Deletes every replica, gracefully; then makes sure that none is left, once (`confirmed`: that is in the status)."""
    removals = tuple(action for view in case.observed.replicas for action in removal(view))
    unsure = not case.observed.live and not confirmed
    return (*removals, LookLive()) if unsure else removals
