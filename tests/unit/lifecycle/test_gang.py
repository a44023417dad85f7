"""The size of a gang, and a job that waits for nodes for its gang."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from muster.api.status import Member, Phase, TrainingJobStatus, World
from muster.lifecycle.actions import CreateReplica
from muster.lifecycle.facts import gang
from tests.unit.lifecycle.lifecycle_cases import Story, at, job, replica, running

UNSCHEDULABLE = {"phase": "Pending", "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient cpu"}


def waiting_story(**spec: Any) -> Story:
    """A job with a PodGroup and two pods without a node."""
    story = Story(job(**spec))
    story.see(seconds=0)
    story.job = story.job.with_status(replace(story.status, gang_scheduler="scheduling.k8s.io"))
    story.see(*running(**UNSCHEDULABLE), seconds=1)
    return story


@pytest.mark.parametrize(
    ("strategy", "roles", "elastic", "succeeded", "size"),
    [
        ("DDP", {"worker": {"replicas": 4}}, None, set(), 4),
        ("DDP", {"worker": {"replicas": 4}}, {"minReplicas": 2, "maxReplicas": 4}, set(), 2),
        ("MultiWorkerMirrored", {"worker": {"replicas": 2}, "evaluator": {"replicas": 1}}, None, set(), 2),
        ("ParameterServer", {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "chief": {"replicas": 1}}, None, set(), 4),
        ("ParameterServer", {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "chief": {"replicas": 1}}, None, {"worker-0"}, 3),
    ],
)
def test_a_gang_is_the_smallest_world_that_can_train(
    strategy: str, roles: dict[str, Any], elastic: dict[str, int] | None, succeeded: set[str], size: int
) -> None:
    spec = job(strategy=strategy, roles=roles, **({"elastic": elastic} if elastic else {})).spec
    labels = [f"{role}-{index}" for role, each in roles.items() for index in range(each["replicas"])]
    members = tuple(
        Member(role=label.rpartition("-")[0], index=int(label.rpartition("-")[2]), succeeded=label in succeeded) for label in labels
    )
    status = TrainingJobStatus(world=World(attempt=0, size=len(members), members=members, created_time=at(0)))
    assert gang.size(spec, status) == size


def test_the_status_of_a_waiting_gang_has_the_reason_and_the_time() -> None:
    story = waiting_story()
    assert story.condition("GangScheduled") == ("False", "WaitingForGang")
    message = "nodes for 2 pods at once (PodGroup digits of scheduling.k8s.io): Unschedulable: 0/3 nodes are available: 3 Insufficient cpu"
    assert story.status.message == f"waiting for {message}"
    condition = next(each for each in story.status.conditions if each.type == "GangScheduled")
    assert (condition.message, condition.last_transition_time) == (message, at(1))


def test_a_pod_that_waits_only_for_its_gang_adds_nothing_to_the_message() -> None:
    of_gang = {"phase": "Pending", "reason": "Unschedulable", "message": "pod group is unschedulable, minCount (2)", "waits_for_gang": True}
    own = {**UNSCHEDULABLE, "waits_for": "Unschedulable: no node has enough free CPU for a pod"}
    story = waiting_story()
    sentence = "waiting for nodes for 2 pods at once (PodGroup digits of scheduling.k8s.io)"
    story.see(replica("worker-0", **of_gang), replica("worker-1", **own), seconds=2)
    assert story.status.message == f"{sentence}: {own['waits_for']}"
    story.see(replica("worker-0", **of_gang), replica("worker-1", **of_gang), seconds=3)
    assert story.status.message == sentence


@pytest.mark.parametrize("has_gang", [True, False])
def test_the_message_stays_the_same_when_other_pods_have_the_reasons(has_gang: bool) -> None:
    """The scheduler tries the pods in another order each time, so the reasons move between them. Each change would be a write."""
    story = waiting_story(workers=4)
    if not has_gang:
        story.job = story.job.with_status(replace(story.status, gang_scheduler=None))
    reasons = [f"Unschedulable: reason {number}" for number in range(4)]
    messages = set[str]()
    for seconds, order in enumerate(permutations(reasons), 2):
        waiting = [replica(f"worker-{index}", **UNSCHEDULABLE, waits_for=reason) for index, reason in enumerate(order)]
        story.see(*(reversed(waiting) if seconds % 2 else waiting), seconds=seconds)
        messages.add(story.status.message)
    [message] = messages
    assert ("PodGroup" in message) == has_gang


def test_the_startup_deadline_starts_when_the_gang_has_nodes() -> None:
    story = waiting_story(startupDeadlineSeconds=100)
    assert story.see(*running(**UNSCHEDULABLE), seconds=5000).wake is None
    placed = running(phase="Pending", node="node-0")
    assert story.see(*placed, seconds=6000).wake == at(6100)
    assert story.condition("GangScheduled") == ("True", "GangPlaced")
    story.see(*placed, seconds=6099)
    assert not story.status.phase.final
    story.see(*placed, seconds=6100)
    assert story.condition("Failed") == ("True", "StartupDeadlineExceeded")


def test_the_startup_deadline_counts_while_only_a_replacement_waits_for_a_node() -> None:
    story = waiting_story(startupDeadlineSeconds=100)
    story.see(*running(node="node-0"), seconds=10)
    assert story.status.phase is Phase.RUNNING
    lost = replica("worker-1", phase="Failed", node="node-1", reason="NodeLost", finished=at(500))
    story.see(replica("worker-0", node="node-0"), lost, seconds=500)
    for seconds in (501, 502, 503, 560):
        story.see(seconds=seconds)
    half = (replica("worker-0", attempt=1, node="node-0"), replica("worker-1", attempt=1, **UNSCHEDULABLE))
    story.see(*half, seconds=570)
    assert story.condition("GangScheduled") == ("True", "GangPlaced")
    story.see(*half, seconds=800)
    assert story.condition("Failed") == ("True", "StartupDeadlineExceeded")


def test_a_job_without_a_gang_scheduler_has_no_gang_condition() -> None:
    story = Story(job())
    story.see(seconds=0)
    story.see(*running(**UNSCHEDULABLE), seconds=1)
    assert "GangScheduled" not in {each.type for each in story.status.conditions}


def test_an_evaluator_is_created_when_the_gang_has_nodes_because_it_could_take_one() -> None:
    story = Story(job(strategy="MultiWorkerMirrored", roles={"worker": {"replicas": 2}, "evaluator": {"replicas": 1}}))
    story.job = story.job.with_status(replace(story.job.status, gang_scheduler="scheduling.k8s.io"))
    story.see(seconds=0)
    assert {each.role for each in story.see(seconds=1).actions if isinstance(each, CreateReplica)} == {"worker"}
    assert not [each for each in story.see(*running(**UNSCHEDULABLE), seconds=2).actions if isinstance(each, CreateReplica)]
    story.see(*running(node="node-0"), seconds=3)
    assert [each.role for each in story.see(*running(node="node-0"), seconds=4).actions if isinstance(each, CreateReplica)] == ["evaluator"]
