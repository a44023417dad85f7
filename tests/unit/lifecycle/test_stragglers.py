"""Is one rank slower than the others?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.status import Condition, ConditionType
from tests.unit.lifecycle.lifecycle_cases import Story, at, replica, report, running, running_story


def seen(subject: Story, own: list[float | None], *, seconds: float = 30, step: float = 0.1, attempt: int = 0) -> Condition | None:
    """The condition after each rank has told how long it works in a step of `step` seconds."""
    views = []
    for rank, mine in enumerate(own):
        pace: dict[str, Any] = {"rank": rank, "step": 7, "updatedAt": at(seconds).timestamp(), "seconds": step, "ownSeconds": mine}
        said = report(f"worker-{rank}", step=7 if rank == 0 else None, at_second=seconds, ranks=[pace], attempt=attempt)
        views.append(replica(f"worker-{rank}", report=said, reported=at(seconds), attempt=attempt))
    subject.see(*views, seconds=seconds)
    return subject.status.condition(ConditionType.STRAGGLING)


@pytest.mark.parametrize(
    ("own", "slow"),
    [
        ([0.02, 0.02, 0.08], [(2, "worker-2")]),
        ([0.02, 0.08], [(1, "worker-1")]),
        ([0.09, 0.02, 0.02, 0.08], [(0, "worker-0"), (3, "worker-3")]),
        ([0.02, 0.02, 0.029], []),  # half more, but nothing beside a step of 0.1 s
        ([0.001, 0.001, 0.008], []),
        ([0.06, 0.06, 0.08], []),
        ([0.02, 0.08, None], []),  # one has not told yet
    ],
)
def test_a_rank_is_slow_beside_the_median_of_the_others_where_it_costs_the_step_something(
    own: list[float | None], slow: list[tuple[int, str]]
) -> None:
    subject = running_story(len(own))
    found = seen(subject, own)
    assert [(each.rank, each.replica) for each in subject.status.stragglers] == slow
    assert (found is not None) is bool(slow)


def test_it_is_named_until_it_is_well_below_and_its_figures_alone_write_nothing() -> None:
    subject = running_story(3)
    named = seen(subject, [0.02, 0.02, 0.08], seconds=30)
    assert named
    assert (named.status, named.reason) == ("True", "SlowRank")
    assert named.message == "rank 2 (worker-2) works 0.08 s in each step, the others 0.02 s and wait"
    assert seen(subject, [0.02, 0.02, 0.07], seconds=70) == named
    assert seen(subject, [0.02, 0.02, 0.027], seconds=110) == named, "still above what makes it one of the others"
    cleared = seen(subject, [0.02, 0.02, 0.022], seconds=150)
    assert cleared
    assert (cleared.status, cleared.reason, cleared.last_transition_time) == ("False", "RanksAreEven", at(150))
    assert seen(subject, [0.02, 0.02, 0.027], seconds=190) == cleared


@given(st.lists(st.floats(0.001, 10), min_size=2, max_size=6), st.floats(0.5, 100))
def test_names_do_not_depend_on_the_unit_and_never_are_all_ranks(own: list[float], factor: float) -> None:
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
