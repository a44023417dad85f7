"""The work of a pass grows with the number of replicas, and not with its square. Function calls are counted, not seconds."""

from __future__ import annotations

import cProfile
import pstats
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from muster.lifecycle.actions import DeleteReplica
from muster.strategies.registry import strategy_of
from tests.unit.lifecycle.lifecycle_cases import Story, at, failed, job, replica, report, running_story


def calls_of_passes(size: int) -> int:
    """The function calls of the passes in which a world starts, loses half of its replicas, and is replaced."""
    story, views = Story(job(workers=size)), [replica(f"worker-{index}") for index in range(size)]
    half = size // 2
    kept, lost = views[:half], [failed(f"worker-{index}", 137, seconds=20) for index in range(half, size)]
    pending: list[Any] = [replica(f"worker-{index}", attempt=1, phase="Pending") for index in range(half, size)]
    profile = cProfile.Profile()
    profile.enable()
    for views_then, seconds in (((), 0), (views, 10), ([*kept, *lost], 20), (kept, 21), ([*kept, *pending], 25)):
        story.see(*views_then, seconds=seconds)
    profile.disable()
    assert story.status.attempt == 1
    return int(vars(pstats.Stats(profile))["total_calls"])


def test_a_pass_over_eight_times_the_replicas_needs_eight_times_the_calls() -> None:
    calls_of_passes(8)  # fills caches
    few, many = calls_of_passes(128), calls_of_passes(1024)
    assert many < 12 * few, (few, many)


def calls_without_news(size: int) -> int:
    """The function calls of a pass in which nothing has changed."""
    story, views = Story(job(workers=size)), [replica(f"worker-{index}", report=report(f"worker-{index}")) for index in range(size)]
    story.see(seconds=0)
    story.see(*views, seconds=10)
    profile = cProfile.Profile()
    profile.enable()
    story.see(*views, seconds=11)
    profile.disable()
    return int(vars(pstats.Stats(profile))["total_calls"])


def test_a_pass_without_news_needs_few_calls_for_each_replica() -> None:
    """A recovery of a large world needs several such passes."""
    calls_without_news(8)  # fills caches
    assert (calls_without_news(512) - calls_without_news(256)) / 256 < 125


def test_a_replica_with_a_report_differs_only_in_that() -> None:
    view, newest, time = replica("worker-0"), report(step=3), datetime(2026, 1, 1, tzinfo=UTC)
    changed = view.with_report(newest, time=time, missed_seconds=2.0)
    assert changed == replace(view, report=newest, reported=time, missed_seconds=2.0)
    assert view.report is None


def test_the_size_of_a_part_of_a_world_is_known_without_the_part() -> None:
    roles = {"chief": {}, "worker": {"replicas": 3}, "ps": {}}
    for each in (job(workers=4), job(strategy="ParameterServer", roles=roles)):
        plan = strategy_of(each.spec.strategy).plan(each.spec)
        for members in (set(plan.positions), {("worker", 1), ("worker", 2)}, {("ps", 0), ("worker", 9)}, set()):
            assert plan.size_of(members) == plan.part(members).size


def calls_of_reports(size: int) -> int:
    """The function calls of a pass in which each replica reports a pace, and libraries that no other replica has."""
    story, views = running_story(size), []
    for rank in range(size):
        pace = {"rank": rank, "step": 7, "seconds": 0.1, "ownSeconds": 0.02 * (1 + rank)}
        libraries = {f"library-{rank}-{number}": "1.0" for number in range(16)}
        shown = report(f"worker-{rank}", step=7, at_second=30, ranks=[pace], fingerprints=[{"rank": rank, "libraries": libraries}])
        views.append(replica(f"worker-{rank}", report=shown, reported=at(30)))
    profile = cProfile.Profile()
    profile.enable()
    story.see(*views, seconds=30)
    profile.disable()
    assert story.status.stragglers
    assert story.status.notices
    return int(vars(pstats.Stats(profile))["total_calls"])


def test_ranks_are_compared_without_comparing_each_with_each() -> None:
    calls_of_reports(8)  # fills caches
    few, many = calls_of_reports(32), calls_of_reports(256)
    assert many < 12 * few, (few, many)


def calls_of_leaving(size: int) -> int:
    """The function calls of a pass that deletes old pods, while half of the world has not acknowledged the new attempt yet."""
    views = [replica(f"worker-{index}", report=report(f"worker-{index}", step=3, inPlace=True), reported=at(10)) for index in range(size)]
    story, half = Story(job(workers=size)), size // 2
    story.see(seconds=0)
    story.see(*views, seconds=10)
    seen = [*views[:half], *(failed(f"worker-{index}", 137, seconds=20) for index in range(half, size))]
    story.see(*seen, seconds=20)
    old = [replace(replica(f"worker-{index}"), uid=f"old-{index}", name=f"old-{index}") for index in range(size)]
    profile = cProfile.Profile()
    profile.enable()
    decision = story.see(*seen, *old, seconds=21)
    profile.disable()
    assert len([action for action in decision.actions if isinstance(action, DeleteReplica)]) >= size
    return int(vars(pstats.Stats(profile))["total_calls"])


def test_the_deletion_of_old_pods_does_not_compare_each_with_each_member() -> None:
    calls_of_leaving(8)  # fills caches
    few, many = calls_of_leaving(64), calls_of_leaving(512)
    assert many < 12 * few, (few, many)
