"""Replicas that do not answer: when the attempt ends for them, and what takes their place before Kubernetes notices anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.status import FailureClass, Reason
from muster.lifecycle.actions import DeleteReplica, LookLive
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import Observed, ReplicaView
from muster.lifecycle.policy import DEFAULT_POLICY
from muster.render.addresses import addresses_of
from muster.render.manifests import render_world
from muster_contract.checkpoint_layout import Fence, checkpoint_name
from muster_contract.events import Commit
from tests.unit.lifecycle.lifecycle_cases import T0, Story, at, created, deleted, ended_with, job, replica, report, running

SILENCE = DEFAULT_POLICY.silence_seconds


def stepping(label: str, *, reported: float, idle: float = 0.0, step: int = 40, attempt: int = 0, **changes: Any) -> ReplicaView:
    """A replica that has trained until `idle` seconds before its last report."""
    more = {"in_place": True, "idle_seconds": idle, "phase": changes.pop("activity", "Training")}
    uid = changes.pop("uid", f"{label}/0")
    newest = report(label, attempt=attempt, step=step, at_second=reported - idle, **more)
    return replica(label, uid=uid, report=newest, reported=at(reported), node=changes.pop("node", f"node-{label[-1]}"), **changes)


def ready(label: str, *, attempt: int = 1, reported: float, uid: str = "") -> ReplicaView:
    """A kept replica that has acknowledged an attempt."""
    ended = ended_with(20, "ended because attempt 0 is over", attempt=attempt - 1)
    newest = report(label, attempt=attempt, in_place=True, waiting=True, termination=ended)
    return replica(label, uid=uid or f"{label}/0", report=newest, reported=at(reported), node=f"node-{label[-1]}")


def training_story(count: int = 2, *, step: int = 40, **spec: Any) -> Story:
    """A job that has trained since second 10, with an operator that has received all of its reports. `step` is its step at second 12."""
    story = Story(job(workers=count, **spec), expects_reports=True)
    story.see(seconds=0)
    story.see(*running(count), seconds=10)
    story.see(*(stepping(f"worker-{index}", reported=12, step=step) for index in range(count)), seconds=12)
    return story


def lost_story(**spec: Any) -> Story:
    """worker-1 last reported at second 100, and worker-0 has stood still since."""
    story = training_story(**spec)
    story.see(stepping("worker-0", reported=100), stepping("worker-1", reported=100), seconds=100)
    story.see(stepping("worker-0", reported=108, idle=8), stepping("worker-1", reported=100), seconds=108)
    return story


def test_a_silent_replica_whose_peers_stand_still_ends_the_attempt() -> None:
    story = lost_story()
    [record, following] = story.status.attempts
    assert (record.failure_class, record.reason, record.replica) == (FailureClass.INFRASTRUCTURE, Reason.NODE_LOST, "worker-1")
    assert (record.failed_time, record.node, record.end_time) == (at(100), "node-1", at(108))
    assert following.attempt == 1


def test_decisions_about_silent_replicas_compare_no_whole_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of replicas, each compared with each other one, a decision would take minutes."""

    def refuse(*_: object) -> bool:
        raise AssertionError("two views of replicas are compared")

    monkeypatch.setattr(ReplicaView, "__eq__", refuse)
    story = training_story(4)
    ended = report("worker-0", step=40, in_place=True, waiting=True, termination=ended_with(137, "killed", attempt=0))
    broken = replica("worker-0", uid="worker-0/0", report=ended, reported=at(130))
    story.see(broken, *(stepping(f"worker-{index}", reported=100) for index in range(1, 4)), seconds=130)
    assert story.status.attempt == 1
    story = lost_story(count=3)
    assert story.status.attempt == 1


def test_a_pass_is_due_when_a_replica_becomes_silent() -> None:
    story = training_story()
    views = [stepping("worker-0", reported=107, idle=7), stepping("worker-1", reported=100)]
    assert story.see(*views, seconds=107).wake == at(100 + SILENCE)
    assert story.status.attempt == 0


@pytest.mark.parametrize(
    "peer",
    [
        stepping("worker-0", reported=120, idle=0.1),
        stepping("worker-0", reported=120, idle=4.9),
        stepping("worker-0", reported=120, idle=19, activity="Saving"),
        stepping("worker-0", reported=120, idle=19, activity="Evaluating"),
        stepping("worker-0", reported=100, idle=0.1),
    ],
    ids=["trains on", "a long step", "saves", "evaluates", "is silent, too"],
)
def test_a_replica_that_may_only_be_cut_off_from_the_operator_trains_on(peer: ReplicaView) -> None:
    story = training_story()
    story.see(peer, stepping("worker-1", reported=100), seconds=120)
    assert (story.status.attempt, story.status.phase) == (0, "Running")


