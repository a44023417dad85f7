"""Devices that nodes report as unhealthy."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.status import FailureClass, Reason
from muster.control.kubernetes_events import events_between
from muster.lifecycle.actions import DeleteReplica
from tests.unit.lifecycle.lifecycle_cases import Story, at, failed, replica, report, running, running_story

SICK: dict[str, Any] = {"unhealthy_devices": ("nvidia.com/gpu GPU-3",)}


def there(index: int, attempt: int = 0, **fields: Any) -> Any:
    """A replica on a node of its own, with a supervisor that can restart in place."""
    reported = report(f"worker-{index}", attempt=attempt, inPlace=True)
    return replica(f"worker-{index}", node=f"node-{index}", report=reported, uid=f"worker-{index}/0", reported=at(80), **fields)


def since(story: Story) -> list[Any]:
    assert story.status.world
    return [member.unhealthy_since for member in story.status.world.members]


def test_a_device_that_is_unhealthy_for_ten_seconds_ends_the_attempt() -> None:
    story = running_story(2)
    decision = story.see(there(0), there(1, **SICK), seconds=100)
    assert since(story) == [None, at(100)]
    assert decision.wake == at(110)
    story.see(there(0), there(1, **SICK), seconds=109.9)
    assert story.status.attempts[-1].end_time is None
    before = story.status
    decision = story.see(there(0), there(1, **SICK), seconds=110)
    record = story.status.attempts[0]
    assert (record.failure_class, record.reason, record.replica) == (FailureClass.INFRASTRUCTURE, Reason.DEVICE_UNHEALTHY, "worker-1")
    assert (record.node, record.failed_time) == ("node-1", at(100))
    assert "nvidia.com/gpu GPU-3" in record.message
    assert [(node.name, node.deaths) for node in story.status.avoided_nodes] == [("node-1", 1)]
    assert story.status.world
    assert [member.uid for member in story.status.world.members] == ["worker-0/0", ""], "the pod with the device is replaced"
    assert [action.name for action in decision.actions if isinstance(action, DeleteReplica)] == ["digits-worker-1"]
    told = [event for event in events_between(before, story.status) if event.reason == "DeviceUnhealthy"]
    assert len(told) == 1
    assert told[0].warning
    assert "node-1" in told[0].message
    again = story.status
    story.see(there(0), there(1, **SICK), seconds=111)
    assert [event for event in events_between(again, story.status) if event.reason == "DeviceUnhealthy"] == []


def test_a_device_that_recovers_in_time_restarts_nothing() -> None:
    story = running_story(2)
    for second in (100, 120, 140):
        story.see(there(0), there(1, **SICK), seconds=second)
        story.see(there(0), there(1), seconds=second + 9)
        assert since(story) == [None, None]
    assert story.status.attempt == 0
    assert story.status.avoided_nodes == ()


def test_a_new_leader_counts_on_from_the_status() -> None:
    story = running_story(2)
    story.see(there(0), there(1, **SICK), seconds=100)
    story.see(replica("worker-0"), replica("worker-1", node="node-1", **SICK), seconds=112)
    assert story.status.attempts[0].reason is Reason.DEVICE_UNHEALTHY


def test_a_failure_with_an_unhealthy_device_is_put_down_to_it_at_once() -> None:
    story = running_story(2)
    story.see(*running(1), failed("worker-1", 10, seconds=99, node="node-1", message="CUDA error", **SICK), seconds=100)
    [record, _] = story.status.attempts
    assert (record.failure_class, record.reason) == (FailureClass.INFRASTRUCTURE, Reason.DEVICE_UNHEALTHY)
    assert record.message.endswith("; CUDA error")
    assert [node.name for node in story.status.avoided_nodes] == ["node-1"]


def test_health_that_is_reported_after_the_failure_corrects_it() -> None:
    story = running_story(2)
    story.see(*running(1), failed("worker-1", 10, seconds=99, node="node-1"), seconds=100)
    assert story.status.attempts[0].reason is Reason.USER_ERROR
    story.see(*running(1), failed("worker-1", 10, seconds=99, node="node-1", **SICK), seconds=101)
    assert story.status.attempts[0].reason is Reason.DEVICE_UNHEALTHY
    assert [node.name for node in story.status.avoided_nodes] == ["node-1"]


def test_a_device_that_fails_in_a_later_attempt_does_not_explain_an_earlier_one() -> None:
    story = running_story(2)
    said = {"code": 10, "attempt": 0, "message": "ValueError"}
    story.see(there(0), failed("worker-1", 20, seconds=99), seconds=100)
    moved_on = report("worker-0", attempt=1, inPlace=True, termination=said)
    story.see(replica("worker-0", uid="worker-0/0", report=moved_on, reported=at(101), attempt=1, **SICK), seconds=101)
    assert story.status.attempts[0].reason is Reason.USER_ERROR


def test_a_device_explains_more_than_the_errors_of_others() -> None:
    story = running_story(3)
    story.see(failed("worker-0", 10, seconds=90), *running(3)[1:2], failed("worker-2", 10, seconds=99, **SICK), seconds=100)
    assert (story.status.attempts[0].reason, story.status.attempts[0].replica) == (Reason.DEVICE_UNHEALTHY, "worker-2")


@pytest.mark.parametrize("phase", ["Pending", "Succeeded"])
def test_only_replicas_that_run_count(phase: str) -> None:
    story = running_story(2)
    story.see(there(0), replica("worker-1", phase=phase, **SICK), seconds=100)
    story.see(there(0), replica("worker-1", phase=phase, **SICK), seconds=120)
    assert since(story) == [None, None]
    assert story.status.attempts[-1].reason is None


def test_a_device_taint_is_no_preemption_and_its_node_is_avoided() -> None:
    story = running_story(2)
    taint = {"disruption": "DeletionByDeviceTaintManager", "message": "taint (d/p/gpu-3)", "deleting": at(100)}
    story.see(there(0), there(1, **taint), seconds=100)
    record = story.status.attempts[0]
    assert (record.failure_class, record.reason, record.message) == (
        FailureClass.INFRASTRUCTURE,
        Reason.DEVICE_TAINTED,
        "taint (d/p/gpu-3)",
    )
    assert [node.name for node in story.status.avoided_nodes] == ["node-1"]
    assert story.status.restarts.preemption_count == 0
