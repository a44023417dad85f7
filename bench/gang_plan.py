"""The random choices of a trial of `bench.gang_trials`."""

from __future__ import annotations

import random
from dataclasses import dataclass

ELASTIC_SHARE = 0.3
EVENTS_WITHIN_SECONDS = 5.0


@dataclass(frozen=True)
class JobPlan:
    """A job of a trial. Times are seconds since the trial began."""

    name: str
    workers: int
    smallest: int
    """Number of workers of the smallest world that trains: fewer than `workers` if the job is elastic."""
    arrives: float
    trains: float
    deleted: float | None


@dataclass(frozen=True)
class Plan:
    """The random choices of a trial. Every pod takes one CPU."""

    nodes: tuple[int, ...]
    """The CPUs of each node."""
    jobs: tuple[JobPlan, ...]
    lost_node: int | None
    lost: float

    @classmethod
    def of(cls, seed: str) -> Plan:
        dice = random.Random(seed)
        nodes = tuple(dice.randint(1, 3) for _ in range(dice.randint(2, 5)))
        room = sum(nodes)
        sizes = [dice.randint(2, max(2, room)) for _ in range(dice.randint(2, 4))]
        jobs = tuple(
            JobPlan(
                name=f"job-{number}",
                workers=workers,
                smallest=dice.randint(1, workers - 1) if dice.random() < ELASTIC_SHARE else workers,
                arrives=dice.choice((0.0, dice.uniform(0, EVENTS_WITHIN_SECONDS))),
                trains=dice.uniform(0.5, 3),
                deleted=dice.uniform(1, EVENTS_WITHIN_SECONDS) if dice.random() < 0.1 else None,
            )
            for number, workers in enumerate(sizes)
        )
        lost_node = dice.randrange(len(nodes)) if dice.random() < 0.25 else None
        return cls(nodes, jobs, lost_node, dice.uniform(1, EVENTS_WITHIN_SECONDS))
