"""The nodes that a job avoids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.status import AttemptRecord, FailureClass, Reason, TrainingJobStatus
from muster.lifecycle.facts.facts import read
from muster.lifecycle.observed import Observed
from muster.lifecycle.policy import Policy
from muster.lifecycle.transition import avoided_nodes
from tests.unit.lifecycle.lifecycle_cases import T0, at, failed, job, replica, report, running, running_story

INFRASTRUCTURE, PREEMPTION, APPLICATION = FailureClass.INFRASTRUCTURE, FailureClass.PREEMPTION, FailureClass.APPLICATION


def ended(node: str | None, seconds: float, reason: Reason = Reason.PROCESS_KILLED, cls: FailureClass = INFRASTRUCTURE) -> AttemptRecord:
    return AttemptRecord(attempt=0, start_time=T0, failed_time=at(seconds), node=node, reason=reason, failure_class=cls)


def avoided(records: list[AttemptRecord], now: float) -> dict[str, int]:
    facts = read(job(), Observed(), at(now), policy=Policy(node_seconds=100))
    return {node.name: node.deaths for node in avoided_nodes.avoided(TrainingJobStatus(attempts=records), facts)}


@pytest.mark.parametrize(
    ("records", "now", "expected"),
    [
        ([ended("a", 0), ended("b", 10)], 20, {}),
        ([ended("a", 0), ended("b", 10), ended("a", 20)], 30, {"a": 2}),
        ([ended("a", 0), ended("a", 20)], 119, {"a": 2}),
        ([ended("a", 0), ended("a", 20)], 120, {}),
        ([ended("a", 0), ended("a", 100)], 110, {}),  # too far apart
        ([ended("a", 0, cls=APPLICATION), ended("a", 20, cls=APPLICATION)], 30, {}),
        ([ended("a", 0, Reason.DISRUPTED, PREEMPTION), ended("a", 20, Reason.EVICTED, PREEMPTION)], 30, {}),
        ([ended("a", 0, Reason.NODE_LOST, PREEMPTION), ended("a", 20, Reason.START_FAILED)], 30, {"a": 2}),
        ([ended("a", 0, Reason.PEER_LOST), ended("a", 20, Reason.STORAGE_UNAVAILABLE)], 30, {}),
        ([ended("a", 0, Reason.HANG), ended("a", 20, Reason.HANG)], 30, {}),  # the replica that reported is not the cause
        ([ended(None, 0), ended(None, 20)], 30, {}),
    ],
)
def test_a_node_is_avoided_after_two_deaths_that_may_be_its_fault(
    records: list[AttemptRecord], now: float, expected: dict[str, int]
) -> None:
    assert avoided(records, now) == expected


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300)), max_size=10), st.integers(0, 500))
def test_at_most_one_node_per_two_deaths_is_avoided_and_none_for_ever(deaths: list[tuple[str, int]], now: int) -> None:
    records = [ended(node, seconds) for node, seconds in sorted(deaths, key=lambda one: one[1])]
    names = avoided(records, now)
    assert len(names) <= len(deaths) // 2
    assert all(sum(node == name for node, _ in deaths) >= count >= 2 for name, count in names.items())
    assert avoided(records, 400) == {}


def there(index: int, attempt: int, **fields: Any) -> Any:
    """A replica on a node of its own, with a supervisor that can restart in place."""
    reported_one = report(f"worker-{index}", attempt=attempt, inPlace=True, **fields)
    uid = f"worker-{index}/0"
    return replica(f"worker-{index}", attempt=attempt, node=f"node-{index}", report=reported_one, reported=at(80), uid=uid)


def test_an_avoided_node_is_in_the_status_until_it_expires() -> None:
    story = running_story(2)
    for attempt in (0, 1):
        seconds = 60 + 100 * attempt
        story.see(*running(1, attempt=attempt), failed("worker-1", 137, attempt=attempt, seconds=seconds, node="node-1"), seconds=seconds)
        story.see(seconds=seconds + 20)
        story.see(*running(2, attempt=attempt + 1), seconds=seconds + 40)
    [node] = story.status.avoided_nodes
    assert (node.name, node.deaths, node.until) == ("node-1", 2, at(160 + 3600))
    assert story.status.attempts[0].node == "node-1"
    decision = story.see(*running(2, attempt=2), seconds=3700)
    assert decision.wake == at(160 + 3600)
    story.see(*running(2, attempt=2), seconds=160 + 3600)
    assert story.status.avoided_nodes == ()


@pytest.mark.parametrize(("steps", "expected"), [((5, 9), ["worker-0/0", "worker-1/0"]), ((5, 5), ["worker-0/0", ""])])
def test_a_replica_stays_on_a_bad_node_only_while_attempts_make_progress(steps: tuple[int, int], expected: list[str]) -> None:
    story = running_story(2)
    for attempt, step in enumerate(steps):
        termination = {"code": 137, "attempt": attempt, "step": step, "message": "killed"}
        story.see(there(0, attempt), there(1, attempt), seconds=60 + 100 * attempt)
        story.see(there(0, attempt), there(1, attempt, waiting=True, termination=termination), seconds=80 + 100 * attempt)
    assert story.status.world
    assert [member.uid for member in story.status.world.members] == expected
