"""Whether a job should be distributed at all, and how: the advice of `muster plan`, with its reasons. Pure.

"You shouldn't always distribute": a world is worth its processes only where it is faster by as much as they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.api.spec import StrategyName
from muster.measure.cost import Costs, World, predict, share_for
from muster.strategies.base import Framework

WORTH_IT = 1.2
"""How much faster than one process a world must be: restarts, waiting for each other and moving the data cost something too."""
AS_GOOD = 1.1
"""A world that takes so much longer than the fastest is preferred where it needs fewer processes."""
OVERHEAD = 0.2
"""The share of a step, at most, that does not grow with the samples, at the batch that is advised."""
SHARDING_TRAFFIC = 1.5
"""What FSDP sends, by what DDP sends: parameters are gathered twice (Rajbhandari et al., 2020, section 7)."""
MEBI = 2**20


@dataclass(frozen=True)
class Candidate:
    """A world as it would be run; `room`: the bytes that each process has, None where nobody knows."""

    world: World
    strategy: StrategyName
    room: float | None

    @property
    def fits(self) -> bool:
        return self.room is None or self.world.memory <= self.room


@dataclass(frozen=True)
class Advice:
    """`chosen` is None where no world has enough memory; `batch`: samples for each process from which the world works well, if any."""

    candidates: Sequence[Candidate]
    chosen: Candidate | None
    batch: int | None
    reasons: Sequence[str]

    @property
    def distribute(self) -> bool:
        return self.chosen is not None and self.chosen.world.processes > 1

    @property
    def sentence(self) -> str:
        if self.chosen is None:
            return "No world that was looked at has the memory for this job."
        world = self.chosen.world
        if not self.distribute:
            return f"Do not distribute this: {self.chosen.strategy.value} with one process."
        return f"Distribute this: {self.chosen.strategy.value} with {world.processes} processes, {world.share} samples each."


def advise(costs: Costs, sizes: Sequence[int], *, samples: int, framework: Framework, machine_bytes: float | None) -> Advice:
    """Over worlds of these `sizes`, the first of which is 1, for steps of `samples`. `machine_bytes`: the memory that all processes
    share, or that each has where each has a machine of its own."""
    candidates = [_candidate(costs, size, samples=samples, framework=framework, machine_bytes=machine_bytes) for size in sizes]
    fitting = [one for one in candidates if one.fits]
    chosen = _choose(fitting) if fitting else None
    larger = chosen.world.processes if chosen and chosen.world.processes > 1 else min((size for size in sizes if size > 1), default=1)
    batch = share_for(costs, larger, overhead=OVERHEAD)
    return Advice(candidates, chosen, batch, _reasons(costs, candidates, chosen, larger=larger, batch=batch))


def _candidate(costs: Costs, size: int, *, samples: int, framework: Framework, machine_bytes: float | None) -> Candidate:
    """The plain world where it fits into memory, else one that shards what it can."""
    world = predict(costs, size, samples=samples)
    room = machine_bytes and machine_bytes / (size if costs.processors else 1)
    if framework is Framework.TENSORFLOW:
        return Candidate(world, StrategyName.MULTI_WORKER_MIRRORED if size > 1 else StrategyName.ONE_DEVICE, room)
    plain = Candidate(world, StrategyName.DDP, room)
    if plain.fits or size == 1:
        return plain
    kept = costs.state_bytes * (1 - 1 / size)
    sharded = replace(world, communication=world.communication * SHARDING_TRAFFIC, memory=world.memory - kept)
    return Candidate(sharded, StrategyName.FSDP, room)


def _choose(fitting: Sequence[Candidate]) -> Candidate:
    fastest = min(fitting, key=lambda one: one.world.seconds)
    good = min((one for one in fitting if one.world.seconds <= AS_GOOD * fastest.world.seconds), key=lambda one: one.world.processes)
    alone = fitting[0]
    worth = alone.world.processes > 1 or alone.world.seconds >= WORTH_IT * good.world.seconds
    return good if worth else alone


def _reasons(costs: Costs, candidates: Sequence[Candidate], chosen: Candidate | None, *, larger: int, batch: int | None) -> list[str]:
    line = costs.steps[1]
    alone = candidates[0].world
    said = [
        f"One process takes {_time(alone.seconds)} for a step of {alone.samples} samples: {_time(line.fixed)} whatever their number, "
        f"and {_time(line.slope)} for each."
    ]
    said += [_against(one.world, alone) for one in candidates[1:]]
    if costs.processors and candidates[-1].world.processes > costs.processors:
        said.append(f"This machine has {costs.processors} processors: more processes than that take turns, and gain nothing.")
    said += [_memory(one) for one in candidates if not one.fits or one.strategy is StrategyName.FSDP]
    if chosen and chosen.world.processes == 1 and len(candidates) > 1:
        said.append(f"No world is {WORTH_IT:g} times as fast as one process, which is the least that makes up for its trouble.")
    if batch is None:
        said.append("A step costs the same whatever its samples: take as many as memory holds.")
    elif larger > 1:
        said.append(
            f"{larger} processes would spend at most {OVERHEAD:.0%} of a step on what does not grow with it from {batch} samples each on "
            f"(batch.globalSize: {batch * larger}). A larger batch is another training: see batch.learningRateScaling."
        )
    return said


def _against(world: World, alone: World) -> str:
    return (
        f"{world.processes} processes would compute {world.share} samples each in {_time(world.computing)}, and spend "
        f"{_time(world.communication)} on adding up their gradients: {alone.seconds / world.seconds:.2f} times as fast."
    )


def _memory(candidate: Candidate) -> str:
    world, room = candidate.world, candidate.room or 0.0
    needs = f"{_bytes(world.memory)} in each of {world.processes} processes, and each has {_bytes(room)}"
    if not candidate.fits:
        return f"{candidate.strategy.value} needs {needs}: too little."
    return f"With FSDP, which cuts up parameters, gradients and the optimizer's state, it needs {needs}; whole copies would not fit."


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.3g} µs"


def _bytes(count: float) -> str:
    return f"{count / MEBI:,.0f} MiB"
