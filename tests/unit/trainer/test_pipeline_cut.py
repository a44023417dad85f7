"""The cut of a pipeline, compared with all possible cuts, and the error if there is none."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.errors import BadConfiguration
from muster_trainer.pytorch.pipeline_cut import MIB, Costs, Layer, StageMemory, cut_by_cost, cut_evenly, stage_memories

SCHEDULES = ("GPipe", "1F1B", "PipeDream")
size = st.integers(0, 40).map(lambda mib: mib * MIB)
layers = st.lists(
    st.builds(
        Layer,
        name=st.just("layer"),
        seconds=st.integers(0, 1000).map(float),  # whole numbers: sums are exact in any order
        parameters=size,
        activations=size,
        received=size,
        trains=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def costs_of(*layers: Layer, stages: int, schedule: str = "1F1B", micro_batches: int = 4) -> Costs:
    return Costs(layers, stage_memories(schedule, stages=stages, micro_batches=micro_batches, slots=2))


def layer(seconds: float = 1.0, *, name: str = "layer", parameters: int = 0, trains: bool = True) -> Layer:
    return Layer(name, seconds, parameters=parameters, activations=0, received=0, trains=trains)


def spelled_out(costs: Costs, stage: int, first: int, end: int) -> tuple[float, float, bool]:
    """Seconds, bytes, and whether the stage trains anything: layer by layer."""
    own, holds = costs.layers[first:end], costs.memories[stage]
    stored = own[0].received + sum(one.activations for one in own)
    memory = holds.copies * sum(one.parameters for one in own) + holds.micro_batches * stored
    return sum(one.seconds for one in own), memory, any(one.trains for one in own)


def all_cuts(costs: Costs) -> list[tuple[float, float]]:
    """Seconds and bytes of the largest stage of every cut whose stages all train something."""
    cuts, count = [], len(costs.layers)
    for inner in combinations(range(1, count), len(costs.memories) - 1):
        stages = [spelled_out(costs, stage, first, end) for stage, (first, end) in enumerate(pairwise([0, *inner, count]))]
        if all(trains for *_, trains in stages):
            cuts.append((max(seconds for seconds, *_ in stages), max(memory for _, memory, _ in stages)))
    return cuts


@given(layers, st.integers(1, 6), st.sampled_from(SCHEDULES), st.integers(1, 8), st.none() | st.integers(0, 10**6), st.integers(0, 1))
def test_a_cut_by_cost_is_the_best_of_all_cuts(
    layers: list[Layer], stages: int, schedule: str, micro_batches: int, tight: int | None, less: int
) -> None:
    costs = costs_of(*layers, stages=stages, schedule=schedule, micro_batches=micro_batches)
    cuts = all_cuts(costs)
    limit = int(cuts[tight % len(cuts)][1]) - less if cuts and tight is not None else None  # the memory of one of the cuts, or a byte less
    best = min((seconds for seconds, memory in cuts if limit is None or memory <= limit), default=inf)
    if best == inf:
        with pytest.raises(BadConfiguration):
            cut_by_cost(costs, limit)
        return
    sizes = cut_by_cost(costs, limit)
    ends = [sum(sizes[: stage + 1]) for stage in range(stages)]
    stage_costs = [spelled_out(costs, stage, first, end) for stage, (first, end) in enumerate(pairwise([0, *ends]))]
    assert ends[-1] == len(layers)
    assert max(seconds for seconds, *_ in stage_costs) == best
    assert all(trains and (limit is None or memory <= limit) for _, memory, trains in stage_costs)


@given(layers, st.integers(1, 12))
def test_an_even_cut_gives_each_stage_an_equal_number_of_trained_layers(layers: list[Layer], stages: int) -> None:
    costs = costs_of(*layers, stages=stages)
    trained = sum(one.trains for one in layers)
    if stages > trained:
        count = rf"{trained} layer\(s\)" if trained else "no layers"
        with pytest.raises(BadConfiguration, match=rf"{stages} stages, .*{count} "):
            cut_evenly(costs)
        return
    sizes = cut_evenly(costs)
    ends = [0, *(sum(sizes[: stage + 1]) for stage in range(stages))]
    counts = [sum(one.trains for one in layers[first:end]) for first, end in pairwise(ends)]
    assert ends[-1] == len(layers)
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


def test_a_layer_that_fits_in_no_stage_is_named_with_the_memory_it_needs() -> None:
    costs = costs_of(layer(), layer(name="layer 1 (Linear)", parameters=10 * MIB), layer(), stages=2)
    with pytest.raises(BadConfiguration, match=r"layer 1 \(Linear\) .*40 MiB .*stageMemoryMiB: 39; .*40"):
        cut_by_cost(costs, 39 * MIB)
    assert cut_by_cost(costs, 40 * MIB)


def test_the_error_names_the_least_memory_if_no_cut_fits() -> None:
    costs = costs_of(*[layer(parameters=MIB)] * 5, stages=2)
    with pytest.raises(BadConfiguration, match=r"2 stages .*stageMemoryMiB: 11; .*12"):
        cut_by_cost(costs, 11 * MIB)
    assert cut_by_cost(costs, 12 * MIB) in ([2, 3], [3, 2])
    with pytest.raises(BadConfiguration, match="12 MiB"):
        cut_evenly(costs, 11 * MIB)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("GPipe", [StageMemory(4, 8)] * 4),
        ("1F1B", [StageMemory(4, 4), StageMemory(4, 3), StageMemory(4, 2), StageMemory(4, 1)]),
        ("PipeDream", [StageMemory(8, 4), StageMemory(7, 3), StageMemory(6, 2), StageMemory(4, 1)]),
    ],
)
def test_each_schedule_has_its_copies_and_micro_batches_per_stage(schedule: str, expected: list[StageMemory]) -> None:
    assert stage_memories(schedule, stages=4, micro_batches=8, slots=2) == expected


@pytest.mark.parametrize(
    ("layers", "message"),
    [((), "2 stages, .*no layers$"), ((layer(trains=False),), "no layers .*train$")],
)
def test_a_model_without_layers_to_train_is_refused(layers: tuple[Layer, ...], message: str) -> None:
    for cut in (cut_by_cost, cut_evenly):
        with pytest.raises(BadConfiguration, match=message):
            cut(costs_of(*layers, stages=2))
