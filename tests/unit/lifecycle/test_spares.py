"""Spares: which workers stand by, and whose places they take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.status import ConditionType, Reason
from muster.channel import replies
from muster.lifecycle.actions import CreateReplica, DeleteReplica
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.render.addresses import addresses_of
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, ended_with, job, members, replica, report, stand_bys


def alive(label: str, *, attempt: int = 0, made_in: int = 0, **fields: Any) -> ReplicaView:
    """A worker with a supervisor in `attempt`, in a pod of the attempt `made_in`."""
    newest = report(label, attempt=attempt, in_place=True, **fields)
    return replica(label, attempt=made_in, uid=f"{label}/{made_in}", report=newest)


def spare(label: str, *, made_in: int = 0, ready: bool = True) -> ReplicaView:
    view = alive(label, attempt=made_in, made_in=made_in, waiting=True)
    return replace(view, standby=True) if ready else replace(view, standby=True, report=None)


def training(workers: int = 2, spares: int = 1, **spec: Any) -> Story:
    """A job that trains at step 40, before its spares are there."""
    story = Story(job(workers=workers, recovery={"spares": spares}, **spec))
    story.see(seconds=0)
    story.see(*(alive(f"worker-{index}", step=40 if index == 0 else None) for index in range(workers)), seconds=10)
    return story


def test_spares_are_created_once_the_world_runs_and_are_not_in_it() -> None:
    story = Story(job(workers=2, recovery={"spares": 2}))
    decision = story.see(seconds=0)
    assert stand_bys(decision) == []
    decision = story.see(alive("worker-0", step=1), alive("worker-1"), seconds=10)
    assert stand_bys(decision) == ["worker-2", "worker-3"]
    story.see(alive("worker-0", step=1), alive("worker-1"), spare("worker-2"), spare("worker-3", ready=False), seconds=20)
    assert members(story) == ["worker-0", "worker-1"]
    assert (story.status.workers, story.status.ready_replicas, story.status.replicas, story.status.ready_spares) == ("2/2", 2, 2, 1)


def on(node: str, view: ReplicaView) -> ReplicaView:
    return replace(view, node=node)


@pytest.mark.parametrize(
    ("nodes", "taken"),
    [(("a", "b"), "worker-3"), (("b", "a"), "worker-2"), (("a", "a"), "worker-2"), (("", ""), "worker-2")],
    ids=["the second is elsewhere", "the first is elsewhere", "none is elsewhere", "no node is known"],
)
def test_a_spare_on_a_node_without_the_world_is_preferred(nodes: tuple[str, str], taken: str) -> None:
    """Otherwise the loss of one node could stop the whole world."""
    story = training(spares=2)
    spares = [on(node, spare(f"worker-{2 + number}")) for number, node in enumerate(nodes)]
    story.see(on("a", alive("worker-0", step=41)), *spares, seconds=20)
    assert members(story) == ["worker-0", taken]


def test_spares_that_take_two_places_are_on_different_nodes_if_possible() -> None:
    story = training(workers=3, spares=3)
    spares = [on(node, spare(label)) for label, node in (("worker-3", "b"), ("worker-4", "b"), ("worker-5", "c"))]
    story.see(on("a", alive("worker-1", step=41)), *spares, seconds=20)
    assert members(story) == ["worker-3", "worker-1", "worker-5"]


def test_a_late_loss_also_takes_a_spare_on_a_node_without_the_world() -> None:
    """The pod of a kept member ends before it has acknowledged the attempt."""
    story = training(spares=2)
    ended = {"code": 137, "message": "killed", "attempt": 0}
    spares = on("a", spare("worker-2")), on("b", spare("worker-3"))
    leaving = on("c", alive("worker-1", step=41))
    story.see(on("a", alive("worker-0", waiting=True, step=41, termination=ended)), leaving, *spares, seconds=20)
    assert (story.status.attempt, members(story)) == (1, ["worker-0", "worker-1"])
    gone = replace(leaving, phase=ReplicaPhase.FAILED, finished=at(21), exit_code=137)
    story.see(on("a", alive("worker-0", attempt=1, waiting=True, termination=ended)), gone, *spares, seconds=21)
    assert members(story) == ["worker-0", "worker-3"]


def lonely(label: str, *, node: str, reported: float, **fields: Any) -> ReplicaView:
    return replace(on(node, alive(label, **fields)), reported=at(reported))


def world_on_one_node(**spec: Any) -> Story:
    """All of the world is on node a, and has trained at second 100. The spare is on node b."""
    story = Story(job(recovery={"spares": 1}, **spec), expects_reports=True)
    story.see(seconds=0)
    story.see(*(on("a", alive(f"worker-{index}")) for index in range(2)), seconds=10)
    views = [lonely(f"worker-{index}", node="a", reported=100, step=40) for index in range(2)]
    story.see(*views, replace(on("b", spare("worker-2")), reported=at(100)), seconds=100)
    return story


def seen_later(story: Story, seconds: float, *, nodes: tuple[str, str] = ("a", "a"), spare_on: str = "b", spare_reported: float) -> None:
    views = [lonely(f"worker-{index}", node=nodes[index], reported=100, step=40) for index in range(2)]
    story.see(*views, replace(on(spare_on, spare("worker-2")), reported=at(spare_reported)), seconds=seconds)


def test_a_living_spare_proves_that_the_node_of_the_whole_world_is_lost() -> None:
    story = world_on_one_node()
    story.gap_seconds = 0.2  # regular reports: they make no shorter silence enough here
    seen_later(story, 107.9, spare_reported=107)
    assert story.status.attempt == 0
    seen_later(story, 108, spare_reported=107)
    record = story.status.attempts[0]
    assert (record.reason, record.node, record.failed_time) == (Reason.NODE_LOST, "a", at(100))
    assert sorted(each.name for each in story.status.orphaned) == ["digits-worker-0", "digits-worker-1"]
    assert "worker-2" in members(story)


def test_a_pass_is_due_when_the_whole_world_has_been_silent_for_long() -> None:
    story = world_on_one_node()
    story.gap_seconds = 0.2
    views = [lonely(f"worker-{index}", node="a", reported=100, step=40) for index in range(2)]
    living = replace(on("b", spare("worker-2")), reported=at(104))
    assert story.see(*views, living, seconds=104).wake == at(108)


@pytest.mark.parametrize(
    ("nodes", "spare_on", "spare_reported"),
    [(("a", "a"), "b", 100), (("a", "a"), "a", 119), (("a", "c"), "b", 119), (("", ""), "b", 119), (("a", "a"), "", 119)],
    ids=["the spare is silent, too", "the spare is beside it", "the world is on two nodes", "no node is known", "the spare has no node"],
)
def test_the_silence_of_a_whole_world_proves_nothing_without_a_spare_elsewhere(
    nodes: tuple[str, str], spare_on: str, spare_reported: float
) -> None:
    story = world_on_one_node()
    seen_later(story, 120, nodes=nodes, spare_on=spare_on, spare_reported=spare_reported)
    assert story.status.attempt == 0


def test_a_condition_says_that_the_whole_world_is_on_one_node() -> None:
    story = world_on_one_node()
    assert story.condition("SpreadOverNodes") == ("False", "WorldOnOneNode")
    condition = story.status.condition(ConditionType.SPREAD_OVER_NODES)
    assert condition
    assert absent(condition.message, "all 2 replicas", "run on a") == []
    story.see(on("a", alive("worker-0", step=50)), on("b", alive("worker-1")), spare("worker-2"), seconds=110)
    assert story.condition("SpreadOverNodes") == ("True", "ManyNodes")


@pytest.mark.parametrize(
    ("spec", "nodes"), [({"recovery": {"spares": 0}}, "aa"), ({"recovery": {"spares": 1}}, "ab")], ids=["without spares", "on two nodes"]
)
def test_no_condition_says_where_an_ordinary_world_is(spec: dict[str, Any], nodes: str) -> None:
    story = Story(job(**spec))
    story.see(seconds=0)
    story.see(*(on(node, alive(f"worker-{index}", step=1)) for index, node in enumerate(nodes)), seconds=10)
    assert story.status.condition(ConditionType.SPREAD_OVER_NODES) is None


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_ready_spare_takes_the_place_and_the_rank_of_a_lost_worker(lost: int) -> None:
    story = training(workers=3)
    others = [alive(f"worker-{index}", step=41) for index in range(3) if index != lost]
    decision = story.see(*others, spare("worker-3"), seconds=20)
    expected = ["worker-0", "worker-1", "worker-2"]
    expected[lost] = "worker-3"
    assert members(story) == expected
    assert story.status.attempt == 1
    assert not [action for action in decision.actions if isinstance(action, CreateReplica)], "no pod is created for the next world"

    waiting = [alive(f"worker-{index}", attempt=1, waiting=True) for index in range(3) if index != lost]
    taken = replace(spare("worker-3"), report=report("worker-3", attempt=1, in_place=True, waiting=True))
    decision = story.see(*waiting, taken, seconds=21)
    assert story.status.world
    assert story.status.world.ready_time
    assert stand_bys(decision) == [f"worker-{lost}"], "the lost worker is created again, as the next spare"
    assert taken.report
    world = replies.reply_to(story.job, "worker-3/0", taken.report, addresses_of(story.job, 1)).world
    assert world
    assert (world["PET_NODE_RANK"], world["PET_NNODES"]) == (str(lost), "3")


def test_a_lost_worker_is_created_again_if_no_spare_is_ready() -> None:
    story = training()
    decision = story.see(alive("worker-0", step=41), spare("worker-2", ready=False), seconds=20)
    assert members(story) == ["worker-0", "worker-1"]
    assert not [action for action in decision.actions if isinstance(action, DeleteReplica)], "the spare stays"


def test_a_spare_that_has_yet_to_start_takes_no_place() -> None:
    story = training()
    starting = replace(alive("worker-2"), standby=True)
    story.see(alive("worker-0", step=41), starting, seconds=20)
    assert members(story) == ["worker-0", "worker-1"]


def test_a_world_with_a_spare_is_replaced_when_the_job_has_fewer_workers() -> None:
    story = training(workers=3)
    story.see(alive("worker-0", step=41), alive("worker-1", step=41), spare("worker-3"), seconds=20)
    assert members(story) == ["worker-0", "worker-1", "worker-3"]
    taken = replace(spare("worker-3"), report=report("worker-3", attempt=1, in_place=True))
    views = (alive("worker-0", attempt=1, step=42), alive("worker-1", attempt=1), taken)
    story.see(*views, seconds=22)
    story.edit(roles={"worker": {"replicas": 2}})
    story.see(*views, seconds=30)
    assert story.status.attempts[-2].reason is Reason.SCALED
    assert members(story) == ["worker-0", "worker-1"]


def test_a_process_that_dies_in_a_healthy_pod_needs_no_spare() -> None:
    story = training()
    ended = {"code": 10, "message": "killed", "attempt": 0, "exit_code": 137}
    story.see(alive("worker-0", step=41), alive("worker-1", waiting=True, termination=ended), spare("worker-2"), seconds=20)
    assert story.status.attempt == 1
    assert members(story) == ["worker-0", "worker-1"]


def test_two_lost_workers_take_two_spares() -> None:
    story = training(workers=3, spares=2)
    story.see(alive("worker-1", step=41), spare("worker-3"), spare("worker-4"), seconds=20)
    assert members(story) == ["worker-3", "worker-1", "worker-4"]


@pytest.mark.parametrize(
    ("notices", "after"), [("Ignore", ["worker-0", "worker-1"]), ("Auto", ["worker-0", "worker-2"])], ids=["Ignore", "Auto"]
)
def test_a_world_with_a_spare_stays_if_a_job_with_fewer_spares_may_have_it(notices: str, after: list[str]) -> None:
    story = training()
    story.see(alive("worker-0", step=41), spare("worker-2"), seconds=20)
    assert members(story) == ["worker-0", "worker-2"]
    taken = replace(spare("worker-2"), report=report("worker-2", attempt=1, in_place=True))
    story.see(alive("worker-0", attempt=1, step=42), taken, seconds=22)
    story.edit(recovery={"spares": 0, "nodeNotices": notices})
    story.see(alive("worker-0", attempt=1, step=43), taken, seconds=30)
    assert (members(story), story.status.attempt) == (after, 2 if notices == "Ignore" else 1)
    assert story.status.ready_spares is None


def test_a_suspended_job_keeps_no_spares() -> None:
    story = training()
    story.edit(suspend=True)
    decision = story.see(alive("worker-0", step=41), alive("worker-1"), spare("worker-2"), seconds=20)
    deleted = {action.name for action in decision.actions if isinstance(action, DeleteReplica)}
    assert deleted == {"digits-worker-0", "digits-worker-1", "digits-worker-2"}


def test_a_world_with_a_spare_waits_until_the_lost_worker_has_ended() -> None:
    """Its pod is deleted with a grace period, in which its processes may still write."""
    story = training()
    leaving = replace(alive("worker-1", step=41), deleting=at(20), due=at(50))
    story.see(alive("worker-0", step=41), leaving, spare("worker-2"), seconds=20)
    assert members(story) == ["worker-0", "worker-2"]
    kept = alive("worker-0", attempt=1, waiting=True)
    taken = replace(spare("worker-2"), report=report("worker-2", attempt=1, in_place=True, waiting=True))
    story.see(kept, leaving, taken, seconds=21)
    assert story.status.world
    assert story.status.world.ready_time is None
    story.see(kept, taken, seconds=22)
    assert story.status.world.ready_time == at(22)


def test_a_world_starts_once_the_supervisor_of_a_lost_worker_reports_its_termination() -> None:
    """Its pod takes longer to end."""
    story = training()
    leaving = replace(alive("worker-1", step=41), deleting=at(20), due=at(50))
    story.see(alive("worker-0", step=41), leaving, spare("worker-2"), seconds=20)
    kept = alive("worker-0", attempt=1, waiting=True)
    taken = replace(spare("worker-2"), report=report("worker-2", attempt=1, in_place=True, waiting=True))
    ended = replace(leaving, report=report("worker-1", step=41, in_place=True, termination=ended_with(143, "asked to stop", attempt=0)))
    story.see(kept, ended, taken, seconds=21)
    assert story.status.world
    assert story.status.world.ready_time == at(21)


def loss_reported_by_the_peer() -> tuple[Story, ReplicaView]:
    """A story in which worker-0 has just reported the loss of worker-1, and the view of worker-1."""
    story = training()
    story.expects_reports = True
    gone = replace(alive("worker-1", step=41), reported=at(20), node="node-1")
    broken = alive("worker-0", step=41, waiting=True, termination=ended_with(20, "its peers are gone", attempt=0))
    story.see(replace(broken, reported=at(20)), gone, replace(spare("worker-2"), reported=at(20)), seconds=20)
    return story, gone


def test_a_spare_takes_the_place_of_a_worker_that_turns_out_to_be_lost() -> None:
    """Its peer reports the loss first. Only then it is silent for so long that its node does not answer."""
    story, gone = loss_reported_by_the_peer()
    assert story.status.attempt == 1
    assert members(story) == ["worker-0", "worker-1"]
    kept = replace(alive("worker-0", attempt=1, waiting=True), reported=at(25))
    decision = story.see(kept, gone, replace(spare("worker-2"), reported=at(24)), seconds=25)
    assert members(story) == ["worker-0", "worker-2"]
    assert [each.name for each in story.status.orphaned] == ["digits-worker-1"]
    assert not [action for action in decision.actions if isinstance(action, CreateReplica)]
    taken = replace(spare("worker-2"), report=report("worker-2", attempt=1, in_place=True, waiting=True), reported=at(25.2))
    story.see(kept, gone, taken, seconds=25.2)
    assert story.status.world
    assert story.status.world.ready_time == at(25.2)


def test_a_spare_takes_the_place_of_a_worker_whose_connection_has_closed_at_once() -> None:
    story, gone = loss_reported_by_the_peer()
    story.gap_seconds = 0.2
    gone = replace(gone, disconnected=at(19.9))
    kept = alive("worker-0", attempt=1, waiting=True)
    decision = story.see(replace(kept, reported=at(21)), gone, replace(spare("worker-2"), reported=at(20)), seconds=21)
    assert members(story) == ["worker-0", "worker-1"]
    assert decision.wake == at(19.9 + 1.125)
    story.see(replace(kept, reported=at(21.025)), gone, replace(spare("worker-2"), reported=at(20)), seconds=21.025)
    assert members(story) == ["worker-0", "worker-2"]


@pytest.mark.parametrize("end", [{"phase": ReplicaPhase.FAILED, "finished": at(20), "exit_code": 137}, {"deleting": at(20), "due": at(50)}])
def test_a_spare_takes_the_place_of_a_worker_that_ends_after_its_peer_has(end: dict[str, Any]) -> None:
    """Its peer reports the loss first. Only then its pod shows that it has ended."""
    story, gone = loss_reported_by_the_peer()
    assert members(story) == ["worker-0", "worker-1"]
    kept = replace(alive("worker-0", attempt=1, waiting=True), reported=at(20.2))
    decision = story.see(kept, replace(gone, **end), replace(spare("worker-2"), reported=at(20)), seconds=20.2)
    assert (story.status.attempt, members(story)) == (1, ["worker-0", "worker-2"])
    assert not story.status.orphaned
    assert not [action for action in decision.actions if isinstance(action, CreateReplica)]


def test_a_worker_that_ends_after_its_peer_has_is_created_again_without_a_spare() -> None:
    story, gone = loss_reported_by_the_peer()
    kept = replace(alive("worker-0", attempt=1, waiting=True), reported=at(20.2))
    over = replace(gone, phase=ReplicaPhase.FAILED, finished=at(20), exit_code=137)
    story.see(kept, over, replace(spare("worker-2", ready=False), reported=at(20)), seconds=20.2)
    assert (story.status.attempt, members(story)) == (1, ["worker-0", "worker-1"])
    decision = story.see(kept, replace(spare("worker-2", ready=False), reported=at(20)), seconds=20.3)
    assert created(decision) == ["worker-1/1"]


def test_a_silent_spare_takes_no_place_of_a_worker_that_turns_out_to_be_lost() -> None:
    """Nor does it while it is silent for so long only that a spare counts as lost, and not the worker before it."""
    story, gone = loss_reported_by_the_peer()
    kept = replace(alive("worker-0", attempt=1, waiting=True), reported=at(28))
    late = replace(spare("worker-2", made_in=1), reported=at(20), created=at(20))
    story.see(kept, gone, late, seconds=28)
    assert members(story) == ["worker-0", "worker-1"]
    assert [each.name for each in story.status.orphaned] == ["digits-worker-1"]


def test_a_spare_that_could_not_acknowledge_in_time_stays_a_spare() -> None:
    """A pod whose node does not answer may be noticed late: after its grace period."""
    story = training()
    leaving = replace(alive("worker-1", step=41), deleting=at(20), due=at(50))
    story.see(alive("worker-0", step=41), leaving, seconds=20)
    assert members(story) == ["worker-0", "worker-1"]
    decision = story.see(alive("worker-0", attempt=1, waiting=True), leaving, spare("worker-2"), seconds=200)
    assert members(story) == ["worker-0", "worker-1"]
    assert [each.name for each in story.status.orphaned] == ["digits-worker-1"]
    assert [action.name for action in decision.actions if isinstance(action, DeleteReplica)] == ["digits-worker-1"]


def test_a_spare_for_which_a_smaller_job_has_no_place_takes_none() -> None:
    story = training(workers=3)
    story.expects_reports = True
    workers = [replace(alive(f"worker-{index}", step=41), reported=at(20)) for index in range(3)]
    story.see(*workers, replace(spare("worker-3"), reported=at(20)), seconds=20)
    story.edit(roles={"worker": {"replicas": 1}})
    story.see(*workers, replace(spare("worker-3"), reported=at(20)), seconds=21)
    assert members(story) == ["worker-0"]
    story.see(workers[0], replace(spare("worker-3"), reported=at(30)), seconds=31)
    assert [each.name for each in story.status.orphaned] == ["digits-worker-0"]
    assert (story.status.attempt, members(story)) == (1, ["worker-0"])


def test_spares_are_created_once_no_pod_of_an_older_attempt_is_left() -> None:
    roles = {"worker": {"replicas": 2}, "evaluator": {}}
    story = Story(job(strategy="MultiWorkerMirrored", roles=roles, recovery={"spares": 1}))
    story.see(seconds=0)
    workers = [alive("worker-0", step=41), alive("worker-1")]
    story.see(*workers, alive("evaluator-0"), seconds=10)
    story.see(workers[0], alive("evaluator-0"), seconds=20)
    now = [alive("worker-0", attempt=1, waiting=True), alive("worker-1", attempt=1, made_in=1)]
    assert (story.status.attempt, stand_bys(story.see(*now, alive("evaluator-0"), seconds=21))) == (1, [])
    assert stand_bys(story.see(*now, seconds=22)) == ["worker-2"]


def test_a_silent_spare_takes_no_place() -> None:
    story = training()
    story.expects_reports = True
    frozen = replace(spare("worker-2"), reported=at(30))
    story.see(replace(alive("worker-0", step=41), reported=at(40)), frozen, seconds=40)
    assert members(story) == ["worker-0", "worker-1"]


def test_a_spare_whose_report_is_held_is_not_silent() -> None:
    story = training()
    story.expects_reports, story.gap_seconds = True, 0.2
    waiting = replace(spare("worker-2"), reported=at(36))
    story.see(replace(alive("worker-0", step=41), reported=at(40)), waiting, seconds=40)
    assert members(story) == ["worker-0", "worker-2"]
