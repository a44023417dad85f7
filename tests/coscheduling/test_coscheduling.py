"""Gang scheduling by coscheduling of scheduler-plugins: `make coscheduling-test`. Each node has room for one pod of a job."""

from __future__ import annotations

from tests.support.api_server.coscheduling import SCHEDULER_NAME
from tests.support.api_server.gangs import (
    COSCHEDULING,
    NODES,
    end,
    evaluator_without_a_node,
    gang_job,
    large_job_waits_for_nodes,
    late_pod_follows_when_others_succeed,
    placed,
    pod_group,
    pod_groups_are_deleted,
    waits,
)
from tests.support.api_server.jobs import Jobs, condition
from tests.support.waiting import wait_until


def test_of_two_jobs_that_need_most_of_the_cluster_one_waits_for_the_other(jobs: Jobs) -> None:
    jobs.submit(gang_job("first", 3))
    first = jobs.reaches("first", "Running")
    assert (first["gangScheduler"], condition(first, "GangScheduled")["status"]) == ("scheduling.x-k8s.io", "True")
    assert pod_group(jobs, "first", COSCHEDULING)["spec"]["minMember"] == 3
    jobs.submit(gang_job("second", 3))
    second = waits(jobs, "second")
    assert (second["phase"], condition(second, "GangScheduled")["reason"]) == ("Pending", "WaitingForGang")
    end(jobs, "first")
    second = jobs.reaches("second", "Running")
    assert len(placed(jobs, "second")) == 3
    assert condition(second, "GangScheduled")["status"] == "True"


def test_a_job_that_does_not_fit_gets_no_node_until_there_are_enough(jobs: Jobs) -> None:
    large_job_waits_for_nodes(jobs, scheduling={"gang": "Required"})


def test_an_elastic_job_is_placed_with_its_fewest_replicas_and_the_others_follow(jobs: Jobs) -> None:
    jobs.submit(gang_job("other", 2))
    jobs.reaches("other", "Running")
    jobs.submit(gang_job("elastic", 4, elastic={"minReplicas": 3, "maxReplicas": 4}, batch={"globalSize": 12}))
    wait_until(lambda: condition(jobs.status("elastic"), "GangScheduled").get("status") == "True", "the gang is placed")
    wait_until(lambda: len(placed(jobs, "elastic")) == 3, "its fewest replicas have nodes")
    assert pod_group(jobs, "elastic", COSCHEDULING)["spec"]["minMember"] == 3
    end(jobs, "other")
    wait_until(lambda: len(placed(jobs, "elastic")) == 4, "the last replica has a node")


def test_an_evaluator_does_not_hold_up_the_world(jobs: Jobs) -> None:
    pods = evaluator_without_a_node(jobs)
    groups = {role: pod["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group") for role, pod in pods.items()}
    assert groups == {"worker": "digits", "evaluator": None}
    assert {role: pod["spec"]["schedulerName"] for role, pod in pods.items()} == {
        "worker": SCHEDULER_NAME,
        "evaluator": "default-scheduler",
    }


def test_a_job_of_higher_priority_preempts_another_which_goes_on_afterwards(jobs: Jobs) -> None:
    jobs.submit(gang_job("low", 3, scheduling={"priorityClassName": "low"}))
    jobs.reaches("low", "Running")
    jobs.submit(gang_job("high", NODES, scheduling={"priorityClassName": "high"}))
    jobs.reaches("high", "Running")
    low = jobs.status("low")
    assert (len(placed(jobs, "low")), len(low["restarts"]["preemption"]), low["restarts"]["total"]) == (0, 1, 1)
    end(jobs, "high")
    jobs.reaches("low", "Running", attempt=1)


def test_a_gang_that_does_not_fit_preempts_a_pod_all_the_same(jobs: Jobs) -> None:
    """The limit that docs/scheduling.md names: this scheduler looks at one pod when it preempts, and not at the gang."""
    jobs.submit(gang_job("low", NODES, scheduling={"priorityClassName": "low"}))
    jobs.reaches("low", "Running")
    jobs.submit(gang_job("high", NODES + 1, scheduling={"priorityClassName": "high"}))
    wait_until(lambda: jobs.status("low")["restarts"].get("preemption"), "the low job is preempted")
    jobs.delete("high")
    jobs.reaches("low", "Running")


def test_a_pod_that_waits_gets_a_node_when_others_have_succeeded(jobs: Jobs) -> None:
    late_pod_follows_when_others_succeed(jobs)
    wait_until(lambda: pod_group(jobs, "elastic", COSCHEDULING)["spec"]["minMember"] == 2, "the count follows")


def test_a_pod_that_replaces_another_joins_the_pod_group_as_it_is(jobs: Jobs) -> None:
    jobs.submit(gang_job("digits", 3))
    jobs.reaches("digits", "Running")
    group = pod_group(jobs, "digits", COSCHEDULING)["metadata"]["uid"]
    jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/digits-worker-1")
    jobs.reaches("digits", "Running", attempt=1)
    assert pod_group(jobs, "digits", COSCHEDULING)["metadata"]["uid"] == group
    assert len(placed(jobs, "digits")) == 3


def test_nothing_is_left_of_a_deleted_job_and_a_deleted_pod_group_stops_nothing(jobs: Jobs) -> None:
    pod_groups_are_deleted(jobs, COSCHEDULING)
