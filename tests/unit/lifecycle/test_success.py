"""When is the job done, and what becomes of its replicas then?"""

from __future__ import annotations

from typing import Any

import pytest
from lifecycle_cases import Story, at, deleted, failed, job, replica, running, running_story

from muster.api.status import Phase

PS_ROLES = {"chief": {"replicas": 1}, "worker": {"replicas": 1}, "ps": {"replicas": 1}}


def done(label: str) -> Any:
    return replica(label, phase="Succeeded", finished=at(50), exit_code=0)


def test_the_job_is_done_when_all_workers_are() -> None:
    story = running_story(2)
    story.see(done("worker-0"), replica("worker-1"), seconds=50)
    assert story.status.phase is Phase.RUNNING
    story.see(done("worker-0"), done("worker-1"), seconds=51)
    assert story.status.phase is Phase.SUCCEEDED
    assert story.condition("Complete") == ("True", "Completed")
    assert story.status.completion_time == at(51)
    assert story.record.reason == "Completed"


def test_a_worker_that_ended_well_counts_though_its_pod_is_removed() -> None:
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
    [("Running", ["worker-0/0", "ps-0/0"]), ("All", ["chief-0/0", "worker-0/0", "ps-0/0"]), ("None", ["worker-0/0", "ps-0/0"])],
)
def test_the_chief_decides_and_the_policy_says_what_is_removed(policy: str, removed: list[str]) -> None:
    story = ps_story(policy)
    decision = story.see(done("chief-0"), replica("worker-0"), replica("ps-0"), seconds=50)
    assert story.status.phase is Phase.SUCCEEDED
    assert deleted(decision) == removed


@pytest.mark.parametrize("policy", ["Running", "None"])
def test_a_failed_jobs_running_replicas_are_ended_and_the_failed_kept_for_their_logs(policy: str) -> None:
    story = running_story(2, cleanPodPolicy=policy)
    decision = story.see(failed("worker-0", 11, seconds=20), replica("worker-1"), seconds=20)
    assert story.status.phase is Phase.FAILED
    assert deleted(decision) == ["worker-1/0"]


def test_nothing_happens_to_a_job_that_has_ended() -> None:
    story = running_story(1)
    story.see(done("worker-0"), seconds=50)
    before = story.status
    for seconds in (60, 6000):
        decision = story.see(failed("worker-0", seconds=55), seconds=seconds)
        assert decision.actions == ()
        assert story.status.phase is Phase.SUCCEEDED
    assert story.see(done("worker-0"), seconds=7000).status == before


def test_failure_of_another_replica_after_the_last_success_changes_nothing() -> None:
    story = ps_story("Running")
    story.see(done("chief-0"), failed("worker-0", 20), replica("ps-0"), seconds=50)
    assert story.status.phase is Phase.SUCCEEDED


def test_a_job_whose_workers_run_is_left_alone() -> None:
    decision = running_story(2).see(*running(2), seconds=20)
    assert decision.actions == ()
