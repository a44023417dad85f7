"""Gang scheduling by the scheduler of Kubernetes: `make gang-test`. Each node has room for one pod of a job."""

from __future__ import annotations

import asyncio

from muster.client.connection import Target, connected
from muster.client.snapshot import snapshot_of
from muster.explain.explain import explain
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import add_node, bindings_refused, remove_node
from tests.support.api_server.gangs import (
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
from tests.support.api_server.operators import OperatorProcess
from tests.support.waiting import wait_until


def test_of_two_jobs_that_need_most_of_the_cluster_one_waits_for_the_other(jobs: Jobs, operator: OperatorProcess) -> None:
    jobs.submit(gang_job("first", 3))
    first = jobs.reaches("first", "Running")
    assert (first["gangScheduler"], condition(first, "GangScheduled")["status"]) == ("scheduling.k8s.io", "True")
    group = pod_group(jobs, "first")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert condition(group["status"], "PodGroupInitiallyScheduled")["status"] == "True"
    jobs.submit(gang_job("second", 3))
    second = waits(jobs, "second")
    assert (second["phase"], condition(second, "GangScheduled")["reason"]) == ("Pending", "WaitingForGang")
    assert "waits for nodes for 3 pods at once (PodGroup second of scheduling.k8s.io)" in second["message"]
    assert "free CPU" in second["message"]
    since = condition(second, "GangScheduled")["lastTransitionTime"]
    operator.kill()
    operator.start().ready()
    assert condition(waits(jobs, "second"), "GangScheduled")["lastTransitionTime"] == since
    end(jobs, "first")
    second = jobs.reaches("second", "Running")
    assert len(placed(jobs, "second")) == 3
    assert condition(second, "GangScheduled")["status"] == "True"
    wait_until(lambda: jobs.status("second").get("goodput", {}).get("queuedSeconds"), "the goodput has the time in the queue")


def test_a_job_that_does_not_fit_gets_no_node_until_there_are_enough(jobs: Jobs) -> None:
    large_job_waits_for_nodes(jobs)


def test_a_gang_that_loses_a_node_while_it_is_placed_waits_as_a_whole_again(jobs: Jobs) -> None:
    for number in range(3):
        add_node(jobs.api, f"pool-{number}", cpu=2, labels={"pool": "small"})
    template = {"nodeSelector": {"pool": "small"}}
    with bindings_refused(jobs.api, "pool-2"):
        jobs.submit(gang_job("digits", 3, template=template))
        wait_until(lambda: len(placed(jobs, "digits")) == 2, "two pods have nodes, and the third was not bound")
        remove_node(jobs.api, "pool-2")
        jobs.submit(gang_job("small", 2, template=template))
        jobs.reaches("small", "Running")
        status = waits(jobs, "digits")
    assert [each.get("reason") for each in status["attempts"]] == ["GangRequeued", None]
    assert (status["restarts"]["total"], status["phase"]) == (0, "Pending")
    end(jobs, "small")
    add_node(jobs.api, "pool-2", cpu=2, labels={"pool": "small"})
    jobs.reaches("digits", "Running", attempt=1)


def test_an_elastic_job_is_placed_with_its_fewest_replicas(jobs: Jobs) -> None:
    jobs.submit(gang_job("other", 2))
    jobs.reaches("other", "Running")
    jobs.submit(gang_job("elastic", 4, elastic={"minReplicas": 3, "maxReplicas": 4}, batch={"globalSize": 12}))
    wait_until(lambda: condition(jobs.status("elastic"), "GangScheduled").get("status") == "True", "the gang is placed")
    assert (len(jobs.pods("elastic")), len(placed(jobs, "elastic"))) == (4, 3)
    assert pod_group(jobs, "elastic")["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}


def test_a_pod_that_waits_gets_a_node_when_others_have_succeeded(jobs: Jobs) -> None:
    late_pod_follows_when_others_succeed(jobs)
    assert pod_group(jobs, "elastic")["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


def test_a_pod_that_waits_gets_a_node_when_the_smallest_world_is_made_smaller(jobs: Jobs) -> None:
    elastic = {"minReplicas": NODES + 1, "maxReplicas": NODES + 1}
    jobs.submit(gang_job("elastic", NODES + 1, elastic=elastic, batch={"globalSize": 60}))
    waits(jobs, "elastic")
    jobs.patch("elastic", {"spec": {"elastic": {"minReplicas": NODES}}})
    wait_until(lambda: len(placed(jobs, "elastic")) == NODES, "the smaller world has nodes")


def test_an_evaluator_does_not_hold_up_the_world(jobs: Jobs) -> None:
    groups = {role: pod["spec"].get("schedulingGroup") for role, pod in evaluator_without_a_node(jobs).items()}
    assert groups == {"worker": {"podGroupName": "digits"}, "evaluator": None}


def test_a_job_of_higher_priority_preempts_another_which_goes_on_afterwards(jobs: Jobs) -> None:
    jobs.submit(gang_job("low", 3, scheduling={"priorityClassName": "low"}))
    jobs.reaches("low", "Running")
    jobs.submit(gang_job("high", NODES, template={"priorityClassName": "high"}))
    jobs.reaches("high", "Running")
    assert {pod["spec"]["priorityClassName"] for pod in jobs.pods("high")} == {"high"}
    low = waits(jobs, "low")
    assert (len(low["restarts"]["preemption"]), low["restarts"]["total"]) == (1, 1)
    end(jobs, "high")
    jobs.reaches("low", "Running", attempt=1)


def test_all_pods_have_the_priority_of_their_pod_group_whatever_their_template_says(jobs: Jobs) -> None:
    jobs.submit(gang_job("digits", 2, template={"priorityClassName": "low"}, scheduling={"priorityClassName": "high"}))
    jobs.reaches("digits", "Running")
    assert pod_group(jobs, "digits")["spec"]["priorityClassName"] == "high"
    assert {pod["spec"]["priority"] for pod in jobs.pods("digits")} == {1000}


def test_a_pod_that_replaces_another_joins_the_pod_group_as_it_is_and_a_resumed_job_gets_a_new_one(jobs: Jobs) -> None:
    jobs.submit(gang_job("digits", 3))
    jobs.reaches("digits", "Running")
    group = pod_group(jobs, "digits")["metadata"]["uid"]
    jobs.patch("digits", {"spec": {"scheduling": {"priorityClassName": "high"}}})
    jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/digits-worker-1")
    jobs.reaches("digits", "Running", attempt=1)
    jobs.patch("digits", {"spec": {"suspend": True}})
    jobs.reaches("digits", "Suspended")
    jobs.patch("digits", {"spec": {"suspend": False}})
    jobs.reaches("digits", "Running")
    renewed = pod_group(jobs, "digits")
    assert renewed["metadata"]["uid"] != group
    assert renewed["spec"]["priorityClassName"] == "high"
    assert {pod["spec"]["priority"] for pod in jobs.pods("digits")} == {1000}


def test_nothing_is_left_of_a_deleted_job_and_a_deleted_pod_group_stops_nothing(jobs: Jobs) -> None:
    pod_groups_are_deleted(jobs)


def test_a_packed_world_is_placed_on_one_rack_where_it_fits(jobs: Jobs) -> None:
    racks = {f"{rack}-{number}": rack for rack in ("a", "b", "c") for number in range(3)}
    for node, rack in racks.items():
        add_node(jobs.api, node, cpu=2, labels={"rack": rack, "pool": "racks"})
    jobs.submit(gang_job("digits", 3, scheduling={"topology": {"pack": "rack"}}, template={"nodeSelector": {"pool": "racks"}}))
    jobs.reaches("digits", "Running")
    assert len({racks[pod["spec"]["nodeName"]] for pod in jobs.pods("digits")}) == 1


def test_explain_names_the_reason_of_one_pod_before_the_wait_of_the_gang(jobs: Jobs, cluster: Cluster) -> None:
    jobs.submit(gang_job("digits", 3, template={"nodeSelector": {"pool": "absent"}}))
    waits(jobs, "digits")
    assert causes(jobs, cluster, "digits")[:2] == ["NodeSelector", "GangWaits"]


def test_a_missing_claim_is_explained_though_the_scheduler_hides_it(jobs: Jobs, cluster: Cluster) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "absent"}}
    jobs.submit(gang_job("digits", 3, template={"volumes": [volume]}))
    wait_until(lambda: "hides the reason" in jobs.status("digits").get("message", ""), "the status says that the reason is hidden")
    assert causes(jobs, cluster, "digits")[:2] == ["ClaimMissing", "GangReasonHidden"]


def test_a_cluster_without_nodes_is_explained_though_the_scheduler_hides_it(jobs: Jobs, cluster: Cluster) -> None:
    for node in jobs.api.items("/api/v1/nodes"):
        remove_node(jobs.api, node["metadata"]["name"])
    jobs.submit(gang_job("digits", 3))
    wait_until(lambda: "the cluster has no nodes" in jobs.status("digits").get("message", ""), "the status says that there are no nodes")
    assert causes(jobs, cluster, "digits")[0] == "GangReasonHidden"
    for number in range(3):
        add_node(jobs.api, f"node-{number}", cpu=2)
    jobs.reaches("digits", "Running")


def causes(jobs: Jobs, cluster: Cluster, name: str) -> list[str]:
    """What `muster explain` finds."""

    async def look() -> list[str]:
        async with connected(Target(jobs.namespace, kubeconfig=str(cluster.kubeconfig))) as connection:
            return [finding.cause.id for finding in explain(await snapshot_of(connection, name)).findings]

    return asyncio.run(look())
