"""The seconds between saves that a job does not fix itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.training.interval import FIRST_SECONDS, LONGEST_SECONDS, Policy, SaveInterval, chosen_seconds

HOUR = 3600.0


@pytest.mark.parametrize(
    ("seconds", "blocked", "age", "failures", "expected"),
    [
        (0.5, 0.1, 0.0, 0, pytest.approx((2 * 0.1 * 6 * HOUR) ** 0.5)),
        (0.5, 0.1, 2 * HOUR, 3, pytest.approx((2 * 0.1 * 2 * HOUR) ** 0.5)),
        (40.0, 0.0, 0.0, 0, 40.0),
        (900.0, 900.0, 90 * 24 * HOUR, 0, LONGEST_SECONDS),
        (1.0, 0.1, -HOUR, 0, pytest.approx((2 * 0.1 * 6 * HOUR) ** 0.5)),
    ],
    ids=["a new job", "a job that fails", "not sooner than the save takes", "an hour at most", "a clock that is behind"],
)
def test_auto_weighs_the_cost_of_saves_against_that_of_failures(
    seconds: float, blocked: float, age: float, failures: int, expected: float
) -> None:
    assert chosen_seconds("Auto", seconds=seconds, blocked=blocked, age=age, failures=failures) == expected


def interval(**spec: object) -> SaveInterval:
    return SaveInterval(CheckpointSpec(directory="/c", **spec), job_created=datetime.now(UTC), failures=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "first"), [("Auto", FIRST_SECONDS), ("Continuous", 0.0)])
def test_the_first_save_shows_what_a_save_costs(policy: Policy, first: float) -> None:
    chosen = interval(interval=policy)
    assert chosen.seconds == first
    assert chosen.measure(seconds=3.0, blocked=2.0) == chosen.seconds
    assert (chosen.seconds == 0.0) == (policy == "Continuous")


@pytest.mark.parametrize("every", [None, 60.0])
def test_a_fixed_interval_stays_and_is_not_reported(every: float | None) -> None:
    fixed = interval(every_seconds=every)
    assert fixed.measure(seconds=3.0, blocked=2.0) is None
    assert fixed.seconds == every
