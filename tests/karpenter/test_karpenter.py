"""Jobs on nodes that Karpenter 1.8.0 adds and takes away: `make karpenter-test`. Each node has room for one worker."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.api_server.api import Object
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.karpenter import NODE_CLAIMS, change_nodes, claim_of
from tests.support.api_server.operators import OperatorProcess
from tests.support.api_server.supervised import supervised
from tests.support.waiting import wait_until

NODES = "/api/v1/nodes"
WORKERS = 2
DRAIN_WAITS = {"karpenter.sh/do-not-disrupt": "true"}
"""Karpenter does not evict pods with this annotation when it drains their node. It waits until they are gone."""
EXPIRES_AFTER = timedelta(minutes=16)
"""A job leaves a node a quarter of an hour before it expires: here one minute after it was launched."""


def submit(jobs: Jobs, pool: str, **annotations: str) -> None:
    template: dict[str, Any] = {"metadata": {"annotations": annotations}, "spec": {"nodeSelector": {"pool": pool}}}
    worker = {"replicas": WORKERS, "resources": {"requests": {"cpu": "1"}}, "template": template}
    jobs.submit(job("digits", roles={"worker": worker}))


def nodes_of(jobs: Jobs) -> list[str]:
    """The nodes of the job's pods, as soon as all run and none is on its way."""

    def look() -> list[str] | None:
        pods = jobs.pods("digits")
        run = [pod for pod in pods if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]]
        return [pod["spec"]["nodeName"] for pod in run] if len(run) == len(pods) == WORKERS else None

    return sorted(wait_until(look, "the job has its pods, and no others"))


def trains_again(jobs: Jobs, *, attempt: int) -> Object:
    """The status once an attempt trains on, after a notice of a node that cost no step."""

    def look() -> Object | None:
        status = jobs.status("digits")
        met = (status.get("noticeCounts") or {}).get("met", 0)
        return status if (status["phase"], status["attempt"], met) == ("Running", attempt, attempt) else None

    try:
        status = wait_until(look, f"attempt {attempt} resumes where the one before ended")
    except AssertionError as error:
        raise AssertionError(f"{error}: {jobs.status('digits')}") from None
    assert status["restarts"]["total"] == 0
    assert status["noticeCounts"]["missed"] == 0
    return status


def is_gone(jobs: Jobs, node: str) -> bool:
    return node not in {each["metadata"]["name"] for each in jobs.api.items(NODES)}


def test_karpenter_adds_a_node_for_each_worker(jobs: Jobs, operator: OperatorProcess, pool: str) -> None:
    submit(jobs, pool)
    with supervised(jobs, operator, "digits"):
        jobs.reaches("digits", "Running")
    nodes = nodes_of(jobs)
    assert len(set(nodes)) == WORKERS
    for node in nodes:
        assert jobs.api.get(f"{NODES}/{node}")["metadata"]["labels"]["karpenter.sh/nodepool"] == pool
    jobs.delete("digits")
    wait_until(lambda: all(is_gone(jobs, node) for node in nodes), "Karpenter removes the empty nodes")


def test_a_job_that_holds_the_drain_moves_when_a_node_claim_is_deleted(jobs: Jobs, operator: OperatorProcess, pool: str) -> None:
    submit(jobs, pool, **DRAIN_WAITS)
    with supervised(jobs, operator, "digits"):
        jobs.reaches("digits", "Running")
        leaves, stays = nodes_of(jobs)
        jobs.api.delete(f"{NODE_CLAIMS}/{claim_of(jobs.api, leaves)['metadata']['name']}")
        wait_until(lambda: jobs.status("digits").get("nodeNotices"), "the notice is in the status")
        [notice] = jobs.status("digits")["nodeNotices"]
        status = trains_again(jobs, attempt=1)
        assert notice["node"] == leaves
        assert notice["signal"] in ("taint karpenter.sh/disrupted", "the node is being deleted")  # Karpenter sets the taint a moment later
        assert [each.get("reason") for each in status["attempts"]] == ["Moved", None]
        after = nodes_of(jobs)
        wait_until(lambda: is_gone(jobs, leaves), "Karpenter removes the node")
    assert stays in after
    assert leaves not in after