def test_peers_that_save_for_much_longer_than_a_save_takes_stand_still() -> None:
    story = training_story()
    saved = stepping("worker-0", reported=90)
    assert saved.report is not None
    commit = replace(saved.report, checkpoint=Commit(step=20, path="step-20", seconds=4))
    story.see(replace(saved, report=commit), stepping("worker-1", reported=90), seconds=90)
    lost = stepping("worker-1", reported=100)
    story.see(stepping("worker-0", reported=116, idle=16.9, activity="Saving"), lost, seconds=116)
    assert story.status.attempt == 0
    story.see(stepping("worker-0", reported=117, idle=17, activity="Saving"), lost, seconds=117)
    assert (story.status.attempt, story.status.attempts[0].reason) == (1, Reason.NODE_LOST)


def test_peers_with_long_steps_may_stand_still_for_longer() -> None:
    story = training_story(batch={"globalSize": 64})

    def peer(idle: float) -> ReplicaView:
        view = stepping("worker-0", reported=130, idle=idle)
        assert view.report is not None
        assert view.report.progress is not None
        return replace(view, report=replace(view.report, progress=replace(view.report.progress, samples_per_second=8.0)))

    story.see(peer(23), stepping("worker-1", reported=100), seconds=130)  # a step takes 8 s
    assert story.status.attempt == 0
    story.see(peer(24), stepping("worker-1", reported=100), seconds=130)
    assert story.status.attempt == 1


def test_an_operator_that_has_stood_still_itself_takes_no_replica_for_silent() -> None:
    story = training_story()
    peer, quiet = stepping("worker-0", reported=119, idle=8), stepping("worker-1", reported=100, missed_seconds=18)
    assert story.see(peer, quiet, seconds=119).wake == at(100 + 18 + SILENCE)
    assert story.status.attempt == 0


@pytest.mark.parametrize(
    ("gap", "silence", "standstill"),
    [(None, 8, 5), (0.0, 3, 2.5), (0.75, 3, 2.5), (1.5, 6, 3.75), (2.4, 8, 5), (30.0, 8, 5)],
    ids=["unknown", "none", "short", "longer", "that of many supervisors", "that of a frozen node"],
)
def test_regular_reports_make_a_shorter_silence_enough(gap: float | None, silence: float, standstill: float) -> None:
    def attempt_after(seconds: float, *, idle: float) -> int:
        story = training_story()
        story.gap_seconds = gap
        now = 100 + seconds
        story.see(stepping("worker-0", reported=now, idle=idle), stepping("worker-1", reported=100), seconds=now)
        return story.status.attempt

    assert attempt_after(silence, idle=standstill) == 1
    assert attempt_after(silence - 0.01, idle=standstill) == 0
    assert attempt_after(silence, idle=standstill - 0.01) == 0


@pytest.mark.parametrize(
    ("gap", "limit"), [(None, 3), (0.2, 1.125), (1.5, 2.25), (2.4, 3)], ids=["unknown", "short", "longer", "that of many supervisors"]
)
def test_a_closed_connection_makes_a_shorter_silence_enough(gap: float | None, limit: float) -> None:
    def attempt_after(seconds: float) -> int:
        story = training_story()
        story.gap_seconds = gap
        now = 100.1 + seconds
        story.see(stepping("worker-0", reported=now, idle=20), stepping("worker-1", reported=100, disconnected=at(100.1)), seconds=now)
        return story.status.attempt

    assert attempt_after(limit) == 1
    assert attempt_after(limit - 0.01) == 0


def test_a_replica_without_a_connection_whose_peers_train_is_not_lost() -> None:
    story = training_story()
    lost = stepping("worker-1", reported=100, disconnected=at(100.1))
    story.see(stepping("worker-0", reported=130, idle=0.1), lost, seconds=130)
    assert story.status.attempt == 0


def test_another_leader_takes_no_replica_for_silent_before_its_first_report() -> None:
    story = training_story()
    story.see(stepping("worker-0", reported=200, idle=90), replica("worker-1"), seconds=200)
    assert story.status.attempt == 0


