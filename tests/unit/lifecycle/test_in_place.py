"""In-place restarts: which replicas stay for the next attempt, and when they start it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.status import ConditionType, FailureClass, Member, Reason, TrainingJobStatus
from muster.channel import replies
from muster.lifecycle.actions import DeleteReplica
from muster.lifecycle.facts.acknowledging import grace_seconds
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.transition.fence import member_to_start
from muster.render.addresses import addresses_of
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, ended_with, failed, job, replica, report, running_story


def alive(label: str, *, attempt: int = 0, **fields: Any) -> ReplicaView:
    """A replica of the first attempt with a supervisor in `attempt` that can restart in place."""
    return replica(label, report=report(label, attempt=attempt, in_place=True, **fields))


def ended(label: str, code: int, message: str = "termination message", **fields: Any) -> ReplicaView:
    """A replica with ended processes that waits."""
    return alive(label, waiting=True, termination=ended_with(code, message, attempt=0), **fields)


def ready(label: str, *, attempt: int = 1, code: int | None = None) -> ReplicaView:
    """A replica that has acknowledged a later attempt. With `code`, it reports the end of the attempt before."""
    return alive(label, attempt=attempt, waiting=True, termination=ended_with(code, attempt=attempt - 1) if code else None)


def broken(**spec: Any) -> Story:
    """A job with two workers. The processes of worker-1 were killed, and both supervisors live."""
    story = running_story(2, **spec)
    decision = story.see(alive("worker-0"), ended("worker-1", 137, "killed"), seconds=20)
    assert (story.status.attempt, created(decision), deleted(decision)) == (1, [], [])
    return story


def test_a_broken_world_restarts_in_the_pods_that_report() -> None:
    story = broken()
    assert story.status.attempts[0].reason is Reason.PROCESS_KILLED
    members = story.status.world.members if story.status.world else []
    assert [(member.uid, member.awaited) for member in members] == [("worker-0/0", True), ("worker-1/0", True)]
    story.see(alive("worker-0"), alive("worker-1"), seconds=22)
    assert [member.awaited for member in world_of(story)] == [True, True]


def test_replicas_get_the_world_once_all_have_acknowledged() -> None:
    story = broken()
    story.see(alive("worker-0"), ready("worker-1", code=137), seconds=22)
    assert member_to_start(story.status, "worker-1/0") is None
    decision = story.see(ready("worker-0"), ready("worker-1", code=137), seconds=23)
    assert (created(decision), deleted(decision)) == ([], [])
    place = member_to_start(story.status, "worker-1/0")
    assert place is not None
    assert (place.role, place.index, story.status.phase) == ("worker", 1, "Running")
    assert story.status.attempts[0].settled


def test_termination_acknowledge_the_next_attempt_but_no_later_one() -> None:
    story = broken()
    story.see(alive("worker-0"), ended("worker-1", 137), seconds=22)
    assert [member.awaited for member in world_of(story)] == [True, False]
    story.see(ready("worker-0"), ended("worker-1", 137), seconds=23)
    assert (story.status.attempt, story.status.phase) == (1, "Running")
    for seconds in (30, 31):
        failing = alive("worker-0", attempt=1, waiting=True, termination=ended_with(137, attempt=1))
        story.see(failing, ended("worker-1", 137), seconds=seconds)
    assert story.status.attempt == 2
    assert [member.awaited for member in world_of(story)] == [False, True], "worker-1 may have started attempt 1 meanwhile"


def test_replicas_that_all_end_before_the_next_attempt_get_its_world_at_once() -> None:
    """Both reports come before one pass, and both supervisors then wait for the world. Nothing else causes the next pass."""
    story = running_story(2)
    both = ended("worker-0", 20), ended("worker-1", 137)
    wake = story.see(*both, seconds=20).wake
    assert (story.status.attempt, wake) == (1, at(20.001))
    story.see(*both, seconds=20.001)
    assert [member.awaited for member in world_of(story)] == [False, False]
    assert (story.status.phase, member_to_start(story.status, "worker-0/0") is not None) == ("Running", True)


def test_termination_of_a_pod_that_has_ended_acknowledge_nothing() -> None:
    story = broken()
    gone = replace(failed("worker-1", 137, seconds=21), report=ended("worker-1", 137).report)
    story.see(ready("worker-0"), gone, seconds=22)
    assert (story.status.attempt, [member.awaited for member in world_of(story)]) == (1, [False, True])


def test_termination_about_the_attempt_before_are_no_failure_of_the_next() -> None:
    """The pod ends before it gets the world of the attempt that it has acknowledged: its termination message is about the one before."""
    story = broken()
    story.see(alive("worker-0"), ended("worker-1", 10, "bad loss"), seconds=22)
    said = ended_with(10, "bad loss", attempt=0)
    story.see(alive("worker-0"), replace(failed("worker-1", 10, seconds=23), termination=said), seconds=23)
    record = story.status.attempts[1]
    assert (record.failure_class, record.message) == (FailureClass.PREEMPTION, "worker-1 ended before attempt 1 began")


def test_a_replacement_is_created_only_after_all_others_have_acknowledged() -> None:
    story = running_story(2)
    story.see(alive("worker-0"), failed("worker-1", 137), seconds=20)
    assert created(story.see(alive("worker-0"), seconds=21)) == []
    assert created(story.see(ready("worker-0"), seconds=22)) == ["worker-1/1"]


def test_a_replica_that_does_not_acknowledge_loses_its_pod() -> None:
    story = broken()
    story.see(ready("worker-0"), alive("worker-1"), seconds=34)
    decision = story.see(ready("worker-0"), alive("worker-1"), seconds=36)
    assert [action.grace_seconds for action in decision.actions if isinstance(action, DeleteReplica)] == [10]  # nothing can be saved there
    assert created(story.see(ready("worker-0"), seconds=40)) == ["worker-1/1"]


def test_a_replica_that_neither_acknowledges_nor_ends_was_on_a_lost_node() -> None:
    """At first, only the lost connection of its peer is reported."""
    story = running_story(2)
    story.see(ended("worker-0", 20, "connection lost"), alive("worker-1"), seconds=20)
    record = story.status.attempts[0]
    assert (record.failure_class, record.reason) == (FailureClass.INFRASTRUCTURE, Reason.PEER_LOST)
    leaving = replace(alive("worker-1"), deleting=at(36), due=at(46))
    story.see(ready("worker-0", code=20), leaving, seconds=55)
    assert story.status.attempts[0].reason is Reason.PEER_LOST
    story.see(ready("worker-0", code=20), leaving, seconds=56)
    record = story.status.attempts[0]
    assert (record.failure_class, record.reason, record.replica) == (FailureClass.PREEMPTION, Reason.NODE_LOST, "worker-1")
    assert (story.status.restarts.preemption_count, story.status.restarts.infrastructure_count) == (1, 0)


def test_a_replica_that_is_gone_before_it_acknowledges_is_replaced() -> None:
    story = broken()
    story.see(ready("worker-0"), seconds=22)
    assert story.status.attempt == 1
    assert created(story.see(ready("worker-0"), seconds=23)) == ["worker-1/1"]
    story.see(ready("worker-0"), replica("worker-1", attempt=1), seconds=24)
    assert story.status.phase == "Running"


def test_a_replica_that_acknowledges_after_its_deletion_is_replaced() -> None:
    """Muster deleted it because it was slow. Its late report must not count as the loss of a member."""
    story = broken()
    story.see(alive("worker-0"), ended("worker-1", 137), seconds=60)
    late = replace(ready("worker-0"), deleting=at(60))
    decision = story.see(late, ended("worker-1", 137), seconds=61)
    assert (story.status.attempt, deleted(decision)) == (1, [])
    decision = story.see(ended("worker-1", 137), seconds=62)
    assert (story.status.attempt, created(decision)) == (1, ["worker-0/1"])


def test_a_replica_that_acknowledges_before_its_deletion_is_seen_is_replaced() -> None:
    """It had not reported when its peer failed, so Muster deleted its pod. Its first report overtakes the news of the deletion."""
    story = running_story(2)
    decision = story.see(ended("worker-0", 137, "killed"), replica("worker-1"), seconds=20)
    assert (story.status.attempt, deleted(decision)) == (1, ["worker-1/0"])
    story.see(ready("worker-0", code=137), ready("worker-1"), seconds=20.1)
    assert story.status.phase == "Recovering"
    story.see(ready("worker-0", code=137), replace(ready("worker-1"), deleting=at(20)), seconds=20.2)
    assert (story.status.attempt, story.status.restarts.preemption_count) == (1, 0)
    decision = story.see(ready("worker-0", code=137), seconds=21)
    assert (story.status.attempt, created(decision)) == (1, ["worker-1/1"])


def test_a_new_leader_without_reports_does_not_change_a_world_in_older_pods() -> None:
    story = broken()
    story.see(ready("worker-0"), ready("worker-1", code=137), seconds=23)
    decision = story.see(replica("worker-0"), replica("worker-1"), seconds=90)
    assert (story.status.attempt, story.status.phase, deleted(decision)) == (1, "Running", [])


def test_a_new_leader_waits_for_members_that_have_not_reported_yet() -> None:
    story = running_story(2)
    story.see(alive("worker-0", step=30), alive("worker-1"), seconds=60)
    decision = story.see(replica("worker-0"), ended("worker-1", 137), seconds=90)
    assert (story.status.attempt, created(decision), deleted(decision)) == (1, [], [])
    members = story.status.world.members if story.status.world else []
    assert [(member.uid, member.awaited) for member in members] == [("worker-0/0", True), ("worker-1/0", True)]
    late = story.see(replica("worker-0"), ready("worker-1", code=137), seconds=90 + 16)
    assert deleted(late) == ["worker-0/0"]


def test_a_replica_that_never_reported_is_replaced_at_once() -> None:
    story = running_story(2)
    decision = story.see(replica("worker-0"), failed("worker-1", 137), seconds=90)
    assert deleted(decision) == ["worker-0/0", "worker-1/0"]


def test_replicas_of_an_older_template_are_not_restarted_in_place() -> None:
    story = broken_when_edited(before="a", after="b")
    assert [member.awaited for member in world_of(story)] == [False, False]
    decision = story.see(replace(alive("worker-0"), template_hash="a"), seconds=21)
    assert deleted(decision) == ["worker-0/0"]
    assert [member.awaited for member in world_of(broken_when_edited(before="a", after="a"))] == [True, False]
    assert [member.awaited for member in world_of(broken_when_edited(before="", after="b"))] == [True, False]  # of an older operator


def broken_when_edited(*, before: str, after: str) -> Story:
    """A job that loses worker-1 after a change of its template."""
    story = running_story(2)
    story.template_hash = before
    story.see(replace(alive("worker-0"), template_hash=before), replace(alive("worker-1"), template_hash=before), seconds=15)
    story.template_hash = after
    story.see(replace(alive("worker-0"), template_hash=before), seconds=20)
    return story


def world_of(story: Story) -> list[Member]:
    return story.status.world.members if story.status.world else []


def test_replicas_wait_in_place_for_the_back_off() -> None:
    story = running_story(1)
    story.see(ended("worker-0", 10), seconds=20)
    decision = story.see(ready("worker-0", code=10), seconds=22)
    assert member_to_start(story.status, "worker-0/0") is None
    assert decision.wake == story.status.next_attempt_time
    story.see(ready("worker-0", code=10), seconds=31)
    assert member_to_start(story.status, "worker-0/0") is not None


def test_termination_of_a_replica_that_restarts_in_place_correct_the_cause() -> None:
    story = running_story(2)
    story.see(ended("worker-0", 20), alive("worker-1"), seconds=20)
    assert story.status.attempts[0].reason is Reason.PEER_LOST
    story.see(ready("worker-0", code=20), ready("worker-1", code=10), seconds=21)
    assert (story.status.attempts[0].replica, story.status.attempts[0].failure_class) == ("worker-1", FailureClass.APPLICATION)
    assert (story.status.restarts.application_count, story.status.restarts.infrastructure_count) == (1, 0)


def test_termination_of_a_replica_that_restarts_in_place_count_its_last_step() -> None:
    """worker-0 did two steps after its newest report, and its termination message acknowledges the next attempt at once."""
    story = running_story(2)
    story.see(alive("worker-0", step=12), alive("worker-1"), seconds=18)
    story.see(alive("worker-0", step=12), ended("worker-1", 137), seconds=20)
    assert (story.status.attempt, story.status.attempts[0].last_step) == (1, 12)
    late = alive("worker-0", waiting=True, termination=ended_with(20, attempt=0, step=14))
    story.see(late, ended("worker-1", 137), seconds=21)
    assert story.status.attempts[0].last_step == 14
    story.see(alive("worker-0", attempt=1, resumed={"step": 10}), alive("worker-1", attempt=1), seconds=22)
    assert (story.record.step_resumed, story.record.steps_lost) == (10, 4)


def test_steps_are_lost_after_an_attempt_that_ended_before_it_resumed() -> None:
    story = running_story(2)
    story.see(alive("worker-0", step=12), alive("worker-1"), seconds=18)
    story.see(alive("worker-0", step=12), ended("worker-1", 137), seconds=20)
    late = alive("worker-0", waiting=True, termination=ended_with(20, attempt=0, step=14))
    story.see(late, ended("worker-1", 137), seconds=21)
    killed = alive("worker-1", attempt=1, waiting=True, termination=ended_with(137, attempt=1))
    story.see(alive("worker-0", attempt=1), killed, seconds=22)
    story.see(ready("worker-0", attempt=2), ready("worker-1", attempt=2), seconds=30)
    story.see(alive("worker-0", attempt=2, resumed={"step": 10}), alive("worker-1", attempt=2), seconds=32)
    assert (story.status.attempt, story.record.step_resumed, story.record.steps_lost) == (2, 10, 4)


def test_replicas_of_a_failed_job_get_time_to_end() -> None:
    story = running_story(1, recovery={"application": {"limit": 0}})
    story.see(ended("worker-0", 10), seconds=20)
    assert deleted(story.see(ended("worker-0", 10), seconds=21)) == []
    assert story.status.phase == "Failed"
    assert deleted(story.see(ended("worker-0", 10), seconds=60)) == ["worker-0/0"]


def test_a_supervisor_that_cannot_restart_in_place_is_replaced() -> None:
    story = running_story(2)
    old = replica("worker-0", report=report("worker-0"))
    decision = story.see(old, failed("worker-1", 137), seconds=20)
    assert deleted(decision) == ["worker-0/0", "worker-1/0"]


def test_a_world_gets_time_to_save_after_an_eviction_but_not_after_a_lost_node() -> None:
    for disruption, grace in (
        ({"disruption": "EvictionByEvictionAPI", "deleting": at(20)}, 120),
        ({"phase": "Failed", "reason": "NodeLost"}, 0),
    ):
        story = running_story(2)
        story.see(alive("worker-0"), replica("worker-1", **disruption), seconds=20)
        assert (story.status.attempt, grace_seconds(story.job.spec, story.status)) == (1, grace)


def test_a_replica_that_is_no_longer_needed_does_not_fail_the_new_world() -> None:
    story = Story(job(workers=2))
    story.see(seconds=0)
    story.see(alive("worker-0"), alive("worker-1"), seconds=10)
    story.edit(roles={"worker": {"replicas": 1}})
    story.see(alive("worker-0"), alive("worker-1"), seconds=20)
    story.see(ready("worker-0"), replace(ready("worker-1"), deleting=at(21)), seconds=22)
    assert (story.status.attempt, story.status.phase) == (1, "Running")


def served(**spec: Any) -> Story:
    """A job with a chief, two workers and a parameter server that trains at step 40."""
    roles = {"chief": {}, "worker": {"replicas": 2}, "ps": {}}
    story = Story(job(strategy="ParameterServer", roles=roles, **spec))
    story.see(seconds=0)
    story.see(*servers(), seconds=10)
    assert story.status.progress is not None
    return story


def servers(**others: ReplicaView) -> list[ReplicaView]:
    """The four replicas, which train in the first attempt, except `others`."""
    views = {label: alive(label) for label in ("chief-0", "worker-0", "worker-1", "ps-0")}
    views["chief-0"] = alive("chief-0", step=40, resumed={"step": 0})
    return list((views | {label.replace("_", "-"): view for label, view in others.items()}).values())


@pytest.mark.parametrize(
    ("ends", "unaffected"),
    [
        ({"worker_1": ended("worker-1", 137)}, {"chief-0", "worker-0", "ps-0"}),
        ({"chief_0": ended("chief-0", 137)}, {"worker-0", "worker-1", "ps-0"}),
        ({"ps_0": ended("ps-0", 137)}, {"worker-0", "worker-1"}),
        ({"chief_0": ended("chief-0", 20)}, {"worker-0", "worker-1"}),
        ({"worker_0": ended("worker-0", 137), "chief_0": ended("chief-0", 20)}, {"worker-1"}),
    ],
    ids=["a worker: it alone", "the chief: it alone", "a server: with the chief", "a lost server, as the chief tells", "two at once"],
)
def test_a_parameter_server_job_restarts_only_the_affected_replicas(ends: dict[str, ReplicaView], unaffected: set[str]) -> None:
    story = served()
    decision = story.see(*servers(**ends), seconds=20)
    assert (story.status.attempt, created(decision), deleted(decision)) == (1, [], [])
    members = story.status.world.members if story.status.world else []
    assert {f"{member.role}-{member.index}" for member in members if member.incarnation == 0} == unaffected
    assert {f"{member.role}-{member.index}" for member in members if member.awaited} == {view.label for view in servers()} - unaffected
    for view in servers():
        received = replies.reply_to(story.job, view.uid, report(view.label), addresses_of(story.job, 1)).attempt
        assert received == (0 if view.label in unaffected else 1)


def test_unaffected_replicas_train_on_and_their_later_failure_is_a_new_one() -> None:
    story = served()
    story.see(*servers(worker_1=ended("worker-1", 137)), seconds=20)
    assert (story.record.step_resumed, story.record.steps_lost) == (40, 0)
    assert [member.label for member in world_of(story) if member.awaited] == ["worker-1"]
    farther = alive("chief-0", step=44, resumed={"step": 0})
    story.see(*servers(worker_1=ended("worker-1", 137), chief_0=farther), seconds=22)
    assert [member.label for member in world_of(story) if member.awaited] == []
    assert story.status.goodput is not None
    story.see(*servers(worker_1=ready("worker-1", code=137), chief_0=farther), seconds=24)
    assert story.status.phase == "Running"
    gone = replace(ended("ps-0", 10, "no more disk"), reported=at(30))
    story.see(*servers(worker_1=alive("worker-1", attempt=1), chief_0=farther, ps_0=gone), seconds=30)
    records = story.status.attempts
    assert [(each.replica, each.message) for each in records[:2]] == [("worker-1", "termination message"), ("ps-0", "no more disk")]
    members = story.status.world.members if story.status.world else []
    assert [(member.role, member.index, member.incarnation) for member in members if not member.awaited] == [
        ("worker", 0, 0),
        ("worker", 1, 1),
    ]


def test_a_restart_before_the_chief_has_resumed_has_the_resume_of_the_chief() -> None:
    """A worker is killed while the new chief still reads a commit."""
    story = served()
    story.see(*servers(chief_0=ended("chief-0", 137)), seconds=20)
    story.see(*servers(chief_0=ready("chief-0", code=137)), seconds=22)
    starting = alive("chief-0", attempt=1)
    story.see(*servers(chief_0=starting), seconds=24)
    story.see(*servers(chief_0=starting, worker_1=ended("worker-1", 137)), seconds=26)
    assert (story.status.attempt, story.record.step_resumed) == (2, None)
    resumed = alive("chief-0", attempt=1, resumed={"step": 30, "committedStep": 30, "path": "c30", "source": "Storage"})
    story.see(*servers(chief_0=resumed, worker_1=ready("worker-1", code=137)), seconds=28)
    record = story.record
    assert (record.step_resumed, record.resumed_from, record.steps_lost) == (30, "Storage", 10)
    assert [each.step_resumed for each in story.status.attempts] == [0, None, 30]
    later = alive("chief-0", attempt=1, step=35, resumed={"step": 30, "committedStep": 30, "path": "c30", "source": "Storage"})
    story.see(*servers(chief_0=later, worker_1=alive("worker-1", attempt=2)), seconds=40)
    killed = alive("worker-1", attempt=2, waiting=True, termination=ended_with(137, attempt=2))
    story.see(*servers(chief_0=later, worker_1=killed), seconds=42)
    assert (story.status.attempt, story.record.step_resumed, story.record.steps_lost) == (3, 35, 0)
    story.see(*servers(chief_0=later, worker_1=ready("worker-1", attempt=3, code=137)), seconds=44)
    assert (story.record.step_resumed, story.record.resumed_from) == (35, None)


def test_a_restart_during_which_training_continues_is_no_resume() -> None:
    story = served()
    story.see(*servers(worker_1=ended("worker-1", 137)), seconds=20)
    assert story.status.attempt == 1
    assert story.status.condition(ConditionType.RESUME_REGRESSION) is None
    story = Story(story.job.with_status(TrainingJobStatus()))
    began = alive("chief-0", step=40, resumed={"step": 0, "committedStep": 50})
    story.see(seconds=0)
    story.see(*servers(chief_0=began), seconds=10)
    regressed = story.status.condition(ConditionType.RESUME_REGRESSION)
    assert regressed is not None
    assert (regressed.status, regressed.reason) == ("True", Reason.STARTED_OVER)
    for seconds in (20, 22):
        story.see(*servers(worker_1=ended("worker-1", 137), chief_0=began), seconds=seconds)
        assert (story.status.attempt, story.record.step_resumed) == (1, 40)
        assert story.status.condition(ConditionType.RESUME_REGRESSION) == regressed


def test_a_lost_pod_is_replaced_while_the_unaffected_replicas_train() -> None:
    story = served()
    left = [view for view in servers() if view.label != "worker-1"]
    decision = story.see(*left, seconds=20)
    assert (story.status.attempt, deleted(decision)) == (1, [])
    assert created(story.see(*left, seconds=20)) == ["worker-1/1"]


def test_a_job_that_hangs_restarts_as_a_whole() -> None:
    story = served(recovery={"hang": {"stepSeconds": 60}})
    still = replace(alive("chief-0", step=40, idleSeconds=185, resumed={"step": 0}), reported=at(200))
    story.see(*servers(chief_0=still), seconds=200)
    assert story.status.attempts[0].reason is Reason.HANG
    assert all(member.awaited for member in (story.status.world.members if story.status.world else []))


def test_stacks_of_processes_that_went_on_count_for_the_attempt_that_hung() -> None:
    story = served(recovery={"hang": {"stepSeconds": 60}})
    story.see(*servers(worker_1=ended("worker-1", 137)), seconds=20)
    story.see(*servers(worker_1=ready("worker-1", code=137)), seconds=22)
    second = alive("worker-1", attempt=1)
    still = replace(alive("chief-0", step=40, idleSeconds=185, resumed={"step": 0}), reported=at(210))
    story.see(*servers(chief_0=still, worker_1=second), seconds=210)
    assert (story.status.attempt, story.status.attempts[1].reason) == (2, Reason.HANG)
    stack = {"attempt": 0, "rank": 0, "state": "stopped", "frames": ["spin (mine.py:1)"]}
    late = alive("chief-0", attempt=2, waiting=True, stacks=[stack])
    story.see(*servers(chief_0=late, worker_1=second), seconds=212)
    assert story.status.attempts[1].stacks == "rank 0: stopped, spin (mine.py:1)"
    assert story.status.attempts[1].replica == "chief-0"


def test_processes_get_time_to_save_when_a_job_is_scaled() -> None:
    story = Story(job(workers=2))
    story.see(seconds=0)
    story.see(alive("worker-0"), alive("worker-1"), seconds=10)
    story.edit(roles={"worker": {"replicas": 1}})
    decision = story.see(alive("worker-0"), alive("worker-1"), seconds=20)
    assert deleted(decision) == ["worker-1/0"]
    assert grace_seconds(story.job.spec, story.status) == 120


@pytest.mark.parametrize("claimed", [2, 10**6, 999_999_999])
def test_reports_of_a_future_attempt_are_ignored(claimed: int) -> None:
    story = running_story(2)
    story.see(alive("worker-0", attempt=claimed), alive("worker-1"), seconds=20)
    assert story.status.attempt == 0
    forged = replace(replica("worker-0"), termination=ended_with(10, "boom", attempt=claimed))
    story.see(forged, alive("worker-1"), seconds=21)
    assert story.status.attempt == 0
