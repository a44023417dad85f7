"""The cost of a step in a world, and the advice that follows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.strategies.registry import STRATEGIES
from muster.tools.measure.advice import Advice, advise
from muster.tools.measure.cost import VOTES, Costs, Line, all_reduce, predict, share_for
from muster.tools.measure.plan_page import worlds_table

MEGA = 10**6
COSTS = st.floats(1e-6, 1e3)


def costs(*, slope: float = 1e-3, fixed: float = 0.0, link: Line | None = None, processors: int | None = None, state: int = 0) -> Costs:
    """Gradients of 1 MB; a link without latency that takes a millisecond for it."""
    return Costs(
        steps={1: Line(fixed, slope), 2: Line(fixed, slope)},
        memory=Line(100 * MEGA + state, 0.0),
        gradient_bytes=MEGA,
        state_bytes=state,
        link=link or Line(0.0, 1e-9),
        processors=processors,
    )


@given(st.floats(0, 10), st.floats(1e-6, 10), st.sets(st.integers(1, 10_000), min_size=2, max_size=6))
def test_a_line_is_recovered_from_its_points(fixed: float, slope: float, units: set[int]) -> None:
    line = Line.through({one: fixed + slope * one for one in units})
    assert all(line(one) == pytest.approx(fixed + slope * one, rel=1e-4) for one in units)


@given(st.dictionaries(st.integers(1, 10_000), COSTS, min_size=1, max_size=6))
def test_the_parts_of_a_cost_are_not_negative_and_fit_best(points: dict[int, float]) -> None:
    line = Line.through(points)
    assert line.fixed >= 0
    assert line.slope >= 0

    def error(fixed: float, slope: float) -> float:
        return math.fsum(((fixed + slope * units - cost) / cost) ** 2 for units, cost in points.items())

    best = error(line.fixed, line.slope)
    for more, steeper in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)):
        assert best <= error(line.fixed * more, line.slope * steeper) + 1e-9


@pytest.mark.parametrize(("processes", "sent"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_the_cost_of_an_all_reduce_is_that_of_a_ring(processes: int, sent: float) -> None:
    assert all_reduce(Line(0.0, 1e-9), MEGA, processes=processes) == pytest.approx(sent * 1e-3)
    assert all_reduce(Line(0.5, 0.0), MEGA, processes=processes) == pytest.approx(0.5 * (processes - 1))


def test_a_step_costs_its_largest_share_and_the_communication() -> None:
    world = predict(costs(fixed=0.002, link=Line(0.001, 1e-9)), 4, samples=10)
    assert world.share == 3
    assert world.computing == pytest.approx(0.002 + 3 * 0.001)
    assert world.communication == pytest.approx((1 + VOTES) * 3 * 0.001 + 1.5 * 0.001, rel=1e-3)


def test_processes_that_share_processors_are_slower() -> None:
    apart, shared = (predict(costs(processors=number), 4, samples=64) for number in (None, 2))
    assert shared.seconds == pytest.approx(2 * apart.seconds)
    assert predict(costs(processors=2), 2, samples=64).seconds == pytest.approx(predict(costs(), 2, samples=64).seconds)


@given(st.floats(0, 1), st.floats(1e-6, 1), st.integers(2, 64), st.floats(0.05, 0.5))
def test_the_advised_share_is_the_smallest_within_the_overhead(fixed: float, slope: float, processes: int, overhead: float) -> None:
    measured = costs(fixed=fixed, slope=slope)
    share = share_for(measured, processes, overhead=overhead)
    assert share is not None

    def spent(samples: int) -> float:
        world = predict(measured, processes, samples=samples * processes)
        return 1 - samples * slope / world.seconds

    assert spent(share) <= overhead + 1e-9
    assert share <= 1 or spent(share - 1) >= overhead - 1e-9


MEASURED = {name: strategy.measured for name, strategy in STRATEGIES.items() if strategy.measured}


def advised(measured: Costs, *, strategy: str = "DDP", memory: float | None = None) -> Advice:
    return advise(measured, [1, 2, 4], samples=64, measured=MEASURED[strategy], machine_bytes=memory)


@pytest.mark.parametrize(
    ("slope", "latency", "processors", "processes"),
    [
        (1e-2, 0.0, None, 4),  # 640, 321, 161.5 ms: as many as there are
        (1e-2, 0.0, 2, 2),  # four would take turns on two processors
        (1e-5, 0.0, None, 1),  # 0.64 ms, and a millisecond to add up gradients: not at all
        (1.3e-4, 2e-4, None, 2),  # 8.3, 5.8, 5.4 ms: four are hardly better than two
    ],
)
def test_the_advice_is_a_world_that_is_worth_its_processes(slope: float, latency: float, processors: int | None, processes: int) -> None:
    advice = advised(costs(slope=slope, link=Line(latency, 1e-9), processors=processors))
    assert advice.chosen is not None
    assert (advice.chosen.strategy, advice.chosen.world.processes) == ("DDP", processes)
    assert advice.distribute == (processes > 1)
    assert ("Do not distribute" in advice.sentence) == (processes == 1)
    if processes == 1:
        assert any("No world is 1.2 times as fast" in reason for reason in advice.reasons)


def test_a_model_too_large_for_one_process_is_sharded_or_refused() -> None:
    measured = costs(slope=1e-2, state=900 * MEGA)
    sharded = advised(measured, memory=700 * MEGA)
    assert sharded.chosen is not None
    assert (sharded.chosen.strategy, sharded.chosen.world.processes) == ("FSDP", 4)
    assert [one.fits for one in sharded.candidates] == [False, True, True]
    assert advised(measured, memory=50 * MEGA).chosen is None
    assert "No world" in advised(measured, memory=50 * MEGA).sentence
    assert advised(measured, strategy="Mirrored", memory=700 * MEGA).chosen is None


def test_processes_on_one_machine_share_its_memory() -> None:
    advice = advised(costs(slope=1e-2, processors=4), memory=250 * MEGA)
    assert [one.fits for one in advice.candidates] == [True, True, False]
    assert any("too little" in reason for reason in advice.reasons)


def test_the_plan_shows_what_an_epoch_costs_in_each_world() -> None:
    advice = advised(costs())
    table = worlds_table(advice, prices=[("", 2.0), ("spot", 0.5)], epoch=64_000)
    hours, cost = table.head.index("device-h an epoch"), table.head.index("cost an epoch")
    for row, one in zip(table.rows, advice.candidates, strict=True):
        assert row[hours] == pytest.approx(1000 * one.world.seconds * one.world.processes / 3600)
        assert row[cost : cost + 2] == pytest.approx(
            [factor * 1000 * one.world.seconds * one.world.processes / 3600 for factor in (2, 0.5)]
        )
    assert table.head[cost + 1] == "cost an epoch, spot"
    assert "cost an epoch" not in worlds_table(advice).head
