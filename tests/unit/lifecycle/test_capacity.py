"""Capacity classes: when pods wait for one, fall back to the next, and go back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.chosen_classes import allowed, classes_at
from muster.api.status import Reason
from muster.lifecycle.observed import ReplicaView
from muster.render.addresses import addresses_of
from muster.render.images import default_images
from muster.render.manifests import render_replica
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, job, members, replica, report, stand_bys

NODES = {"s1": "spot", "s2": "spot", "s3": "spot", "d1": "on-demand", "d2": "on-demand", "d3": "on-demand"}
MIX: dict[str, Any] = {"roles": {"worker": ["spot", "on-demand"]}}


def story(capacity: Any = None, **spec: Any) -> Story:
    mixed = Story(job(scheduling={"capacity": capacity or MIX}, **spec), capacity_classes=NODES)
    mixed.see(seconds=0)
    return mixed


def on(node: str, label: str, *, attempt: int = 0, made_in: int = 0, **fields: Any) -> ReplicaView:
    """A worker that runs on this node."""
    newest = report(label, attempt=attempt, in_place=True, **fields)
    return replica(label, attempt=made_in, uid=f"{label}/{made_in}", report=newest, node=node, capacity_classes=("spot",))


def waiting(label: str, *classes: str, attempt: int = 0, **fields: Any) -> ReplicaView:
    """A worker for which the scheduler finds no node of these classes."""
    names = classes or ("spot",)
    return replica(label, phase="Pending", attempt=attempt, unschedulable=True, capacity_classes=names, **fields)


def standing_by(node: str, label: str, *, ready: bool = True, placed: float = 0) -> ReplicaView:
    view = replace(on(node, label, waiting=True), standby=True, placed=at(placed))
    return view if ready else replace(view, report=None)


def requested(mixed: Story, label: str, **options: Any) -> tuple[str, ...]:
    role, _, index = label.rpartition("-")
    return allowed(mixed.job.spec, mixed.status, role, int(index), **options)


def fallen_back(**spec: Any) -> Story:
    """A job that trains on s1 and d1 since second 650, because spot had one node only."""
    capacity = {**MIX, "returnAfterSeconds": 1000}
    mixed = story(capacity, **spec)
    mixed.see(on("s1", "worker-0"), waiting("worker-1"), seconds=10)
    mixed.see(on("s1", "worker-0"), waiting("worker-1"), seconds=610)
    mixed.see(*trained(attempt=1, step=None), seconds=650)
    mixed.see(*trained(attempt=1), seconds=660)
    return mixed


def trained(*, attempt: int, step: int | None = 40) -> tuple[ReplicaView, ReplicaView]:
    return on("s1", "worker-0", attempt=attempt, step=step), on("d1", "worker-1", attempt=attempt, made_in=1, step=step)


def test_pods_ask_for_the_preferred_class_only_and_the_time_of_the_wait_is_recorded() -> None:
    mixed = story()
    assert requested(mixed, "worker-1") == ("spot",)
    decision = mixed.see(on("s1", "worker-0"), waiting("worker-1"), seconds=10)
    [entry] = mixed.status.capacity
    assert (entry.role, entry.classes, entry.waiting_since) == ("worker", ("spot",), at(10))
    assert decision.wake is not None
    assert decision.wake <= at(610)
    assert mixed.condition("CapacityPreferred") == ("False", "WaitingForClass")
    assert "Pods of worker wait for nodes of class spot and may use on-demand too from 10:10:10 UTC" in mixed.status.message


def test_after_the_time_only_pods_without_a_node_may_use_the_next_class() -> None:
    mixed = story()
    views = on("s1", "worker-0"), waiting("worker-1")
    mixed.see(*views, seconds=10)
    mixed.see(*views, seconds=609)
    assert (mixed.status.attempt, requested(mixed, "worker-1")) == (0, ("spot",))
    decision = mixed.see(*views, seconds=610)
    assert (mixed.status.attempt, mixed.status.attempts[0].reason) == (1, Reason.RESCHEDULED)
    assert requested(mixed, "worker-1") == ("spot", "on-demand")
    assert deleted(decision) == ["worker-1/0"]
    decision = mixed.see(on("s1", "worker-0", attempt=1, waiting=True), seconds=612)
    assert created(decision) == ["worker-1/1"]
    assert mixed.condition("CapacityPreferred") == ("False", "FellBack")
    assert "No node of class spot for 600 s, so pods of worker may also use on-demand" in mixed.status.message
    assert mixed.status.restarts.total == 0


def test_the_wait_goes_on_while_pods_are_created_again_and_ends_with_a_node() -> None:
    mixed = story()
    mixed.see(on("s1", "worker-0"), waiting("worker-1"), seconds=10)
    mixed.see(on("s1", "worker-0"), seconds=100)
    assert mixed.status.attempt == 1
    mixed.see(on("s1", "worker-0", attempt=1), waiting("worker-1", attempt=1), seconds=110)
    assert mixed.status.capacity[0].waiting_since == at(10)
    mixed.see(on("s1", "worker-0", attempt=1), on("s2", "worker-1", attempt=1, made_in=1), seconds=120)
    assert mixed.status.capacity == ()
    assert mixed.condition("CapacityPreferred") == ("True", "OnPreferredClass")


def test_a_pod_that_is_being_started_has_a_node_and_does_not_wait() -> None:
    mixed = story()
    mixed.see(on("s1", "worker-0"), replica("worker-1", phase="Pending", node="s2", capacity_classes=("spot",)), seconds=10)
    assert mixed.status.capacity == ()


def test_a_role_falls_back_class_by_class_and_then_waits() -> None:
    mixed = story({"roles": {"worker": ["reserved", "spot", "on-demand"]}, "fallbackAfterSeconds": 60})
    for attempt, classes in enumerate([("reserved",), ("reserved", "spot"), ("reserved", "spot", "on-demand")]):
        views = [waiting(f"worker-{index}", *classes, attempt=attempt) for index in (0, 1)]
        assert requested(mixed, "worker-0") == classes
        mixed.see(*views, seconds=70 * attempt + 5)
        mixed.see(*views, seconds=70 * attempt + 69)
    assert mixed.status.attempt == 2
    mixed.see(*views, seconds=1000)
    assert (mixed.status.attempt, mixed.status.capacity[0].classes) == (2, ("reserved", "spot", "on-demand"))


def test_each_role_has_its_own_classes_and_the_others_use_any_node() -> None:
    parameter_server = {"strategy": "ParameterServer", "roles": {"worker": {"replicas": 1}, "ps": {"replicas": 1}, "chief": {}}}
    mixed = story({"roles": {"worker": ["spot", "on-demand"], "ps": ["on-demand"]}}, **parameter_server)
    assert [requested(mixed, each) for each in ("worker-0", "ps-0", "chief-0")] == [("spot",), ("on-demand",), ()]
    mixed.see(waiting("ps-0", "on-demand"), seconds=10)
    assert mixed.status.capacity == ()
    mixed.edit(scheduling={"capacity": {"classes": ["on-demand"], "roles": {"worker": ["spot"]}}})
    assert [requested(mixed, each) for each in ("worker-0", "ps-0", "chief-0")] == [("spot",), ("on-demand",), ("on-demand",)]


def test_a_limit_leaves_the_class_to_the_first_members_of_the_world() -> None:
    mixed = story({"roles": {"worker": ["spot", "on-demand"]}, "limits": {"spot": 1}})
    assert (requested(mixed, "worker-0"), requested(mixed, "worker-1")) == (("spot",), ("on-demand",))
    mixed.see(waiting("worker-0"), on("d1", "worker-1"), seconds=10)
    mixed.see(waiting("worker-0"), on("d1", "worker-1"), seconds=610)
    assert (requested(mixed, "worker-0"), requested(mixed, "worker-1")) == (("spot", "on-demand"), ("on-demand",))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, ["reserved spot", "reserved spot", "reserved spot", "reserved spot"]),
        ({"reserved": 1}, ["reserved spot", "spot", "spot", "spot"]),
        ({"spot": 1}, ["reserved spot", "reserved", "reserved", "reserved"]),
        ({"reserved": 1, "spot": 3}, ["reserved", "spot", "spot", "spot"]),
        ({"reserved": 3, "spot": 3}, ["reserved", "reserved spot", "reserved spot", "spot"]),
        ({"reserved": 9, "spot": 4}, ["reserved spot", "reserved spot", "reserved spot", "reserved spot"]),
    ],
)
def test_limits_of_several_classes_divide_a_role_and_are_never_exceeded(limits: dict[str, int], expected: list[str]) -> None:
    spec = job(scheduling={"capacity": {"classes": ["reserved", "spot"], "limits": limits}}).spec
    places = [classes_at(spec, "worker", place, count=4) for place in range(4)]
    assert [" ".join(classes) for classes in places] == expected
    assert all(sum(name in classes for classes in places) <= limit for name, limit in limits.items())


def test_workers_go_back_when_replacements_on_the_preferred_class_are_ready() -> None:
    mixed = fallen_back()
    assert (mixed.status.attempt, mixed.status.capacity[0].classes) == (1, ("spot", "on-demand"))
    decision = mixed.see(*trained(attempt=1), seconds=1649)
    assert (stand_bys(decision), decision.wake) == ([], at(1650))
    decision = mixed.see(*trained(attempt=1), seconds=1650)
    assert stand_bys(decision) == ["worker-2"]
    assert requested(mixed, "worker-2", standby=True) == ("spot",)
    assert mixed.condition("CapacityPreferred") == ("False", "Returning")
    pending = replace(waiting("worker-2", attempt=1), standby=True)
    for seconds in (1700, 9000):  # the training goes on while spot has no node
        decision = mixed.see(*trained(attempt=1), pending, seconds=seconds)
        assert (mixed.status.attempt, decision.actions, mixed.status.capacity[0].returning) == (1, (), 1)
    mixed.see(*trained(attempt=1), standing_by("s2", "worker-2", ready=False), seconds=9100)
    assert mixed.status.attempt == 1
    decision = mixed.see(*trained(attempt=1), standing_by("s2", "worker-2"), seconds=9110)
    assert (mixed.status.attempt, members(mixed), deleted(decision)) == (2, ["worker-0", "worker-2"], ["worker-1/1"])
    record = mixed.status.attempts[-2]
    assert (record.reason, record.failure_class) == (Reason.MOVED, None)
    assert "worker-1 leaves d1, for nodes of class spot" in record.message
    assert mixed.status.restarts.total == 0
    moved = on("s1", "worker-0", attempt=2, step=41), replace(on("s2", "worker-2", attempt=2), standby=True)
    decision = mixed.see(*moved, seconds=9120)
    assert (mixed.status.capacity, stand_bys(decision), deleted(decision)) == ((), [], [])
    assert mixed.condition("CapacityPreferred") == ("True", "OnPreferredClass")


def test_a_pod_lost_after_the_return_time_waits_for_the_preferred_class_again() -> None:
    mixed = fallen_back()
    mixed.see(*trained(attempt=1), seconds=1650)
    assert requested(mixed, "worker-1") == ("spot",)


def test_some_workers_go_back_and_the_rest_waits_for_the_next_return_time() -> None:
    mixed = story({**MIX, "returnAfterSeconds": 1000})
    both = [waiting("worker-0"), waiting("worker-1")]
    mixed.see(*both, seconds=10)
    mixed.see(*both, seconds=610)
    world = [on(f"d{index + 1}", f"worker-{index}", attempt=1, made_in=1, step=40) for index in (0, 1)]
    mixed.see(*world, seconds=650)
    assert stand_bys(mixed.see(*world, seconds=1650)) == ["worker-2", "worker-3"]
    one_is_ready = [*world, standing_by("s2", "worker-2", placed=1700), replace(waiting("worker-3", attempt=1), standby=True)]
    assert mixed.see(*one_is_ready, seconds=1720).wake == at(1760)
    assert mixed.status.attempt == 1
    decision = mixed.see(*one_is_ready, seconds=1760)
    assert (mixed.status.attempt, members(mixed)) == (2, ["worker-2", "worker-1"])
    rest = [
        replace(on("s2", "worker-2", attempt=2, step=41), standby=True),
        on("d2", "worker-1", attempt=2, made_in=1, step=41),
        replace(waiting("worker-3", attempt=1), standby=True),
    ]
    decision = mixed.see(*rest, seconds=1770)
    assert deleted(decision) == ["worker-3/1"]
    assert stand_bys(mixed.see(*rest[:2], seconds=2769)) == []
    assert len(stand_bys(mixed.see(*rest[:2], seconds=2770))) == 1


def test_a_job_with_spares_of_another_class_keeps_them_while_workers_go_back() -> None:
    mixed = story({**MIX, "spares": ["on-demand"], "returnAfterSeconds": 1000}, recovery={"spares": 1})
    assert requested(mixed, "worker-2", standby=True) == ("on-demand",)
    world = on("s1", "worker-0", step=40), on("d1", "worker-1", step=40)
    spare = replace(standing_by("d2", "worker-2"), capacity_classes=("on-demand",))
    mixed.see(*world, spare, seconds=10)
    assert stand_bys(mixed.see(*world, spare, seconds=1010)) == ["worker-3"]
    assert requested(mixed, "worker-3", standby=True) == ("spot",)
    mixed.see(*world, spare, standing_by("s2", "worker-3"), seconds=1100)
    assert members(mixed) == ["worker-0", "worker-3"]


@pytest.mark.parametrize(
    "spec",
    [{"elastic": {"minReplicas": 1, "maxReplicas": 2}}, {"recovery": {"nodeNotices": "Ignore"}}],
    ids=["elastic", "no replacements"],
)
def test_a_job_whose_workers_cannot_be_replaced_stays_until_its_next_restart(spec: dict[str, Any]) -> None:
    mixed = story({**MIX, "returnAfterSeconds": 1000}, **spec)
    world = on("s1", "worker-0", step=40), on("d1", "worker-1", step=40)
    mixed.see(*world, seconds=10)
    decision = mixed.see(*world, seconds=5000)
    assert (stand_bys(decision), mixed.status.capacity) == ([], ())


def test_nodes_of_unknown_classes_bring_no_return() -> None:
    mixed = fallen_back()
    mixed.capacity_classes = {}
    decision = mixed.see(*trained(attempt=1), seconds=1650)
    assert (stand_bys(decision), mixed.status.capacity) == ([], ())


def test_an_elastic_world_trains_meanwhile_and_its_missing_worker_falls_back() -> None:
    mixed = story(elastic={"minReplicas": 1, "maxReplicas": 2, "shrinkAfterSeconds": 5})
    alone = on("s1", "worker-0", attempt=0)
    mixed.see(alone, waiting("worker-1"), seconds=10)
    assert members(mixed) == ["worker-0"]
    alone = on("s1", "worker-0", attempt=1, step=3)
    mixed.see(alone, seconds=20)
    pending = replace(waiting("worker-1", attempt=1), standby=True)
    mixed.see(alone, pending, seconds=30)
    decision = mixed.see(alone, pending, seconds=610)
    assert (deleted(decision), requested(mixed, "worker-1", standby=True)) == (["worker-1/1"], ("spot", "on-demand"))


def test_a_waiting_evaluator_is_created_again_without_a_new_attempt() -> None:
    roles = {"worker": {"replicas": 1}, "evaluator": {}}
    mixed = story({"roles": {"evaluator": ["spot", "on-demand"]}}, strategy="MultiWorkerMirrored", roles=roles)
    views = on("s1", "worker-0", step=3), waiting("evaluator-0")
    mixed.see(*views, seconds=10)
    decision = mixed.see(*views, seconds=610)
    assert (deleted(decision), mixed.status.attempt) == (["evaluator-0/0"], 0)


def test_a_suspension_ends_the_wait() -> None:
    mixed = story()
    mixed.see(on("s1", "worker-0"), waiting("worker-1"), seconds=10)
    mixed.edit(suspend=True)
    mixed.see(on("s1", "worker-0"), waiting("worker-1"), seconds=20)
    assert mixed.status.capacity == ()


def test_the_pods_of_the_next_attempt_have_the_classes_of_the_status() -> None:
    mixed = fallen_back()
    pod = render_replica(mixed.job, "worker", index=1, attempt=1, addresses=addresses_of(mixed.job, 1), images=default_images())
    assert pod["metadata"]["annotations"]["muster.dev/capacity-classes"] == "spot,on-demand"
