"""What a step costs in a world, from what one process and one link cost. Pure arithmetic over seconds, samples and bytes.

    step = computing + adding up the gradients + two votes
    computing    = fixed + per sample x (samples of the step / processes, rounded up)
    adding up    = (P - 1) latency + 2 (P - 1) / P x bytes x per byte        (Patarasuk and Yuan, 2009: a ring of P processes)

Nothing is credited for computing and adding up at the same time: on a CPU both need the processors. Processes that share processors
take turns: what that makes of computing is measured, or else all of it takes as many times as long as there are to a processor; adding up
becomes longer by as much as computing does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

VOTES = 2  # small all-reduces of each step: who could not read its samples, and loss and votes
VOTE_BYTES = 32


@dataclass(frozen=True)
class Line:
    """A cost of `fixed`, and `slope` for each unit; neither is negative."""

    fixed: float
    slope: float

    def __call__(self, units: float) -> float:
        return self.fixed + self.slope * units

    @classmethod
    def through(cls, points: Mapping[int, float]) -> Line:
        """The line whose relative errors at the points {units > 0: cost > 0} have the least squares; one point: no fixed part."""
        if len(points) > 1:
            fixed, slope = _least_squares(points)
            if fixed >= 0 and slope >= 0:
                return cls(fixed, slope)
            if slope < 0:
                return cls(_scale(dict.fromkeys(points, 1.0), points), 0.0)
        return cls(0.0, _scale({units: float(units) for units in points}, points))


def _least_squares(points: Mapping[int, float]) -> tuple[float, float]:
    """(a, b) for which the sum of ((a + b x - y) / y)^2 is least."""
    weights = {units: cost**-2 for units, cost in points.items()}
    total = sum(weights.values())
    mean_units = sum(weights[units] * units for units in points) / total
    mean_cost = sum(weights[units] * cost for units, cost in points.items()) / total
    spread = sum(weights[units] * (units - mean_units) ** 2 for units in points)
    slope = sum(weights[units] * (units - mean_units) * (cost - mean_cost) for units, cost in points.items()) / spread
    return mean_cost - slope * mean_units, slope


def _scale(shape: Mapping[int, float], points: Mapping[int, float]) -> float:
    """The number by which `shape` is to be multiplied, with the same measure of error."""
    ratios = [shape[units] / cost for units, cost in points.items()]
    return sum(ratios) / sum(ratio**2 for ratio in ratios)


@dataclass(frozen=True)
class Costs:
    """What was measured.

    `steps`: by the number of processes that compute at the same time on a machine, what a step costs by samples, in seconds. `memory`:
    what a process takes by samples, in bytes, of which `state_bytes` are weights, gradients and the optimizer's. `link`: what an
    all-reduce of two processes costs by bytes, in seconds. `processors`: how many the processes share; None: each has a machine to itself.
    """

    steps: Mapping[int, Line]
    memory: Line
    gradient_bytes: int
    state_bytes: int
    link: Line
    processors: int | None


@dataclass(frozen=True)
class World:
    """What a step of `samples` costs with so many processes: seconds, and bytes of each process."""

    processes: int
    samples: int
    computing: float
    communication: float
    memory: float

    @property
    def seconds(self) -> float:
        return self.computing + self.communication

    @property
    def share(self) -> int:
        """The samples of the process that has most of them."""
        return ceil(self.samples / self.processes)


def all_reduce(link: Line, size: float, *, processes: int) -> float:
    """The seconds in which so many processes add up `size` bytes, where `link` is what it takes two of them."""
    return (processes - 1) * link.fixed + 2 * (processes - 1) / processes * size * link.slope


def predict(costs: Costs, processes: int, *, samples: int) -> World:
    """A step of `samples`, shared out over so many processes."""
    share = ceil(samples / processes)
    computing = _computing(costs, processes)(share)
    with_room = _computing(costs, min(processes, costs.processors or processes))(share)
    crowded = max(1.0, computing / with_room) if with_room else 1.0
    added = all_reduce(costs.link, costs.gradient_bytes, processes=processes)
    votes = VOTES * all_reduce(costs.link, VOTE_BYTES, processes=processes)
    return World(processes, samples, computing=computing, communication=crowded * (added + votes), memory=costs.memory(share))


def _computing(costs: Costs, processes: int) -> Line:
    """What a step costs each of so many processes by samples: as measured, or by as many as there are to a processor times as long."""
    if costs.processors is None:
        return costs.steps[1]
    measured = max(number for number in costs.steps if number <= processes)
    turns = max(1.0, processes / max(measured, costs.processors))
    return Line(turns * costs.steps[measured].fixed, turns * costs.steps[measured].slope)


def share_for(costs: Costs, processes: int, *, overhead: float) -> int | None:
    """How many samples each process needs so that what does not grow with them takes at most `overhead` of a step; None: no number does."""
    line = _computing(costs, processes)
    alone = predict(costs, processes, samples=processes).communication + line.fixed
    return ceil(alone * (1 - overhead) / overhead / line.slope) if line.slope > 0 else None
