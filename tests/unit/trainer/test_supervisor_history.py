"""The events that a supervisor retains of an attempt."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster_contract.events import Step
from muster_trainer.supervisor.history_writer import Series

MOST = 8

pytestmark = pytest.mark.timeout(300)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=100))
@example([(0, 0)] * 20)
@example([(0, 0), (0, 2)] * 20)
@example([(rank, 0) for rank in range(20)])
def test_a_series_of_any_steps_is_bounded_and_has_the_newest_event(steps: list[tuple[int, int]]) -> None:
    series = Series(MOST)
    for number, (rank, step) in enumerate(steps):
        series.add(Step(step=step, rank=rank), f"{rank} {step} {number}".encode())
    lines = [tuple(map(int, line.split())) for line in series.lines()]
    assert lines[-1] == (*steps[-1], len(steps) - 1)
    assert len(lines) <= MOST + 1
    if series.stride == 1:
        assert {(rank, step) for rank, step, _ in lines} == set(steps)
