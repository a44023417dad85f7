"""Decides the cut of a pipeline: the layers of each stage. The functions are pure and need no framework.

The stages of a pipeline work at the same time, so the slowest stage decides the speed. The cut by cost makes the slowest stage as fast as
possible, by dynamic programming over the layers, as the partitioner of PipeDream does (Narayanan et al., 2019, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, inf

from muster_contract.errors import BadConfiguration

MIB = 2**20


@dataclass(frozen=True)
class Layer:
    """The cost of a layer with one micro-batch: the `seconds` of its forward and backward pass, and sizes in bytes.

    `activations` is the size of the tensors that only this layer saves for its backward pass. `received` is the size of those that the
    previous layer saves too. They are added if a stage begins with this layer. `trains` is True if some parameters are trained.
    """

    name: str
    seconds: float
    parameters: int
    activations: int
    received: int
    trains: bool


@dataclass(frozen=True)
class StageMemory:
    """The memory of a stage: the size of its parameters times `copies`, and the saved activations of `micro_batches` micro-batches.

    `copies` includes gradients, the state of the optimizer, and older versions of the parameters.
    """

    copies: int
    micro_batches: int


def stage_memories(schedule: str, *, stages: int, micro_batches: int, slots: int) -> list[StageMemory]:
    """The memory of each stage. `slots` is the number of numbers that the optimizer has for each parameter.

    GPipe runs all forward passes first. With 1F1B, the number of forward passes that a stage runs ahead is the number of stages from it
    to the last. PipeDream also stashes weights for each of them.
    """

    def ahead(stage: int) -> int:
        waiting = micro_batches if schedule == "GPipe" else stages - stage
        return waiting if schedule == "PipeDream" else min(waiting, micro_batches)

    def copies(stage: int) -> int:
        return 2 + slots + (ahead(stage) if schedule == "PipeDream" and stage < stages - 1 else 0)

    return [StageMemory(copies(stage), ahead(stage)) for stage in range(stages)]


class Costs:
    """The layers of a model that is to be cut, and the memory of each stage."""

    def __init__(self, layers: Sequence[Layer], memories: Sequence[StageMemory]) -> None:
        self.layers, self.memories = layers, memories
        self._seconds = _sums(layer.seconds for layer in layers)
        self._parameters = _sums(layer.parameters for layer in layers)
        self._activations = _sums(layer.activations for layer in layers)
        self._trained = _sums(layer.trains for layer in layers)

    def seconds(self, first: int, end: int) -> float:
        """The seconds of the layers from `first` to `end` (exclusive)."""
        return self._seconds[end] - self._seconds[first]

    def bytes(self, stage: int, first: int, end: int) -> float:
        """The bytes of `stage`, if it has the layers from `first` to `end` (exclusive)."""
        saved = self._activations[end] - self._activations[first] + self.layers[first].received
        return self.memories[stage].copies * (self._parameters[end] - self._parameters[first]) + self.memories[stage].micro_batches * saved

    def trains(self, first: int, end: int) -> bool:
        return self._trained[end] > self._trained[first]


def _sums(values: Iterable[float]) -> list[float]:
    """The sums of the first 0, 1, 2, ... values."""
    return list(accumulate(values, initial=0))


def cut_by_cost(costs: Costs, limit: int | None = None) -> list[int]:
    """The number of layers of each stage, so that the slowest stage takes the fewest seconds. No stage takes more than `limit` bytes, and
    each has parameters to train. Raises BadConfiguration if there is no such cut."""
    check_depth(costs.layers, len(costs.memories))

    def seconds(stage: int, first: int, end: int) -> float:
        fits = limit is None or costs.bytes(stage, first, end) <= limit
        return costs.seconds(first, end) if fits and costs.trains(first, end) else inf

    def size(stage: int, first: int, end: int) -> float:
        return costs.bytes(stage, first, end) if costs.trains(first, end) else inf

    _, ends = _smallest_largest(len(costs.layers), len(costs.memories), seconds)
    if ends is None:
        assert limit is not None
        raise _too_large(costs, limit, least=_smallest_largest(len(costs.layers), len(costs.memories), size)[0])
    return [end - first for first, end in pairwise([0, *ends])]


def cut_evenly(costs: Costs, limit: int | None = None) -> list[int]:
    """The number of layers of each stage, so that all have the same number of layers with parameters. The first stages may have one more.
    A layer without parameters is in the stage of the layer before it. Raises BadConfiguration if a stage takes more than `limit` bytes."""
    stages = len(costs.memories)
    check_depth(costs.layers, stages)
    starts = [position for position, layer in enumerate(costs.layers) if layer.trains]
    counts = [len(starts) // stages + (stage < len(starts) % stages) for stage in range(stages)]
    firsts = [0, *(starts[before] for before in accumulate(counts[:-1])), len(costs.layers)]
    sizes = [end - first for first, end in pairwise(firsts)]
    largest = max(costs.bytes(stage, firsts[stage], firsts[stage + 1]) for stage in range(stages))
    if limit is not None and largest > limit:
        raise BadConfiguration(
            f"an even cut needs {_mib(largest)} MiB in a stage, more than spec.options.pipeline.stageMemoryMiB: {limit // MIB}; "
            f"write {_mib(largest)}, or cut: Cost"
        )
    return sizes


def check_depth(layers: Sequence[Layer], stages: int) -> None:
    """Raises BadConfiguration if there are more stages than layers to train."""
    count = sum(layer.trains for layer in layers)
    if count == 0:
        raise BadConfiguration(f"{stages} stages, but the model has no layers{' with parameters to train' if layers else ''}")
    if count < stages:
        raise BadConfiguration(
            f"{stages} stages, but the model has {count} layer(s) with parameters; write {count} stages at most, or a deeper model"
        )


def _smallest_largest(count: int, stages: int, cost: Callable[[int, int, int], float]) -> tuple[float, list[int] | None]:
    """Of all cuts of `count` layers, the one whose largest `cost(stage, first, end)` is the smallest. Returns that cost, and the end of
    each stage. The ends are None if every cut has an infinite cost.

    `best[end]` is the cost of the layers before `end`, cut into the stages so far. A longer stage costs more. So if a stage costs as much
    as the best cut so far, longer stages are not tried.
    """
    best = [0.0] + [inf] * count
    choices: list[list[int]] = []
    for stage in range(stages):
        before, best = best, [inf] * (count + 1)
        choice = [0] * (count + 1)
        for end in range(stage + 1, count + 1):
            for first in range(end - 1, stage - 1, -1):
                alone = cost(stage, first, end)
                if inf > alone >= best[end]:
                    break
                if max(before[first], alone) < best[end]:
                    best[end], choice[end] = max(before[first], alone), first
        choices.append(choice)
    if best[count] == inf:
        return inf, None
    ends = [count]
    for choice in reversed(choices[1:]):
        ends.insert(0, choice[ends[0]])
    return best[count], ends


def _too_large(costs: Costs, limit: int, *, least: float) -> BadConfiguration:
    """The error if every cut exceeds the limit. It names a layer that fits into no stage, if there is one."""
    setting = f"spec.options.pipeline.stageMemoryMiB: {limit // MIB}"
    for position, layer in enumerate(costs.layers):
        alone = min(costs.bytes(stage, position, position + 1) for stage in range(len(costs.memories)))
        if alone > limit:
            remedy = f"write {_mib(least)} at least, more microBatches, or a smaller layer"
            return BadConfiguration(f"{layer.name} alone takes {_mib(alone)} MiB in training, more than {setting}; {remedy}")
    remedy = f"write {_mib(least)} at least, or more stages"
    return BadConfiguration(f"no cut into {len(costs.memories)} stages keeps each of them within {setting}; {remedy}")


def _mib(size: float) -> int:
    return ceil(size / MIB)