def test_the_replacement_has_a_new_name_and_waits_for_no_old_pod() -> None:
    story = lost_story()
    assert [(each.name, each.attempt, each.node) for each in story.status.orphaned] == [("digits-worker-1", 0, "node-1")]
    assert [(member.label, member.suffix, member.uid) for member in story.status.world.members] == [
        ("worker-0", None, "worker-0/0"),
        ("worker-1", 1, ""),
    ]
    decision = story.see(ready("worker-0", reported=109), stepping("worker-1", reported=100), seconds=109)
    assert created(decision) == ["worker-1/1"]
    assert deleted(decision) == ["worker-1/0"]
    addresses = addresses_of(story.job, 1)
    assert addresses.host("worker", 1) == "worker-1-1.digits.default.svc"
    assert addresses.host("worker", 0) == "worker-0.digits.default.svc"
    assert story.status.attempts[0].reason is Reason.NODE_LOST


def test_a_stale_look_orphans_no_pod_because_it_may_have_ended() -> None:
    story = training_story()
    story.see(stepping("worker-0", reported=100), stepping("worker-1", reported=100), seconds=100)
    stale = story.see(stepping("worker-0", reported=108, idle=8), stepping("worker-1", reported=100), seconds=108, live=False)
    assert (story.status.attempt, story.status.orphaned) == (1, ())
    assert LookLive() in stale.actions
    story.see(stepping("worker-0", reported=108, idle=8), replica("worker-1", uid="worker-1/0", phase="Failed"), seconds=108)
    assert story.status.orphaned == ()


def test_all_ranks_get_the_new_name_of_rank_0() -> None:
    story = training_story()
    story.see(stepping("worker-1", reported=108, idle=8), stepping("worker-0", reported=100), seconds=108)
    world = render_world(story.job, "worker", index=1, attempt=1, addresses=addresses_of(story.job, 1))
    assert world["MASTER_ADDR"] == "worker-0-1.digits.default.svc"


def test_the_world_starts_beside_the_pod_orphaned_which_never_joins_it() -> None:
    story = lost_story()
    leaving = replace(stepping("worker-1", reported=100), deleting=at(109), due=at(134))
    place = replica("worker-1", attempt=1, uid="new", suffix=1, phase="Pending", created=at(109))
    story.see(ready("worker-0", reported=109), leaving, place, seconds=110)
    story.see(ready("worker-0", reported=111), leaving, replace(place, phase=running()[0].phase), seconds=111)
    assert story.status.phase == "Running"
    assert story.status.attempts[0].settled
    thawed = replace(ready("worker-1", reported=112), deleting=at(109), due=at(134))
    decision = story.see(ready("worker-0", reported=112), thawed, replace(place, phase=running()[0].phase), seconds=112)
    assert not decision.actions
    assert {member.uid for member in story.status.world.members} == {"worker-0/0", "new"}


def test_a_pod_orphaned_is_removed_by_force_in_the_end_and_then_forgotten() -> None:
    story = lost_story()
    leaving = replace(stepping("worker-1", reported=100), deleting=at(109), due=at(134))
    place = replica("worker-1", attempt=1, uid="new", suffix=1, created=at(109))
    decision = story.see(ready("worker-0", reported=194), leaving, place, seconds=194)
    assert [action for action in decision.actions if isinstance(action, DeleteReplica)] == [
        DeleteReplica("digits-worker-1", "worker-1/0", 0)
    ]
    story.see(ready("worker-0", reported=195), place, seconds=195, live=False)
    assert story.status.orphaned  # a cache proves nothing
    story.see(ready("worker-0", reported=196), place, seconds=196)
    assert story.status.orphaned == ()
    assert story.status.world.members[1].suffix == 1  # its pod still has this name


def test_a_world_runs_on_while_the_status_lacks_its_orphaned_pods() -> None:
    """An operator of an earlier version kept them in a field that the definition has no more."""
    story = lost_story()
    leaving = replica("worker-1", deleting=at(109), due=at(134))
    place = replica("worker-1", attempt=1, uid="new", suffix=1, created=at(109))
    story.see(ready("worker-0", reported=110), leaving, place, seconds=110)
    story.job = story.job.with_status(replace(story.status, orphaned=()))
    for seconds in (111, 143):
        decision = story.see(ready("worker-0", reported=seconds), leaving, place, seconds=seconds)
        assert (decision.actions, story.status.phase, story.status.attempt) == ((), "Running", 1)
    story.see(ready("worker-0", reported=144), leaving, place, seconds=144)
    assert ([each.uid for each in story.status.orphaned], story.status.phase) == (["worker-1/0"], "Running")


