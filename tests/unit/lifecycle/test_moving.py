"""Nodes that announce that they go: when workers get replacements, when the world moves, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.status import ConditionType, Meaning, NodeNotice, NoticeCounts, Reason
from muster.channel import replies
from muster.lifecycle.actions import CreateReplica, DeleteReplica
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.render.addresses import addresses_of
from muster_contract.reports import Report
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, failed, job, members, replica, report, stand_bys


def notice(node: str, *, seconds: float = 20, goes: bool = True, goes_at: float | None = None) -> NodeNotice:
    meaning = Meaning.GOES if goes else Meaning.TAKES_NO_PODS
    time = None if goes_at is None else at(goes_at)
    return NodeNotice(node=node, signal="taint karpenter.sh/disrupted", meaning=meaning, since=at(seconds), goes_time=time)


def worker(label: str, node: str, *, attempt: int = 0, made_in: int = 0, **fields: Any) -> ReplicaView:
    newest = report(label, attempt=attempt, in_place=True, **fields)
    return replica(label, attempt=made_in, uid=f"{label}/{made_in}", report=newest, node=node)


def stand_by(label: str, node: str, *, ready: bool = True) -> ReplicaView:
    view = replace(worker(label, node, waiting=True), standby=True)
    return view if ready else replace(view, report=None)


WORLD = (worker("worker-0", "a", step=40), worker("worker-1", "b"))


def training(**spec: Any) -> Story:
    """A job that trains at step 40 on nodes a and b."""
    story = Story(job(**spec), notices={})
    story.see(seconds=0)
    story.see(*WORLD, seconds=10)
    return story


def warned(*notices: NodeNotice, **spec: Any) -> Story:
    story = training(**spec)
    story.notices = {each.node: each for each in notices}
    return story


def test_the_world_moves_once_a_replacement_is_ready_and_nothing_is_charged() -> None:
    story = warned(notice("b"))
    assert stand_bys(story.see(*WORLD, seconds=20)) == ["worker-2"]
    story.see(*WORLD, stand_by("worker-2", "c", ready=False), seconds=25)
    assert (story.status.attempt, members(story)) == (0, ["worker-0", "worker-1"])
    decision = story.see(*WORLD, stand_by("worker-2", "c"), seconds=30)
    assert (story.status.attempt, members(story)) == (1, ["worker-0", "worker-2"])
    record = story.status.attempts[0]
    assert (record.reason, record.failure_class, record.settled) == (Reason.MOVED, None, True)
    assert "worker-1 leaves b" in record.message
    restarts = story.status.restarts
    assert (restarts.preemption, restarts.infrastructure, restarts.application) == ((), (), ())
    assert deleted(decision) == ["worker-1/0"]


@pytest.mark.parametrize(
    ("signal", "apart"),
    [
        ("taint karpenter.sh/disrupted", (("worker", 0, 0),)),
        ("spec.expireAfter of its NodeClaim", (("worker", 0, 0),)),
        ("the node is being deleted", (("worker", 0, 0),)),
        ("taint cloud.google.com/impending-node-termination", ()),
    ],
)
def test_a_replacement_is_kept_apart_from_the_pod_that_karpenter_moves(signal: str, apart: tuple[Any, ...]) -> None:
    """The labels of that pod have the attempt in which it was created, and it takes part in a later one."""
    story = warned(notice("b"))
    story.see(*WORLD, stand_by("worker-2", "c"), seconds=30)
    story.notices = {"a": replace(notice("a"), signal=signal)}
    moved = worker("worker-0", "a", attempt=1, step=41), replace(worker("worker-2", "c", attempt=1), standby=True)
    [replacement] = [each for each in story.see(*moved, seconds=40).actions if isinstance(each, CreateReplica)]
    assert (replacement.standby, replacement.apart_from) == (True, apart)


def test_a_job_without_spares_keeps_the_replacement_and_gets_no_further_one() -> None:
    story = warned(notice("b"))
    story.see(*WORLD, stand_by("worker-2", "c"), seconds=30)
    moved = worker("worker-0", "a", attempt=1, step=41), replace(worker("worker-2", "c", attempt=1), standby=True)
    decision = story.see(*moved, seconds=40)
    assert (stand_bys(decision), created(decision), members(story)) == ([], [], ["worker-0", "worker-2"])
    story.notices = {}
    decision = story.see(*moved, seconds=50)
    assert (stand_bys(decision), created(decision), story.status.attempt, story.status.node_notices) == ([], [], 1, ())


def test_a_later_failure_does_not_bring_the_first_members_back() -> None:
    story = warned(notice("b"))
    story.see(*WORLD, stand_by("worker-2", "c"), seconds=30)
    story.see(worker("worker-0", "a", attempt=1, step=41), replace(worker("worker-2", "c", attempt=1), standby=True), seconds=40)
    story.see(worker("worker-0", "a", attempt=1, step=45), seconds=60)
    assert (story.status.attempt, members(story)) == (2, ["worker-0", "worker-2"])


def test_a_job_with_spares_moves_at_once_and_gets_its_spare_back() -> None:
    story = warned(notice("b"), recovery={"spares": 1})
    story.see(*WORLD, stand_by("worker-2", "c"), seconds=20)
    assert (story.status.attempt, members(story)) == (1, ["worker-0", "worker-2"])
    moved = worker("worker-0", "a", attempt=1, step=41), replace(worker("worker-2", "c", attempt=1), standby=True)
    assert stand_bys(story.see(*moved, seconds=30)) == ["worker-1"]


def test_a_spare_on_a_node_that_goes_takes_no_place_and_is_created_elsewhere() -> None:
    story = warned(notice("b"), notice("c"), recovery={"spares": 1})
    decision = story.see(*WORLD, stand_by("worker-2", "c"), seconds=20)
    assert (story.status.attempt, deleted(decision)) == (0, ["worker-2/0"])


@pytest.mark.parametrize(
    "case",
    [
        {"notices": [notice("b", goes=False)]},
        {"notices": [notice("b")], "recovery": {"nodeNotices": "Save"}},
        {"notices": [notice("b")], "recovery": {"nodeNotices": "Ignore"}},
        {"notices": [notice("z")]},
        {"notices": [notice("b")], "scheduling": {"queue": "team-a"}},
        {"notices": [notice("b", goes_at=2000)]},
    ],
    ids=["takes no pods", "Save", "Ignore", "another node", "in a queue", "goes in half an hour"],
)
def test_no_replacement_is_created_if_the_job_stays(case: dict[str, Any]) -> None:
    story = warned(*case.pop("notices"), **case)
    assert stand_bys(story.see(*WORLD, seconds=20)) == []
    assert story.status.attempt == 0


def test_a_job_leaves_a_node_a_quarter_of_an_hour_before_the_time_that_it_announces() -> None:
    story = warned(notice("b", goes_at=2000))
    assert story.see(*WORLD, seconds=20).wake == at(1100)
    assert stand_bys(story.see(*WORLD, seconds=1100)) == ["worker-2"]


def test_a_notice_that_is_withdrawn_costs_no_move() -> None:
    story = warned(notice("b"))
    story.see(*WORLD, seconds=20)
    story.notices = {}
    decision = story.see(*WORLD, stand_by("worker-2", "c"), seconds=25)
    assert (story.status.attempt, deleted(decision), story.condition("NodesStay")) == (0, ["worker-2/0"], ("True", "NoNotice"))


def test_two_nodes_that_go_are_left_in_one_move() -> None:
    story = warned(notice("a"), notice("b"))
    assert stand_bys(story.see(*WORLD, seconds=20)) == ["worker-2", "worker-3"]
    story.see(*WORLD, stand_by("worker-2", "c"), stand_by("worker-3", "d", ready=False), seconds=25)
    assert story.status.attempt == 0
    story.see(*WORLD, stand_by("worker-2", "c"), stand_by("worker-3", "d"), seconds=30)
    assert (story.status.attempt, members(story)) == (1, ["worker-2", "worker-3"])


def test_the_job_does_not_wait_for_long_for_a_second_replacement() -> None:
    story = warned(notice("a"), notice("b"))
    views = *WORLD, stand_by("worker-2", "c"), stand_by("worker-3", "d", ready=False)
    assert story.see(*views, seconds=25).wake == at(40)
    story.see(*views, seconds=40)
    assert (story.status.attempt, members(story)) == (1, ["worker-2", "worker-1"])


def test_a_lost_worker_gets_the_spare_before_one_that_only_leaves() -> None:
    story = warned(notice("a"), recovery={"spares": 1})
    gone = replace(WORLD[1], phase=ReplicaPhase.FAILED, finished=at(20), exit_code=137)
    story.see(WORLD[0], gone, stand_by("worker-2", "c"), seconds=20)
    assert members(story) == ["worker-0", "worker-2"]


def test_the_world_does_not_move_before_its_first_step() -> None:
    story = Story(job(), notices={"b": notice("b", seconds=5)})
    story.see(seconds=0)
    views = worker("worker-0", "a"), worker("worker-1", "b"), stand_by("worker-2", "c")
    story.see(*views, seconds=10)
    assert story.status.attempt == 0
    story.see(worker("worker-0", "a", step=1), *views[1:], seconds=11)
    assert story.status.attempt == 1


def test_an_elastic_world_shrinks_at_once_and_grows_again() -> None:
    story = warned(notice("b"), elastic={"minReplicas": 1, "maxReplicas": 2, "growAfterSeconds": 5})
    decision = story.see(*WORLD, seconds=20)
    assert (members(story), story.status.attempts[0].reason) == (["worker-0"], Reason.MOVED)
    assert deleted(decision) == ["worker-1/0"]
    alone = worker("worker-0", "a", attempt=1, step=41)
    assert stand_bys(story.see(alone, seconds=30)) == ["worker-1"]


def test_an_elastic_world_that_would_be_too_small_stays() -> None:
    story = warned(notice("b"), elastic={"minReplicas": 2, "maxReplicas": 4})
    story.see(*WORLD, seconds=20)
    assert (story.status.attempt, story.condition("NodesStay")) == (0, ("False", "NodeGoes"))


def test_a_strategy_whose_workers_cannot_be_replaced_stays_and_says_so() -> None:
    story = Story(job(strategy="ParameterServer", roles={"worker": {"replicas": 1}, "ps": {"replicas": 1}, "chief": {}}), notices={})
    story.see(seconds=0)
    views = worker("chief-0", "a", step=40), worker("worker-0", "b"), worker("ps-0", "a")
    story.see(*views, seconds=10)
    story.notices = {"b": notice("b")}
    assert stand_bys(story.see(*views, seconds=20)) == []
    condition = story.status.condition(ConditionType.NODES_STAY)
    assert condition
    assert absent(condition.message, "node b of worker-0", "taint karpenter.sh/disrupted", "cannot be replaced") == []


def test_the_message_says_which_node_goes_and_when() -> None:
    story = warned(notice("b", goes_at=140))
    story.see(*WORLD, seconds=20)
    assert absent(story.status.message, "Node b of worker-1 goes at 10:02:20 UTC", "moves once a replacement is ready") == []


def test_a_new_leader_that_knows_no_nodes_yet_changes_nothing() -> None:
    story = warned(notice("b"))
    story.see(*WORLD, seconds=20)
    before, story.notices = story.status.node_notices, None
    story.see(*WORLD, stand_by("worker-2", "c", ready=False), seconds=25)
    assert story.status.node_notices == before
    story.notices = {"b": notice("b", seconds=26)}
    story.see(*WORLD, stand_by("worker-2", "c", ready=False), seconds=27)
    assert story.status.node_notices == before


def answer(story: Story, uid: str) -> Any:
    newest = Report(job="default/digits", pod="", role="worker", index=0, attempt=0)
    return replies.reply_to(story.job, uid, newest, addresses_of(story.job, story.status.attempt))


def test_supervisors_learn_the_notice_while_it_concerns_the_world() -> None:
    story = warned(notice("b", goes_at=140))
    story.see(*WORLD, seconds=20)
    told = answer(story, "worker-0/0").notice
    assert (told.node, told.goes, told.goes_at) == ("b", True, at(140).timestamp())
    story.see(*WORLD, stand_by("worker-2", "c"), seconds=30)
    story.see(worker("worker-0", "a", attempt=1, step=41), replace(worker("worker-2", "c", attempt=1), standby=True), seconds=40)
    assert story.status.node_notices
    assert answer(story, "worker-0/0").notice is None


def test_pods_are_deleted_only_once_the_status_says_that_the_world_moves() -> None:
    story = warned(notice("b"))
    decision = story.see(*WORLD, seconds=20)
    assert not [action for action in decision.actions if isinstance(action, DeleteReplica)]


@pytest.mark.parametrize(("resumed_at", "counts"), [(41, (1, 1, 0)), (20, (1, 0, 1))])
def test_a_notice_is_met_if_the_job_leaves_the_node_and_loses_no_step(resumed_at: int, counts: tuple[int, int, int]) -> None:
    story = warned(notice("b"))
    story.see(*WORLD, seconds=20)
    story.see(*WORLD, stand_by("worker-2", "c"), seconds=30)
    assert story.status.attempts[0].announced_nodes == 1
    commit = {"committedStep": resumed_at, "step": resumed_at, "path": "c"}
    first = worker("worker-0", "a", attempt=1, step=resumed_at + 1, resumed=commit)
    story.see(first, replace(worker("worker-2", "c", attempt=1), standby=True), seconds=40)
    found = story.status.notice_counts
    assert found is not None
    assert (found.came, found.met, found.missed) == counts


DRAINED = replace(WORLD[1], deleting=at(20), due=at(50), disruption="EvictionByEvictionAPI")


@pytest.mark.parametrize(("notices", "charged"), [([notice("b")], 0), ([notice("b", goes=False)], 1), ([notice("z")], 1)])
def test_a_drain_is_charged_unless_its_node_had_announced_that_it_goes(notices: list[NodeNotice], charged: int) -> None:
    story = warned(*notices, recovery={"preemption": {"limit": 1}})
    for number in range(2):
        story.see(WORLD[0], DRAINED, seconds=20 + 1000 * number)
    assert (story.status.attempts[0].reason, story.status.attempts[0].failure_class) == (Reason.DISRUPTED, "Preemption")
    assert (story.status.attempt, story.status.restarts.total) == (1, charged)


@pytest.mark.parametrize(("uid", "announced"), [("worker-1/0", 1), ("worker-1/of-an-earlier-world", None)])
def test_a_pod_that_is_gone_before_its_eviction_shows_was_on_the_node_that_goes(uid: str, announced: int | None) -> None:
    story = warned(notice("b"))
    story.see(*WORLD, seconds=20)
    story.departed = (replace(WORLD[1], uid=uid, released=at(21)),)
    story.see(WORLD[0], seconds=21)
    record = story.status.attempts[0]
    assert (record.reason, record.announced_nodes) == (Reason.REPLICA_LOST, announced)
    assert story.status.restarts.total == (0 if announced else 1)


def test_a_notice_that_is_first_seen_after_its_pod_has_gone_counts_as_announced() -> None:
    story = warned()
    story.see(*WORLD, seconds=20)
    story.notices = {"b": notice("b")}
    story.departed = (replace(WORLD[1], released=at(21)),)
    story.see(WORLD[0], seconds=21)
    assert (story.status.attempts[0].announced_nodes, story.status.restarts.total) == (1, 0)
    assert [each.node for each in story.status.node_notices] == ["b"]
    assert story.status.notice_counts == NoticeCounts(came=1)


def test_a_notice_that_is_first_seen_after_the_eviction_takes_back_the_charge() -> None:
    """The watches of nodes and of pods are independent of each other."""
    story = warned()
    story.see(*WORLD, seconds=20)
    story.see(WORLD[0], DRAINED, seconds=20)
    assert story.status.restarts.total == 1
    story.notices = {"b": notice("b")}
    story.see(WORLD[0], DRAINED, seconds=20.5)
    assert (story.status.attempts[0].announced_nodes, story.status.restarts.total) == (1, 0)


def test_a_job_outlives_any_number_of_announced_drains() -> None:
    story = warned(notice("b"), recovery={"preemption": {"limit": 0}})
    story.see(WORLD[0], DRAINED, seconds=20)
    assert (story.status.phase.final, story.status.restarts.total) == (False, 0)


def test_a_peer_that_reports_first_does_not_charge_an_announced_drain() -> None:
    story = warned(notice("b"))
    lost = failed("worker-0", 20, seconds=20, uid=WORLD[0].uid, node="a")
    story.see(lost, WORLD[1], seconds=20)
    assert story.status.restarts.infrastructure_count == 1
    story.see(lost, DRAINED, seconds=21)
    assert (story.status.attempts[0].failure_class, story.status.attempts[0].announced_nodes) == ("Preemption", 1)
    assert story.status.restarts.total == 0


def test_a_notice_of_a_node_without_replicas_of_the_world_does_not_count() -> None:
    story = warned(notice("z"))
    story.see(*WORLD, seconds=20)
    assert story.status.notice_counts is None
