"""The gang of a job: the pods that the scheduler places together, and whether they wait for nodes."""

from __future__ import annotations

from muster.api.spec import TrainingJobSpec
from muster.api.status import TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import is_open
from muster.strategies.registry import strategy_of


def size(spec: TrainingJobSpec, status: TrainingJobStatus) -> int:
    """The number of pods that are placed together or not at all: those of the smallest world that can train.

    Evaluators do not count. Replicas that have succeeded do not count either, because Muster does not create their pods again.
    """
    strategy = strategy_of(spec.strategy)
    members = status.world.members if status.world else ()
    count = sum(strategy.is_in_world(member.role) and not member.succeeded for member in members)
    return max(1, min(count, spec.elastic.min_replicas) if spec.elastic else count)


def is_waiting(status: TrainingJobStatus, facts: Facts) -> bool:
    """Whether the job has a gang scheduler, and no pod of the world has a node."""
    has_gang = bool(status.gang_scheduler) and is_open(status)
    return has_gang and not any(view.node for view in facts.replicas if facts.strategy.is_in_world(view.role))


def sentence(status: TrainingJobStatus, facts: Facts) -> str:
    """A phrase with what the gang waits for, and with the name of its PodGroup."""
    return f"nodes for {size(facts.spec, status)} pods at once (PodGroup {facts.job.metadata.name} of {status.gang_scheduler})"
