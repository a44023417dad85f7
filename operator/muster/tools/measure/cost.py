"""Predicts the time of a step in a world from measurements of one process and one link. Pure arithmetic over seconds, samples and bytes.

    step = computing + all-reduce of the gradients + two votes
    computing    = fixed + per sample x (samples of the step / processes, rounded up)
    all-reduce   = (P - 1) latency + 2 (P - 1) / P x bytes x per byte        (Patarasuk and Yuan, 2009: a ring of P processes)

Computing and communication are taken to run one after the other, because both need the processors on a CPU. Processes that share
processors take turns. Their computing time is measured, or else multiplied by the number of processes for each processor. The
communication time grows by the same factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

VOTES = 2  # small all-reduces of each step: one for failed reads, and one for the loss and votes
VOTE_BYTES = 32


@dataclass(frozen=True)
class Line:
    """A cost: `fixed`, plus `slope` for each unit. Neither is negative."""

    fixed: float
    slope: float

    def __call__(self, units: float) -> float:
        return self.fixed + self.slope * units

    @classmethod
    def through(cls, points: Mapping[int, float]) -> Line:
        """Fits a line to the points {units > 0: cost > 0} by least squares of the relative errors. One point gives no fixed part."""
        if len(points) > 1:
            fixed, slope = _least_squares(points)
            if fixed >= 0 and slope >= 0:
                return cls(fixed, slope)
            if slope < 0:
                return cls(_scale(dict.fromkeys(points, 1.0), points), 0.0)
        return cls(0.0, _scale({units: float(units) for units in points}, points))


def _least_squares(points: Mapping[int, float]) -> tuple[float, float]:
    """The (a, b) that minimize the sum of ((a + b x - y) / y)^2."""
    weights = {units: cost**-2 for units, cost in points.items()}
    total = sum(weights.values())
    mean_units = sum(weights[units] * units for units in points) / total
    mean_cost = sum(weights[units] * cost for units, cost in points.items()) / total
    spread = sum(weights[units] * (units - mean_units) ** 2 for units in points)
    slope = sum(weights[units] * (units - mean_units) * (cost - mean_cost) for units, cost in points.items()) / spread
    return mean_cost - slope * mean_units, slope


def _scale(shape: Mapping[int, float], points: Mapping[int, float]) -> float:
    """The factor for `shape` that minimizes the same error."""
    ratios = [shape[units] / cost for units, cost in points.items()]
    return sum(ratios) / sum(ratio**2 for ratio in ratios)


@dataclass(frozen=True)
class Costs:
    """Measured costs.

    `steps`: seconds of a step by samples, for each number of processes that compute on a machine at the same time. `memory`: bytes of a
    process by samples; `state_bytes` of them are weights, gradients and the optimizer's state. `link`: seconds of an all-reduce of two
    processes by bytes. `processors`: how many the processes share; None: each process has its own machine.
    """

    steps: Mapping[int, Line]
    memory: Line
    gradient_bytes: int
    state_bytes: int
    link: Line
    processors: int | None


@dataclass(frozen=True)
class World:
    """The predicted cost of a step of `samples` with this number of processes: seconds, and bytes of each process."""

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
        """The largest number of samples that a process has."""
        return ceil(self.samples / self.processes)


def all_reduce(link: Line, size: float, *, processes: int) -> float:
    """Seconds of an all-reduce of `size` bytes over this number of processes. `link` is the cost for two of them."""
    return (processes - 1) * link.fixed + 2 * (processes - 1) / processes * size * link.slope


def predict(costs: Costs, processes: int, *, samples: int) -> World:
    """The cost of a step of `samples` that this number of processes share."""
    share = ceil(samples / processes)
    computing = _computing(costs, processes)(share)
    uncrowded = _computing(costs, min(processes, costs.processors or processes))(share)
    slowdown = max(1.0, computing / uncrowded) if uncrowded else 1.0
    gradients = all_reduce(costs.link, costs.gradient_bytes, processes=processes)
    votes = VOTES * all_reduce(costs.link, VOTE_BYTES, processes=processes)
    return World(processes, samples, computing=computing, communication=slowdown * (gradients + votes), memory=costs.memory(share))


def _computing(costs: Costs, processes: int) -> Line:
    """The cost of a step for each of these processes by samples, as measured, and multiplied if they share processors."""
    if costs.processors is None:
        return costs.steps[1]
    measured = max(number for number in costs.steps if number <= processes)
    turns = max(1.0, processes / max(measured, costs.processors))
    return Line(turns * costs.steps[measured].fixed, turns * costs.steps[measured].slope)


def share_for(costs: Costs, processes: int, *, overhead: float) -> int | None:
    """How many samples each process needs so that fixed costs take at most `overhead` of a step. None if samples cost no time."""
    line = _computing(costs, processes)
    fixed = predict(costs, processes, samples=processes).communication + line.fixed
    return ceil(fixed * (1 - overhead) / overhead / line.slope) if line.slope > 0 else None
