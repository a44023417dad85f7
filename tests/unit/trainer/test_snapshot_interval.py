"""After which steps snapshots in memory are taken."""

from __future__ import annotations

import pytest

from muster_trainer.snapshots.interval import FIRST_STEPS, MOST, SPREAD, Cost, StepsBetween

STEP = 0.05


def between(fixed: int | None = None, *, after: int = 0) -> StepsBetween:
    made = StepsBetween(fixed)
    made.start(after)
    made.add_step(STEP)
    return made


def due(chosen: StepsBetween, steps: range) -> list[int]:
    """The steps after which a snapshot is due, if each is taken."""
    taken = []
    for step in steps:
        if chosen.is_due(step):
            chosen.start(step)
            taken.append(step)
    return taken


def cost(seconds: float, *, beside: float = 0.0, whole: float = 0.0, step: float = STEP) -> Cost:
    return Cost(seconds, beside, whole, step)


def test_a_fixed_number_counts_from_the_first_step_of_the_job() -> None:
    assert due(between(4, after=6), range(7, 21)) == [8, 12, 16, 20]
    assert due(between(1), range(1, 4)) == [1, 2, 3]


def test_a_fixed_number_does_not_depend_on_what_snapshots_cost() -> None:
    chosen = between(3)
    chosen.measure([cost(10.0)])
    assert chosen.steps == 3


def test_nothing_is_measured_before_the_first_snapshot() -> None:
    assert due(between(after=5), range(6, 30)) == list(range(5 + FIRST_STEPS, 30, FIRST_STEPS))


@pytest.mark.parametrize("seconds", [0.0001, 0.003, 0.05, 2.0])
def test_the_time_of_snapshots_is_at_most_its_share(seconds: float) -> None:
    chosen = between()
    chosen.measure([cost(seconds / 2, beside=seconds / 2)])
    assert SPREAD * seconds <= MOST * STEP * chosen.steps * (1 + 1e-9)
    assert chosen.steps == 1 or SPREAD * seconds > MOST * STEP * (chosen.steps - 1)


def test_the_slowest_rank_decides() -> None:
    chosen = between()
    chosen.measure([cost(0.001), cost(0.01), cost(0.002)])
    assert chosen.steps == 20


def test_a_snapshot_is_complete_before_the_next_one_is_due() -> None:
    chosen = between()
    chosen.measure([cost(0.0001, whole=1.0)])
    assert chosen.steps * STEP >= 1.0


def test_one_slow_snapshot_of_several_changes_nothing() -> None:
    chosen = between()
    for seconds in (0.01, 0.01, 30.0, 0.01):
        chosen.measure([cost(seconds)])
    assert chosen.steps == 20


def test_the_newest_snapshot_is_that_of_the_last_start() -> None:
    chosen = between(5)
    chosen.start(7)
    assert chosen.newest == 7
    assert chosen.next_after(7) == 10
