"""The creation and removal of replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.problems import Problem
from muster.api.status import Phase, Reason, TrainingJobStatus
from muster.lifecycle.actions import CreateReplica, Decision, DeleteReplica, EnsureService, LookLive
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import Observed
from muster.lifecycle.policy import Policy
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, deleted, failed, job, replica, report, running, running_story


def test_the_service_is_created_before_the_replicas() -> None:
    decision = decide(job(workers=2), Observed(), at(0))
    assert [type(action) for action in decision.actions] == [EnsureService, CreateReplica, CreateReplica]


def test_the_status_names_the_attempt_before_any_replica_exists() -> None:
    status = decide(job(workers=2), Observed(), at(0)).status
    assert status.world is not None
    assert (status.attempt, status.world.attempt, status.world.size, len(status.world.members)) == (0, 0, 2, 2)


@pytest.mark.parametrize(
    ("strategy", "options", "synchronous"),
    [
        ("DDP", {}, True),
        ("ParameterServer", {}, False),
        ("RPC", {}, False),
        ("RPC", {"synchronous": True}, True),
        ("Pipeline", {"pipeline": {"schedule": "1F1B"}}, True),
        ("Pipeline", {"pipeline": {"schedule": "PipeDream"}}, False),
    ],
)
def test_the_status_shows_whether_workers_wait_for_one_another(strategy: str, options: dict[str, Any], synchronous: bool) -> None:
    world = decide(job(strategy=strategy, options=options), Observed(), at(0)).status.world
    assert world is not None
    assert world.synchronous is synchronous


def test_a_cached_observation_creates_nothing() -> None:
    decision = decide(job(workers=2), Observed(live=False, service=True), at(0))
    assert decision.actions == (LookLive(),)


def test_replicas_of_a_broken_world_are_removed_before_new_ones_are_created() -> None:
    story = running_story(2)
    decision = story.see(failed("worker-0", 21, seconds=20), replica("worker-1"), seconds=20)
    assert (story.status.attempt, story.status.phase) == (1, Phase.RECOVERING)
    assert (deleted(decision), created(decision)) == (["worker-0/0", "worker-1/0"], [])
    decision = story.see(replica("worker-1", deleting=at(20)), seconds=21)
    assert (deleted(decision), created(decision)) == ([], [])
    assert decision.wake == at(26)
    assert story.see(seconds=22, live=False).actions == (LookLive(),)
    assert created(story.see(seconds=22)) == ["worker-0/1", "worker-1/1"]


def test_an_empty_pod_is_removed_without_a_grace_period() -> None:
    story = running_story(2)
    decision = story.see(failed("worker-0", 21, seconds=20, empty=True), replica("worker-1"), seconds=20)
    assert graces(decision) == {"worker-0/0": 0, "worker-1/0": None}
    left = failed("worker-1", 21, seconds=21, deleting=at(20), due=at(50))
    assert graces(story.see(left, seconds=21)) == {}
    assert graces(story.see(replace(left, empty=True), seconds=22)) == {"worker-1/0": 0}
    assert graces(story.see(replace(left, empty=True, due=at(20)), seconds=23)) == {}  # a foreign finalizer holds it


def graces(decision: Decision) -> dict[str, int | None]:
    return {action.uid: action.grace_seconds for action in decision.actions if isinstance(action, DeleteReplica)}


def test_only_missing_replicas_are_created() -> None:
    story = Story(job(workers=3))
    story.see(seconds=0)
    assert created(story.see(replica("worker-1", phase="Pending"), seconds=1)) == ["worker-0/0", "worker-2/0"]


def test_a_replica_outside_the_world_is_deleted() -> None:
    assert deleted(running_story(2).see(*running(3), seconds=20)) == ["worker-2/0"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_changed_number_of_workers_is_a_new_attempt_that_costs_no_budget(workers: int) -> None:
    story = running_story(2)
    story.edit(roles={"worker": {"replicas": workers}})
    story.see(*running(2), seconds=20)
    assert (story.status.attempt, story.status.attempts[0].reason) == (1, Reason.SCALED)
    assert story.status.restarts.total == 0
    assert created(story.see(seconds=21)) == [f"worker-{index}/1" for index in range(workers)]


def test_deletions_are_repeated_until_the_replicas_are_gone() -> None:
    story = running_story(2)
    views = [failed("worker-0", 21, seconds=20), replica("worker-1")]
    first = story.see(*views, seconds=20)
    second = story.see(*views, seconds=40)
    assert deleted(second) == deleted(first)
    assert story.status.attempt == 1


def test_a_cached_observation_of_a_later_attempt_changes_nothing() -> None:
    story = running_story(1)
    before = story.status
    decision = story.see(replica(attempt=3), seconds=20, live=False)
    assert (decision.status, decision.actions) == (before, (LookLive(),))


def test_a_job_with_a_lost_status_continues_above_the_existing_attempt() -> None:
    story = Story(job(workers=1))
    decision = story.see(replica(attempt=3), seconds=20)
    assert (story.status.attempt, story.status.restarts.total) == (4, 0)
    assert deleted(decision) == ["worker-0/3"]
    assert created(story.see(seconds=21)) == ["worker-0/4"]


def test_an_invalid_job_creates_nothing_and_shows_its_problems() -> None:
    story = Story(job(workers=1), problems=[Problem("spec.batch.globalSize", "write at least 1")])
    assert story.see(seconds=0).actions == ()
    assert story.condition("Valid") == ("False", "Invalid")
    story.problems = []
    assert created(story.see(seconds=5)) == ["worker-0/0"]
    assert story.condition("Valid") == ("True", "Accepted")


def test_a_running_job_continues_after_an_invalid_change() -> None:
    story = running_story(1)
    story.problems = [Problem("spec.roles.worker.replicas", "write 2")]
    story.edit(roles={"worker": {"replicas": 4}})
    decision = story.see(*running(1), seconds=20)
    assert (story.status.phase, decision.actions, story.status.attempt) == (Phase.RUNNING, (), 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"metadata": {"name": "d", "deletionTimestamp": "2026-11-21T10:00:00Z", "finalizers": ["orphan"]}, "spec": {}},
        {"metadata": {"name": "d"}, "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}},
        {"metadata": {"name": "d", "deletionTimestamp": "2026-11-21T10:00:00Z"}, "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}},
    ],
)
def test_a_job_that_orphans_its_pods_or_has_another_manager_is_ignored(changed: dict[str, dict[str, str]]) -> None:
    base = job(workers=1)
    spec = {**base.spec.wire(), **changed["spec"]}
    subject = type(base).model_validate({"metadata": changed["metadata"], "spec": spec})
    decision = decide(subject, Observed((failed(),)), at(5))
    assert (decision.status, decision.actions, decision.wake) == (subject.status, (), None)


def test_a_job_that_is_being_deleted_loses_its_pods_despite_a_finalizer() -> None:
    base = job(workers=2)
    metadata = {"name": "d", "deletionTimestamp": "2026-11-21T10:00:00Z", "finalizers": ["example.com/theirs"]}
    subject = type(base).model_validate({"metadata": metadata, "spec": base.spec.wire()})
    pods = running(2)
    decision = decide(subject, Observed(pods), at(5))
    assert decision.status == subject.status
    assert decision.actions == tuple(DeleteReplica(pod.name, pod.uid) for pod in pods)


def test_only_jobs_that_name_this_controller_are_managed() -> None:
    base = job(workers=1)
    other = base.model_copy(update={"spec": base.spec.model_copy(update={"managed_by": "muster.dev/second"})})
    second = Policy(controller="muster.dev/second")
    assert decide(other, Observed(), at(0)).status == other.status
    assert decide(other, Observed(), at(0), policy=second).status != other.status
    assert decide(base, Observed(), at(0), policy=second).status == base.status


FAR = 999_999_999
"""An attempt of which somebody has forged a pod."""


def test_a_pod_of_an_attempt_that_cannot_have_begun_is_removed_and_no_other() -> None:
    story = running_story(2)
    forged = replica("worker-0", attempt=FAR, uid="forged")
    decision = story.see(*running(2), forged, seconds=20)
    assert (deleted(decision), created(decision)) == (["forged"], [])
    assert (story.status.attempt, story.status.phase, story.status.restarts.total) == (0, Phase.RUNNING, 0)
    assert story.status.world is not None
    assert [member.uid for member in story.status.world.members] == ["worker-0/0", "worker-1/0"]
    assert story.see(*running(2), seconds=21).actions == ()


def test_a_pod_with_a_forged_attempt_does_not_count_in_a_world_that_starts() -> None:
    story = Story(job(workers=1))
    decision = story.see(replica("worker-0", attempt=FAR, uid="forged"), seconds=0)
    assert (deleted(decision), created(decision)) == (["forged"], [])
    assert created(story.see(seconds=1)) == ["worker-0/0"]


@pytest.mark.parametrize("reported", [False, True])
def test_the_attempt_after_a_wiped_status_is_one_that_can_have_begun(reported: bool) -> None:
    story = running_story(2)
    ahead = {"attempt": 0, "report": report("worker-0", attempt=FAR, waiting=True)} if reported else {"attempt": FAR}
    views = (replica("worker-0", uid="forged", **ahead), replica("worker-1", attempt=7))
    story.job = story.job.with_status(TrainingJobStatus())
    story.see(*views, seconds=20)
    assert story.status.attempt == 8
