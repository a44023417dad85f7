"""The measurement of durations, and their median with its interval."""

from __future__ import annotations

import random
import time

import pytest

from muster_trainer.measure.measuring import Timing, durations, timed


def test_the_interval_contains_the_true_median_with_its_confidence() -> None:
    draw = random.Random(7)
    for count in (7, 20, 101):
        timings = [Timing.of([draw.expovariate(1.0) for _ in range(count)]) for _ in range(2000)]
        held = sum(timing.low <= 0.6931 <= timing.high for timing in timings) / len(timings)
        assert 0.94 <= held <= 0.99, count
        assert all(timing.low <= timing.median <= timing.high for timing in timings)


@pytest.mark.parametrize(("count", "low", "high"), [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (20, 6, 15), (100, 40, 61)])
def test_the_interval_equals_the_tables_of_the_sign_test(count: int, low: int, high: int) -> None:
    timing = Timing.of([*range(count, 0, -1)])
    assert (timing.low, timing.high, timing.count) == (low, high, count)


def test_only_the_call_is_timed_without_warm_up_and_preparation() -> None:
    calls: list[str] = []
    clock = [0.0]

    def call() -> None:
        calls.append("call")
        clock[0] += 0.002 if calls.count("call") > 3 else 0.1

    def prepare() -> None:
        calls.append("prepare")
        clock[0] += 0.02

    synchronise = lambda: calls.append("synchronised")  # noqa: E731
    timing = timed(call, prepare=prepare, synchronise=synchronise, warm_up=3, least=5, most=5, clock=lambda: clock[0])
    assert (timing.low, timing.median, timing.high, timing.count) == pytest.approx((0.002, 0.002, 0.002, 5))
    assert calls == ["prepare", "synchronised", "call", "synchronised"] * 8


def test_a_call_is_repeated_as_often_as_all_ranks_agree() -> None:
    counts: list[int] = []

    def agree(count: int) -> int:
        counts.append(count)
        return 3

    assert len(durations(lambda: None, agree=agree, most=50)) == 3
    assert counts == [50]
    assert len(durations(lambda: time.sleep(0.02), seconds=0.0, least=4)) == 4