def test_the_next_pod_has_the_first_name_again_once_that_is_free() -> None:
    story = lost_story()
    place = replica("worker-1", attempt=1, uid="new", suffix=1, created=at(109))
    story.see(ready("worker-0", reported=110), place, seconds=110)
    gone = replace(place, deleting=at(300), due=at(330), reason="Evicted")
    story.see(ready("worker-0", reported=300), gone, seconds=300)
    assert story.status.attempt == 2
    assert [member.suffix for member in story.status.world.members] == [None, None]


def test_a_replica_that_does_not_acknowledge_is_replaced_when_it_is_silent() -> None:
    """Its peers lose it at once, and their loss is at first all that is seen."""
    story = training_story()
    lost = ended_with(20, "connection lost", attempt=0)
    ended = replica(
        "worker-0",
        report=report("worker-0", in_place=True, waiting=True, termination=lost, step=40),
        reported=at(102),
        uid="worker-0/0",
    )
    story.see(ended, stepping("worker-1", reported=100), seconds=102)
    assert story.status.attempts[0].reason is Reason.PEER_LOST
    decision = story.see(ready("worker-0", reported=104), stepping("worker-1", reported=100), seconds=104)
    assert (created(decision), story.status.orphaned) == ([], ())
    assert decision.wake == at(100 + DEFAULT_POLICY.acknowledgement_silence_seconds)
    decision = story.see(ready("worker-0", reported=105), stepping("worker-1", reported=100), seconds=105)
    assert created(decision) == ["worker-1/1"]
    record = story.status.attempts[0]
    assert (record.reason, record.failed_time, record.end_time) == (Reason.NODE_LOST, at(100), at(102))


def test_a_pod_without_a_report_is_orphaned_when_it_is_overdue() -> None:
    story = training_story()
    story.see(stepping("worker-0", reported=100), replica("worker-1", deleting=at(100), due=at(125), disruption="Taint"), seconds=100)
    leaving = replica("worker-1", deleting=at(100), due=at(125), disruption="Taint")
    assert created(story.see(ready("worker-0", reported=134), leaving, seconds=134)) == []
    assert created(story.see(ready("worker-0", reported=135), leaving, seconds=135)) == ["worker-1/1"]


OWN_LOOP = {"script": "train.py"}
FENCED = checkpoint_name(20, Fence(T0, 0))


def committing(view: ReplicaView, path: str = FENCED) -> ReplicaView:
    """The replica whose program has reported a commit in this folder."""
    assert view.report is not None
    return replace(view, report=replace(view.report, checkpoint=Commit(step=20, path=path, seconds=0.1)))


def own_loop_story(path: str = FENCED, *, step: int = 40) -> Story:
    """A program of the user that did its first step in second 12, and has committed on rank 0."""
    story = training_story(step=1, trainer=OWN_LOOP)
    story.see(committing(stepping("worker-0", reported=90, step=step), path), stepping("worker-1", reported=90, step=step), seconds=90)
    return story


@pytest.mark.parametrize("lost", [0, 1])
def test_a_program_that_commits_through_the_library_is_replaced_at_once(lost: int) -> None:
    """Rank 0 reports the commits. Its last report stays, and then the status has them."""
    story = own_loop_story()
    silent, other = f"worker-{lost}", f"worker-{1 - lost}"
    gone = stepping(silent, reported=100)
    story.see(committing(gone) if lost == 0 else gone, stepping(other, reported=110, idle=9.5), seconds=110)
    assert (story.status.attempts[0].reason, story.status.attempts[0].replica) == (Reason.NODE_LOST, silent)
    assert [each.name for each in story.status.orphaned] == [f"digits-{silent}"]
    assert created(story.see(ready(other, reported=111), gone, seconds=111)) == [f"{silent}/1"]


def test_a_new_leader_knows_by_the_status_that_a_program_commits_through_the_library() -> None:
    story = own_loop_story()
    story.see(committing(stepping("worker-0", reported=130)), stepping("worker-1", reported=130), seconds=130)
    assert story.status.checkpoint is not None
    leaving = replica("worker-0", deleting=at(140), due=at(165), disruption="Taint")
    story.see(ready("worker-1", reported=175), leaving, seconds=175)
    assert [each.name for each in story.status.orphaned] == ["digits-worker-0"]


