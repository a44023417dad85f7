"""The advice of `muster plan`: whether to distribute a job, and how, with the reasons. Pure.

Several processes are advised only if they are clearly faster than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.api.spec import StrategyName
from muster.strategies.base import Measured
from muster.tools.measure.cost import Costs, World, predict, share_for

WORTH_IT = 1.2
"""The least speed-up of a world over one process, because restarts, waiting and moving data also cost time."""
AS_GOOD = 1.1
"""A world may take this many times as long as the fastest if it needs fewer processes."""
OVERHEAD = 0.2
"""The largest share of a step that may be independent of the number of samples, at the advised batch."""
SHARDING_TRAFFIC = 1.5
"""Traffic of FSDP divided by that of DDP, because FSDP gathers parameters twice (Rajbhandari et al., 2020, section 7)."""
MEBI = 2**20


@dataclass(frozen=True)
class Candidate:
    """A world with its strategy. `room` is the memory of each process in bytes, or None if it is unknown."""

    world: World
    strategy: StrategyName
    room: float | None
    shards: bool = False

    @property
    def fits(self) -> bool:
        return self.room is None or self.world.memory <= self.room


@dataclass(frozen=True)
class Advice:
    """`chosen` is None if no world has enough memory."""

    candidates: Sequence[Candidate]
    chosen: Candidate | None
    reasons: Sequence[str]

    @property
    def distribute(self) -> bool:
        return self.chosen is not None and self.chosen.world.processes > 1

    @property
    def sentence(self) -> str:
        if self.chosen is None:
            return "No world has enough memory for this job."
        world = self.chosen.world
        if not self.distribute:
            return f"Do not distribute this: {self.chosen.strategy} with one process."
        return f"Distribute this: {self.chosen.strategy} with {world.processes} processes, {world.share} samples each."


def advise(costs: Costs, sizes: Sequence[int], *, samples: int, measured: Measured, machine_bytes: float | None) -> Advice:
    """Compares worlds of these `sizes`, the first of which is 1, for steps of `samples`. `machine_bytes` is the memory that all processes
    share, or the memory of each process if each has its own machine."""
    candidates = [_candidate(costs, size, samples=samples, measured=measured, machine_bytes=machine_bytes) for size in sizes]
    fitting = [one for one in candidates if one.fits]
    chosen = _choose(fitting) if fitting else None
    larger = chosen.world.processes if chosen and chosen.world.processes > 1 else min((size for size in sizes if size > 1), default=1)
    batch = share_for(costs, larger, overhead=OVERHEAD)
    return Advice(candidates, chosen, _reasons(costs, candidates, chosen, larger=larger, batch=batch))


def _candidate(costs: Costs, size: int, *, samples: int, measured: Measured, machine_bytes: float | None) -> Candidate:
    """The plain world if it fits into memory, else one that shards the state."""
    world = predict(costs, size, samples=samples)
    room = machine_bytes and machine_bytes / (size if costs.processors else 1)
    plain = Candidate(world, measured.plain if size > 1 else measured.single, room)
    if measured.sharded is None or plain.fits or size == 1:
        return plain
    saved_bytes = costs.state_bytes * (1 - 1 / size)
    sharded = replace(world, communication=world.communication * SHARDING_TRAFFIC, memory=world.memory - saved_bytes)
    return Candidate(sharded, measured.sharded, room, shards=True)


def _choose(fitting: Sequence[Candidate]) -> Candidate:
    fastest = min(fitting, key=lambda one: one.world.seconds)
    good = min((one for one in fitting if one.world.seconds <= AS_GOOD * fastest.world.seconds), key=lambda one: one.world.processes)
    single = fitting[0]
    is_worth_it = single.world.processes > 1 or single.world.seconds >= WORTH_IT * good.world.seconds
    return good if is_worth_it else single


def _reasons(costs: Costs, candidates: Sequence[Candidate], chosen: Candidate | None, *, larger: int, batch: int | None) -> list[str]:
    line = costs.steps[1]
    single = candidates[0].world
    reasons = [
        f"One process takes {_time(single.seconds)} for a step of {single.samples} samples: a fixed {_time(line.fixed)}, "
        f"and {_time(line.slope)} for each sample."
    ]
    reasons += [_against(one.world, single) for one in candidates[1:]]
    if costs.processors and candidates[-1].world.processes > costs.processors:
        reasons.append(f"This machine has {costs.processors} processors, so more processes would not compute faster.")
    reasons += [_memory(one) for one in candidates if not one.fits or one.shards]
    if chosen and chosen.world.processes == 1 and len(candidates) > 1:
        reasons.append(f"No world is {WORTH_IT:g} times as fast as one process. A smaller speed-up is not worth the effort.")
    if batch is None:
        reasons.append("The time of a step does not depend on its samples, so use as many as fit into memory.")
    elif larger > 1:
        reasons.append(
            f"From {batch} samples each, {larger} processes would spend at most {OVERHEAD:.0%} of a step on fixed costs "
            f"(batch.globalSize: {batch * larger}). A larger batch changes the training; see batch.learningRateScaling."
        )
    return reasons


def _against(world: World, single: World) -> str:
    return (
        f"{world.processes} processes would compute {world.share} samples each in {_time(world.computing)}, and spend "
        f"{_time(world.communication)} on adding up their gradients: {single.seconds / world.seconds:.2f} times as fast."
    )


def _memory(candidate: Candidate) -> str:
    world, room = candidate.world, candidate.room or 0.0
    needs = f"{_bytes(world.memory)} in each of {world.processes} processes, and each has {_bytes(room)}"
    if not candidate.fits:
        return f"{candidate.strategy} needs {needs}, which is too little."
    sharding = "shards parameters, gradients and the optimizer's state"
    return f"{candidate.strategy} {sharding}, and needs {needs}. Whole copies would not fit."


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.3g} µs"


def _bytes(count: float) -> str:
    return f"{count / MEBI:,.0f} MiB"
