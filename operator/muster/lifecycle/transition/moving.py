"""Moving: the workers whose nodes announce that they go leave before.

The job gets replacements on other nodes: spares, as a job with `recovery.spares` has all the time. They are prepared while the training
goes on. Once they are ready, the attempt ends, all ranks save, and the next world has them in the places of the workers that leave. An
elastic job goes on without these workers, and grows again. A move costs no budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.api.status import TrainingJobStatus
from muster.lifecycle.facts import notices
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.state import is_open
from muster.lifecycle.transition import spares


@dataclass(frozen=True)
class Relocation:
    """The workers that leave their nodes now, and these nodes."""

    workers: tuple[str, ...]
    nodes: tuple[str, ...]


def due(status: TrainingJobStatus, facts: Facts) -> Relocation | None:
    """The move that is due now."""
    leaving = notices.leaving(status, facts)
    if not leaving or not _may_move(status, facts):
        return None
    if facts.spec.elastic is not None:
        movable = leaving if len(notices.staying(status, facts)) >= facts.spec.elastic.min_replicas else ()
    else:
        free = len(replacements(status, facts))
        movable = leaving[:free] if free >= len(leaving) or facts.now >= _patient_until(status, facts) else ()
    return Relocation(tuple(view.label for view in movable), tuple(sorted({view.node for view in movable}))) if movable else None


def wake_times(status: TrainingJobStatus, facts: Facts) -> list[datetime | None]:
    """When notices have their effect, and when the job stops waiting for all replacements."""
    times = [notices.due_time(each, facts) for each in status.node_notices]
    return [*times, _patient_until(status, facts) if notices.leaving(status, facts) else None]


def replacements(status: TrainingJobStatus, facts: Facts) -> list[str]:
    """The uids of ready spares on nodes that stay."""
    nodes = notices.going(status, facts)
    return [view.uid for view in spares.ready(facts) if view.node not in nodes]


def _may_move(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the world trains. It cannot save before its first step."""
    world = status.world
    if world is None or world.ready_time is None or not is_open(status) or facts.problems:
        return False
    return world.first_step_time is not None or not facts.counts_steps(status)


def _patient_until(status: TrainingJobStatus, facts: Facts) -> datetime:
    """Until when the job waits for a replacement for each worker that leaves, so that it moves once. It waits anew after each move."""
    nodes = notices.going(status, facts)
    since = [each.since for each in status.node_notices if each.node in nodes]
    begun = status.world.ready_time if status.world else None
    return max([*since, *([begun] if begun else ())], default=facts.now) + timedelta(seconds=facts.policy.replacement_seconds)
