"""The detection of ranks that are slower than the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.status import Condition, ConditionType
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import Story, at, replica, report, running, running_story


def seen(subject: Story, own: list[float | None], *, seconds: float = 30, step: float = 0.1, attempt: int = 0) -> Condition | None:
    """Reports the own time of each rank in a step of `step` seconds, and returns the condition."""
    views = []
    for rank, mine in enumerate(own):
        pace: dict[str, Any] = {"rank": rank, "step": 7, "updatedAt": at(seconds).timestamp(), "seconds": step, "ownSeconds": mine}
        reported = report(f"worker-{rank}", step=7 if rank == 0 else None, at_second=seconds, ranks=[pace], attempt=attempt)
        views.append(replica(f"worker-{rank}", report=reported, reported=at(seconds), attempt=attempt))
    subject.see(*views, seconds=seconds)
    return subject.status.condition(ConditionType.STRAGGLING)


@pytest.mark.parametrize(
    ("own", "slow"),
    [
        ([0.02, 0.02, 0.08], [(2, "worker-2")]),
        ([0.02, 0.08], [(1, "worker-1")]),
        ([0.09, 0.02, 0.02, 0.08], [(0, "worker-0"), (3, "worker-3")]),
        ([0.02, 0.02, 0.029], []),  # half more, but little in a step of 0.1 s
        ([0.001, 0.001, 0.008], []),
        ([0.06, 0.06, 0.08], []),
        ([0.02, 0.08, None], []),  # one has not reported yet
    ],
)
def test_a_rank_is_slow_if_it_is_above_the_median_and_delays_the_step(own: list[float | None], slow: list[tuple[int, str]]) -> None:
    subject = running_story(len(own))
    condition = seen(subject, own)
    assert [(each.rank, each.replica) for each in subject.status.stragglers] == slow
    assert (condition is not None) is bool(slow)


def test_a_straggler_is_named_until_it_is_well_below_the_threshold() -> None:
    subject = running_story(3)
    named = seen(subject, [0.02, 0.02, 0.08], seconds=30)
    assert named
    assert (named.status, named.reason) == ("True", "SlowRank")
    assert absent(named.message, "rank 2", "worker-2", "0.08 s", "0.02 s") == []
    assert seen(subject, [0.02, 0.02, 0.07], seconds=70) == named
    assert seen(subject, [0.02, 0.02, 0.027], seconds=110) == named, "still above what makes it one of the others"
    cleared = seen(subject, [0.02, 0.02, 0.022], seconds=150)
    assert cleared
    assert (cleared.status, cleared.reason, cleared.last_transition_time) == ("False", "RanksAreEven", at(150))
    assert seen(subject, [0.02, 0.02, 0.027], seconds=190) == cleared


@pytest.mark.parametrize(("own", "slow"), [([0.026, 0.02], []), ([0.02, 0.026], [1]), ([0.08, 0.02], [0])])
def test_a_rank_that_was_even_becomes_slow_at_the_higher_bound_only(own: list[float | None], slow: list[int]) -> None:
    subject = running_story(2)
    seen(subject, [0.02, 0.08], seconds=30)
    seen(subject, own, seconds=70)
    assert [each.rank for each in subject.status.stragglers] == slow


@given(st.lists(st.floats(0.001, 10), min_size=2, max_size=6), st.integers(-1, 7).map(lambda exponent: 2.0**exponent))
def test_stragglers_do_not_depend_on_the_unit_and_are_never_all_ranks(own: list[float], factor: float) -> None:
    """Factors are powers of two, because others round values at the bounds."""
    step, here, there = max(own), running_story(len(own)), running_story(len(own))
    seen(here, [*own], step=step)
    seen(there, [each * factor for each in own], step=step * factor)
    assert [each.rank for each in here.status.stragglers] == [each.rank for each in there.status.stragglers]
    assert len(here.status.stragglers) < len(own)


def test_a_condition_of_an_older_version_stays_until_the_ranks_are_compared() -> None:
    """Older versions did not list the stragglers in the status."""
    subject = running_story(3)
    old = seen(subject, [0.02, 0.02, 0.08], seconds=30)
    subject.job = subject.job.with_status(replace(subject.status, stragglers=()))
    subject.see(*running(3), seconds=60)
    assert subject.status.condition(ConditionType.STRAGGLING) == old
    cleared = seen(subject, [0.02, 0.02, 0.02], seconds=90)
    assert cleared
    assert (cleared.status, cleared.reason) == ("False", "RanksAreEven")
