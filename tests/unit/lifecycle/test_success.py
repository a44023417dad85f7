"""The end of a job, and the removal of its replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.status import Phase
from muster.lifecycle.actions import DeleteReplica
from muster.lifecycle.observed import ReplicaPhase
from muster_contract.events import Commit
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import Story, at, deleted, ended_with, failed, job, replica, report, running, running_story

PS_ROLES = {"chief": {"replicas": 1}, "worker": {"replicas": 1}, "ps": {"replicas": 1}}


def done(label: str, **changes: Any) -> Any:
    return replica(label, phase="Succeeded", finished=at(50), exit_code=0, **changes)


def test_the_job_succeeds_when_all_workers_have_succeeded() -> None:
    story = running_story(2)
    story.see(done("worker-0"), replica("worker-1"), seconds=50)
    assert story.status.phase is Phase.RUNNING
    story.see(done("worker-0"), done("worker-1"), seconds=51)
    assert story.status.phase is Phase.SUCCEEDED
    assert story.condition("Complete") == ("True", "Completed")
    assert story.status.completion_time == at(51)
    assert story.status.workers == "2 done"
    assert story.record.reason == "Completed"


def test_a_succeeded_worker_counts_after_its_pod_is_removed() -> None:
    story = running_story(2)
    story.see(done("worker-0"), replica("worker-1"), seconds=50)
    story.see(replica("worker-1"), seconds=51)
    assert (story.status.phase, story.status.attempt) == (Phase.RUNNING, 0)
    story.see(done("worker-1"), seconds=52)
    assert story.status.phase is Phase.SUCCEEDED


def ps_story(policy: str) -> Story:
    story = Story(job(strategy="ParameterServer", roles=PS_ROLES, cleanPodPolicy=policy))
    story.see(seconds=0)
    story.see(replica("chief-0"), replica("worker-0"), replica("ps-0"), seconds=10)
    return story


@pytest.mark.parametrize(
    ("policy", "removed"),
    [("Running", ["worker-0/0", "ps-0/0"]), ("All", ["chief-0/0", "worker-0/0", "ps-0/0"]), ("None", [])],
)
def test_the_job_ends_with_its_chief_and_the_clean_pod_policy_applies(policy: str, removed: list[str]) -> None:
    story = ps_story(policy)
    decision = story.see(done("chief-0"), replica("worker-0"), replica("ps-0"), seconds=50)
    assert story.status.phase is Phase.SUCCEEDED
    assert deleted(decision) == removed


@pytest.mark.parametrize(("policy", "removed"), [("Running", ["worker-1/0"]), ("All", ["worker-0/0", "worker-1/0"]), ("None", [])])
@pytest.mark.parametrize("code", [11, 10])
def test_the_clean_pod_policy_applies_to_a_failed_job(policy: str, removed: list[str], code: int) -> None:
    story = running_story(2, cleanPodPolicy=policy, recovery={"application": {"limit": 0}})
    views = failed("worker-0", code, seconds=20), replica("worker-1")
    early = deleted(story.see(*views, seconds=20))
    late = deleted(story.see(*views, seconds=80.5))
    assert story.status.phase is Phase.FAILED
    assert late == removed
    assert set(early) <= set(removed)


def farewell(code: int) -> Any:
    """The last report of a supervisor before it ends: it does not wait."""
    return report(inPlace=True, waiting=False, termination={"code": code, "attempt": 0, "message": "boom", "exitCode": 1})


@pytest.mark.parametrize("policy", ["Running", "None"])
@pytest.mark.parametrize("code", [10, 11, 21, 31])
def test_a_supervisor_that_ends_does_not_count_as_running(policy: str, code: int) -> None:
    """So the pods of a failed job stay, with their logs."""
    limits = {field: {"limit": 0} for field in ("application", "preemption", "infrastructure")}
    story = running_story(1, cleanPodPolicy=policy, recovery=limits)
    waits = report(inPlace=True, waiting=True, termination={"code": code, "attempt": 0, "message": "boom", "exitCode": 1})
    story.see(replica(report=waits, reported=at(20)), seconds=20)
    assert story.status.phase is Phase.FAILED
    for seconds in (21, 22, 49):
        decision = story.see(replica(report=farewell(code), reported=at(21)), seconds=seconds)
        assert deleted(decision) == []
        assert (story.status.roles[0].ready, story.status.roles[0].failed) == (0, int(code != 21))
    for seconds in (50, 5000):
        assert deleted(story.see(failed(code=code, seconds=49), seconds=seconds)) == []


@pytest.mark.parametrize(("policy", "removed"), [("Running", []), ("All", ["worker-1/0"]), ("None", [])])
def test_the_pod_that_failed_first_keeps_its_log_although_its_report_comes_second(policy: str, removed: list[str]) -> None:
    """Both ranks of a program end with code 1, and the pod of the second one is seen first."""
    story = running_story(2, cleanPodPolicy=policy, recovery={"application": {"limit": 0}})
    second = failed("worker-0", 10, seconds=20)
    decision = story.see(second, replica("worker-1", report=report(step=1), reported=at(19)), seconds=20)
    assert (deleted(decision), story.status.completion_time) == (removed, None)
    if policy != "All":
        decision = story.see(second, failed("worker-1", 10, seconds=19), seconds=21)
        assert (story.status.phase, story.record.replica, deleted(decision)) == (Phase.FAILED, "worker-1", [])


def test_a_replica_without_a_supervisor_is_stopped_before_the_failure_is_settled() -> None:
    for view in (replica("worker-1"), replica("worker-1", phase="Pending")):
        story = running_story(2, recovery={"application": {"limit": 0}})
        assert deleted(story.see(failed("worker-0", 10, seconds=20), view, seconds=20)) == ["worker-1/0"]


def test_a_supervisor_that_waits_does_not_delay_the_end_of_a_job_that_failed() -> None:
    story = running_story(2, recovery={"application": {"limit": 0}})
    first = failed("worker-0", 10, seconds=20)
    decision = story.see(first, replica("worker-1", report=report(waiting=True), reported=at(19)), seconds=20)
    assert deleted(decision) == ["worker-1/0"]
    story.see(first, seconds=21)
    assert story.status.phase is Phase.FAILED


def test_a_supervisor_that_does_not_end_is_removed_unless_the_policy_is_none() -> None:
    for policy, removed in (("Running", ["worker-0/0"]), ("None", [])):
        story = running_story(1, cleanPodPolicy=policy, recovery={"application": {"limit": 0}})
        waits = report(inPlace=True, waiting=True, termination={"code": 10, "attempt": 0, "message": "boom", "exitCode": 1})
        story.see(replica(report=waits, reported=at(20)), seconds=20)
        assert story.status.phase is Phase.FAILED
        decision = story.see(replica(report=waits, reported=at(20)), seconds=30)
        assert (deleted(decision), decision.wake) == ([], at(50))
        assert deleted(story.see(replica(report=waits, reported=at(20)), seconds=50)) == removed


@pytest.mark.parametrize(("policy", "removed"), [("Running", ["worker-0/0", "worker-1/0"]), ("None", [])])
@pytest.mark.parametrize("how", ["deadline", "hang"])
def test_policy_none_leaves_replicas_running_after_a_deadline_or_a_hang(policy: str, removed: list[str], how: str) -> None:
    limits = {"infrastructure": {"limit": 0}, "hang": {"stepSeconds": 60}}
    story = running_story(2, cleanPodPolicy=policy, recovery=limits, **({"activeDeadlineSeconds": 100} if how == "deadline" else {}))
    stands = report(step=5, idleSeconds=70.0 if how == "hang" else 0.0, inPlace=True)
    views = [replica("worker-0", report=stands, reported=at(110)), replica("worker-1")]
    removals = {uid for seconds in (110, 171) for uid in deleted(story.see(*views, seconds=seconds))}
    assert story.status.phase is Phase.FAILED
    assert sorted(removals) == removed


@pytest.mark.parametrize("ends", ["Succeeded", "Failed"])
def test_an_ended_pod_with_a_running_side_car_is_removed_like_a_running_one(ends: str) -> None:
    for policy, removed in (("Running", ["worker-0/0"]), ("All", ["worker-0/0"]), ("None", [])):
        story = running_story(1, cleanPodPolicy=policy, recovery={"application": {"limit": 0}})
        view = replica(phase=ends, finished=at(50), exit_code=0 if ends == "Succeeded" else 1, side_car_runs=True)
        decision = story.see(view, seconds=50)
        assert story.status.phase == ends
        assert deleted(decision) == removed


def test_side_cars_get_a_short_grace_once_the_trainer_has_ended() -> None:
    """The grace period of the pod is for a save, and may take minutes."""
    story = running_story(1)
    view = replica(phase="Succeeded", finished=at(50), exit_code=0, side_car_runs=True)
    assert story.see(view, seconds=50).actions == (DeleteReplica("digits-worker-0", "worker-0/0", 10),)


def test_the_kubelet_gets_a_short_time_to_end_side_cars_among_the_init_containers() -> None:
    """Otherwise every job with such a side-car would lose the log of its pod."""
    story = running_story(1)
    view = replica(phase="Succeeded", finished=at(50), exit_code=0, closing=True)
    decision = story.see(view, seconds=50)
    assert (deleted(decision), decision.wake) == ([], at(60))
    assert story.see(view, seconds=60).actions == (DeleteReplica("digits-worker-0", "worker-0/0", 10),)
    assert deleted(story.see(done("worker-0"), seconds=60)) == []


@pytest.mark.parametrize("side_car", ["side_car_runs", "closing"])
@pytest.mark.parametrize("why", ["suspended", "deleted job", "deleted pod", "ended"])
def test_the_grace_of_a_pod_gets_shorter_once_only_side_cars_run(why: str, side_car: str) -> None:
    story = running_story(1)
    if why == "suspended":
        story.edit(suspend=True)
    if why == "deleted job":
        metadata = story.job.metadata.model_copy(update={"deletion_timestamp": at(40)})
        story.job = story.job.model_copy(update={"metadata": metadata})
    leaving = replica(deleting=at(40), due=at(175))
    assert deleted(story.see(leaving, seconds=45)) == []
    code = 0 if why == "ended" else 21
    ended = replace(leaving, phase=ReplicaPhase("Failed" if code else "Succeeded"), finished=at(50), exit_code=code, **{side_car: True})
    assert story.see(ended, seconds=50).actions[-1] == DeleteReplica("digits-worker-0", "worker-0/0", 10)
    assert deleted(story.see(replace(ended, due=at(50)), seconds=51)) == []


def test_an_ended_job_names_the_pods_that_still_hold_resources() -> None:
    story = running_story(2, cleanPodPolicy="None")
    views = done("worker-0"), replica("worker-1", phase="Succeeded", finished=at(50), exit_code=0, side_car_runs=True)
    decision = story.see(*views, seconds=50)
    assert ("worker-1" in story.status.message, decision.wake) == (False, at(80))
    story.see(*views, seconds=80)
    assert absent(story.status.message, "cleanPodPolicy", "worker-1") == []
    assert "worker-0" not in story.status.message
    assert story.condition("Complete") == ("True", "Completed")
    story.see(done("worker-0"), done("worker-1"), seconds=90)
    assert "worker-1" not in story.status.message


SCRIPT, BARE_COMMAND = {"script": "train.py"}, {"command": ["train"], "supervisor": "Disabled"}
WITHOUT_REPORT = "the program ended with exit code 0, and reported no step and no checkpoint"


@pytest.mark.parametrize(
    ("trainer", "termination", "reason"),
    [
        ({"task": "digits"}, {}, "Completed"),
        (SCRIPT, {}, "CompletedWithoutReport"),
        (SCRIPT, {"step": 5}, "Completed"),
        (SCRIPT, {"commit": Commit(step=5, path="step-5", seconds=0.1)}, "Completed"),
        (BARE_COMMAND, None, "CompletedWithoutReport"),
    ],
)
def test_the_status_shows_a_success_without_any_reported_step_or_checkpoint(
    trainer: dict[str, Any], termination: dict[str, Any] | None, reason: str
) -> None:
    story = running_story(1, trainer=trainer)
    story.see(done("worker-0", termination=None if termination is None else ended_with(0, **termination)), seconds=50)
    assert (story.status.phase, story.record.reason) == (Phase.SUCCEEDED, "Completed")
    assert story.condition("Complete") == ("True", reason)
    assert story.status.message == ("the training has finished" if reason == "Completed" else WITHOUT_REPORT)
    before = story.status
    assert story.see(done("worker-0"), seconds=60).status == before


def test_a_step_of_an_earlier_attempt_counts_as_reported() -> None:
    """The last attempt may have no step left to do."""
    story = running_story(1, trainer=SCRIPT)
    story.see(replica(report=report(step=5), reported=at(20)), seconds=20)
    story.see(failed("worker-0", 21, seconds=25, step=5), seconds=25)
    story.see(seconds=30)
    story.see(done("worker-0", attempt=1), seconds=50)
    assert story.condition("Complete") == ("True", "Completed")


def test_an_ended_job_does_not_change() -> None:
    story = running_story(1)
    story.see(done("worker-0"), seconds=50)
    before = story.status
    for seconds in (60, 6000):
        decision = story.see(failed("worker-0", seconds=55), seconds=seconds)
        assert decision.actions == ()
        assert story.status.phase is Phase.SUCCEEDED
    assert story.see(done("worker-0"), seconds=7000).status == before


def test_a_failure_of_another_replica_after_success_changes_nothing() -> None:
    story = ps_story("Running")
    story.see(done("chief-0"), failed("worker-0", 20), replica("ps-0"), seconds=50)
    assert story.status.phase is Phase.SUCCEEDED


def test_a_running_job_needs_no_action() -> None:
    decision = running_story(2).see(*running(2), seconds=20)
    assert decision.actions == ()


BARE = {"trainer": {"command": ["train"], "supervisor": "Disabled"}}


@pytest.mark.parametrize(("changes", "grace"), [({}, None), (BARE, 5)])
def test_an_unsupervised_program_with_nothing_to_save_gets_a_short_grace_period(changes: dict[str, Any], grace: int | None) -> None:
    ended = Story(job(strategy="ParameterServer", roles=PS_ROLES, cleanPodPolicy="Running", **changes))
    ended.see(seconds=0)
    ended.see(replica("chief-0"), replica("worker-0"), replica("ps-0"), seconds=10)
    after_success = ended.see(done("chief-0"), replica("worker-0"), replica("ps-0"), seconds=50)
    broken = running_story(2, **changes)
    after_failure = broken.see(failed("worker-0", 1, seconds=20), replica("worker-1"), seconds=20)
    for decision in (after_success, after_failure):
        removals = [action for action in decision.actions if isinstance(action, DeleteReplica)]
        assert removals
        assert {action.grace_seconds for action in removals if action.grace_seconds != 0} == {grace}


def test_an_unsupervised_program_gets_its_full_grace_period_at_suspension() -> None:
    story = running_story(1, **BARE)
    story.edit(suspend=True)
    decision = story.see(replica("worker-0"), seconds=20)
    assert [action.grace_seconds for action in decision.actions if isinstance(action, DeleteReplica)] == [None]
