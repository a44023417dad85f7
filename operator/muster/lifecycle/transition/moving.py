"""Moving: the workers whose nodes announce that they go leave before.

The job gets replacements on other nodes: spares, as a job with `recovery.spares` has all the time. They are prepared while the training
goes on. Once they are ready, the attempt ends, all ranks save, and the next world has them in the places of the workers that leave. An
elastic job goes on without these workers, and grows again. A move costs no budget.

Workers that have fallen back to another capacity class return to the preferred one in the same way (`facts/capacity.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.api.chosen_classes import classes_of
from muster.api.status import TrainingJobStatus
from muster.lifecycle.facts import capacity, node_notices
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.transition import spares


@dataclass(frozen=True)
class Relocation:
    """The workers that leave their nodes now, and these nodes."""

    workers: tuple[str, ...]
    nodes: tuple[str, ...]
    target: str = ""
    """The capacity class that they go back to. Empty if their nodes go."""


def due(status: TrainingJobStatus, facts: Facts) -> Relocation | None:
    """The move that is due now. Workers on nodes that go come first."""
    if not _may_move(status, facts):
        return None
    return _departure(status, facts) or _return(status, facts)


def _departure(status: TrainingJobStatus, facts: Facts) -> Relocation | None:
    """The move of workers whose nodes go."""
    leaving = node_notices.leaving(status, facts)
    if not leaving:
        return None
    if facts.spec.elastic is not None:
        movable = leaving if len(node_notices.staying(status, facts)) >= facts.spec.elastic.min_replicas else ()
    else:
        free = len(replacements(status, facts))
        movable = leaving[:free] if free >= len(leaving) or facts.now >= _patient_until(status, facts) else ()
    return _relocation(movable)


def _return(status: TrainingJobStatus, facts: Facts) -> Relocation | None:
    """The move of workers that go back to the preferred capacity class: of all at once, or of those that have replacements if no other
    replacement has got a node for a while. The next such move is due after `returnAfterSeconds`."""
    returning = capacity.returning(status, facts)
    ready = spares.ready_to_return(status, facts) if returning else []
    if not ready or (len(ready) < len(returning) and facts.now < _complete_until(ready, facts)):
        return None
    target = classes_of(facts.spec, facts.strategy.worker_role)[0]
    return _relocation(returning[: len(ready)], target=target)


def _relocation(views: Sequence[ReplicaView], *, target: str = "") -> Relocation | None:
    labels, nodes = tuple(view.label for view in views), tuple(sorted({view.node for view in views}))
    return Relocation(labels, nodes, target) if views else None


def _complete_until(ready: Sequence[ReplicaView], facts: Facts) -> datetime:
    newest = max(view.placed or view.created for view in ready)
    return newest + timedelta(seconds=facts.policy.return_seconds)


def wake_times(status: TrainingJobStatus, facts: Facts) -> list[datetime | None]:
    """When notices have their effect, and when the job stops waiting for all replacements."""
    times = [node_notices.due_time(each, facts) for each in status.node_notices]
    ready = spares.ready_to_return(status, facts) if capacity.returning(status, facts) else []
    times.append(_complete_until(ready, facts) if ready else None)
    return [*times, _patient_until(status, facts) if node_notices.leaving(status, facts) else None]


def replacements(status: TrainingJobStatus, facts: Facts) -> list[str]:
    """The uids of ready spares on nodes that stay."""
    nodes = node_notices.going(status, facts)
    return [view.uid for view in spares.ready(facts) if view.node not in nodes]


def _may_move(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the world trains. It cannot save before its first step."""
    world = status.world
    if world is None or world.ready_time is None or not is_open(status) or facts.problems:
        return False
    return world.first_step_time is not None or not facts.counts_steps(status)


def _patient_until(status: TrainingJobStatus, facts: Facts) -> datetime:
    """Until when the job waits for a replacement for each worker that leaves, so that it moves once. It waits anew after each move."""
    nodes = node_notices.going(status, facts)
    since = [each.since for each in status.node_notices if each.node in nodes]
    begun = status.world.ready_time if status.world else None
    return max([*since, *([begun] if begun else ())], default=facts.now) + timedelta(seconds=facts.policy.replacement_seconds)