def test_a_job_that_is_drained_at_once_restarts_without_a_charge(jobs: Jobs, operator: OperatorProcess, pool: str) -> None:
    submit(jobs, pool)
    with supervised(jobs, operator, "digits"):
        jobs.reaches("digits", "Running")
        leaves, stays = nodes_of(jobs)
        jobs.api.delete(f"{NODE_CLAIMS}/{claim_of(jobs.api, leaves)['metadata']['name']}")
        status = trains_again(jobs, attempt=1)
        first = status["attempts"][0]
        assert (first["class"], first["announcedNodes"], first["stepsLost"]) == ("Preemption", 1, 0)
        after = nodes_of(jobs)
        wait_until(lambda: is_gone(jobs, leaves), "Karpenter removes the node")
    assert stays in after
    assert leaves not in after


@pytest.mark.parametrize("pool", [{"terminationGracePeriod": "10m"}], indirect=True)
def test_a_job_moves_node_by_node_when_all_have_drifted(jobs: Jobs, operator: OperatorProcess, pool: str) -> None:
    submit(jobs, pool, **DRAIN_WAITS)
    with supervised(jobs, operator, "digits"):
        jobs.reaches("digits", "Running")
        before = nodes_of(jobs)
        change_nodes(jobs.api, pool)
        status = trains_again(jobs, attempt=WORKERS)
        assert [each.get("reason") for each in status["attempts"]] == ["Moved", "Moved", None]
        after = nodes_of(jobs)
        wait_until(lambda: all(is_gone(jobs, node) for node in before), "Karpenter removes the old nodes")
    assert {jobs.api.get(f"{NODES}/{node}")["metadata"]["labels"].get("generation") for node in after} == {"next"}


def test_nothing_is_charged_when_drifted_nodes_are_drained_at_once(jobs: Jobs, operator: OperatorProcess, pool: str) -> None:
    """Karpenter drains a node as soon as its own new node is ready. The replacement may run by then, or not."""
    submit(jobs, pool)
    with supervised(jobs, operator, "digits"):
        jobs.reaches("digits", "Running")
        before = nodes_of(jobs)
        change_nodes(jobs.api, pool)
        wait_until(lambda: all(is_gone(jobs, node) for node in before), "Karpenter removes the old nodes")
        after = nodes_of(jobs)
        status = trains_again(jobs, attempt=WORKERS)
    ended = status["attempts"][:-1]
    assert all(each["reason"] == "Moved" or (each["class"], each["announcedNodes"]) == ("Preemption", 1) for each in ended)
    assert {jobs.api.get(f"{NODES}/{node}")["metadata"]["labels"].get("generation") for node in after} == {"next"}


@pytest.mark.parametrize("pool", [{"expireAfter": f"{EXPIRES_AFTER.total_seconds():.0f}s"}], indirect=True)
def test_a_job_leaves_its_nodes_before_they_expire(jobs: Jobs, operator: OperatorProcess, pool: str) -> None:
    submit(jobs, pool)
    with supervised(jobs, operator, "digits"):
        jobs.reaches("digits", "Running")
        before = nodes_of(jobs)
        created = {node: claim_of(jobs.api, node)["metadata"]["creationTimestamp"] for node in before}
        wait_until(lambda: len(jobs.status("digits").get("nodeNotices") or ()) == WORKERS, "the notices of both nodes")
        notices = {each["node"]: each for each in jobs.status("digits")["nodeNotices"]}
        assert {each["signal"] for each in notices.values()} == {"spec.expireAfter of its NodeClaim"}
        for node, since in created.items():
            assert datetime.fromisoformat(notices[node]["goesTime"]) == datetime.fromisoformat(since) + EXPIRES_AFTER
        wait_until(lambda: not set(before) & set(nodes_of(jobs)), "the job has left both nodes")
        status = jobs.status("digits")
    assert {each.get("reason") for each in status["attempts"][:-1]} == {"Moved"}
    assert status["restarts"]["total"] == 0