@pytest.mark.parametrize("path", ["checkpoint-20", "step-20", "", "step-00000020-rescue"])
def test_a_commit_without_a_fence_in_its_name_proves_no_fence(path: str) -> None:
    story = own_loop_story(path)
    story.see(committing(stepping("worker-0", reported=130, idle=29), path), stepping("worker-1", reported=100), seconds=130)
    assert story.status.attempt == 0


def test_a_program_with_long_steps_may_stand_still_for_longer() -> None:
    """The mean of its steps counts: 9 after the first one, in 98 seconds."""

    def attempt_after(idle: float) -> int:
        story = own_loop_story(step=10)
        now = 110 + idle
        peer = committing(stepping("worker-0", reported=now, idle=idle, step=10))
        story.see(peer, stepping("worker-1", reported=100, step=10), seconds=now)
        return story.status.attempt

    assert attempt_after(32.6) == 0
    assert attempt_after(32.7) == 1


def test_a_program_that_has_done_one_step_may_stand_still() -> None:
    story = own_loop_story(step=1)
    story.see(committing(stepping("worker-0", reported=190, idle=99, step=1)), stepping("worker-1", reported=100, step=1), seconds=190)
    assert story.status.attempt == 0


def test_an_eviction_counts_from_the_last_report() -> None:
    story = training_story(trainer={"script": "train.py"})
    evicted = replace(stepping("worker-1", reported=100), deleting=at(180), due=at(205), disruption="DeletionByTaintManager")
    story.see(stepping("worker-0", reported=180), evicted, seconds=180)
    record = story.status.attempts[0]
    assert (record.reason, record.failed_time, record.end_time) == (Reason.DISRUPTED, at(100), at(180))


@pytest.mark.parametrize(
    "spec",
    [{"trainer": {"script": "train.py"}}, {"strategy": "ParameterServer", "roles": {"worker": {"replicas": 2}, "ps": {}, "chief": {}}}],
    ids=["a program without a fence", "a world that keeps its ports"],
)
def test_what_no_fence_keeps_out_is_waited_for(spec: dict[str, Any]) -> None:
    story = Story(job(**spec), expects_reports=True)
    labels = [f"{member.role}-{member.index}" for member in story.see(seconds=0).status.world.members]
    story.see(*(replica(label) for label in labels), seconds=10)
    story.see(*(stepping(label, reported=12) for label in labels), seconds=12)
    story.see(*(stepping(label, reported=100 if label == labels[-1] else 130, idle=20) for label in labels), seconds=130)
    assert story.status.attempt == 0
    leaving = replace(stepping(labels[-1], reported=100), deleting=at(140), due=at(165), disruption="Taint")
    others = [stepping(label, reported=200, idle=20) for label in labels[:-1]]
    story.see(*others, leaving, seconds=140)
    decision = story.see(*others, leaving, seconds=200)
    assert (created(decision), story.status.orphaned) == ([], ())


def test_the_message_says_that_no_fence_stops_the_program() -> None:
    story = training_story(trainer={"script": "train.py"})
    leaving = replace(stepping("worker-1", reported=100), deleting=at(140), due=at(165), disruption="Taint")
    story.see(stepping("worker-0", reported=140), leaving, seconds=140)
    story.see(ready("worker-0", reported=200), leaving, seconds=200)
    assert "no fence stops its program" in story.status.message


def test_a_pod_that_waits_although_the_silent_node_is_back_is_created_again() -> None:
    story = lost_story()
    place = replica("worker-1", attempt=1, uid="new", suffix=1, phase="Pending", created=at(109), excluded_nodes=("node-1",))
    leaving = replace(stepping("worker-1", reported=100), deleting=at(109), due=at(134))
    story.see(ready("worker-0", reported=128), leaving, place, seconds=128)
    assert story.status.attempt == 1
    story.see(ready("worker-0", reported=129), place, seconds=128.5)
    assert story.status.attempt == 1
    story.see(ready("worker-0", reported=129), place, seconds=129)
    assert story.status.attempts[1].reason is Reason.RESCHEDULED
    assert story.status.attempt == 2
    assert story.status.restarts.total == 1


def test_only_so_many_pods_are_orphaned() -> None:
    """The others are waited for, so that the status does not grow without end."""
    story = training_story(1100)
    views = [stepping(f"worker-{index}", reported=100) for index in range(1, 1100)]
    now = at(110)
    decision = decide(
        story.job, Observed((stepping("worker-0", reported=110, idle=9), *views), live=True, service=True, expects_reports=True), now
    )
    assert len(decision.status.orphaned) == 1000
