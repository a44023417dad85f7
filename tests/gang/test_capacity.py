"""Capacity classes on the scheduler of Kubernetes: workers wait for spot nodes, fall back to on-demand ones, and go back."""

from __future__ import annotations

from tests.support.api_server.fake_nodes import add_node
from tests.support.api_server.gangs import CPUS, gang_job, placed
from tests.support.api_server.jobs import Jobs, condition
from tests.support.api_server.operators import OperatorProcess
from tests.support.api_server.supervised import STEP, supervised
from tests.support.waiting import wait_until

CLASS = "karpenter.sh/capacity-type"
CAPACITY = {"roles": {"worker": ["spot", "on-demand"]}, "fallbackAfterSeconds": 10, "returnAfterSeconds": 5}


def nodes_of(jobs: Jobs, name: str) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in placed(jobs, name)}


def reason(jobs: Jobs, name: str) -> str:
    return str(condition(jobs.status(name), "CapacityPreferred").get("reason"))


def test_workers_wait_for_spot_nodes_then_use_on_demand_nodes_and_go_back_without_a_restart(jobs: Jobs, operator: OperatorProcess) -> None:
    add_node(jobs.api, "spot-0", cpu=CPUS, labels={CLASS: "spot"})
    for number in (0, 1):
        add_node(jobs.api, f"on-demand-{number}", cpu=CPUS, labels={CLASS: "on-demand"})
    jobs.submit(gang_job("mix", 2, scheduling={"capacity": CAPACITY}))
    with supervised(jobs, operator, "mix"):
        wait_until(lambda: reason(jobs, "mix") == "WaitingForClass", "the pods wait for spot nodes")
        assert placed(jobs, "mix") == []  # the other nodes have room, but are of no class or of another one
        jobs.reaches("mix", "Running", attempt=1)
        first = nodes_of(jobs, "mix")
        assert "spot-0" in first
        assert first - {"spot-0"} <= {"on-demand-0", "on-demand-1"}
        wait_until(lambda: reason(jobs, "mix") == "Returning", "the worker on the on-demand node looks for a spot node")
        wait_until(lambda: len(jobs.pods("mix")) == 3, "its replacement waits")
        [waiting] = [pod for pod in jobs.pods("mix") if not pod["spec"].get("nodeName")]
        assert waiting["metadata"]["annotations"]["muster.dev/capacity-classes"] == "spot"
        assert jobs.status("mix")["attempt"] == 1
        add_node(jobs.api, "spot-1", cpu=CPUS, labels={CLASS: "spot"})
        status = jobs.reaches("mix", "Running", attempt=2)
        wait_until(lambda: nodes_of(jobs, "mix") == {"spot-0", "spot-1"}, "all pods are on spot nodes")
        wait_until(lambda: reason(jobs, "mix") == "OnPreferredClass", "the job says so")
    assert [each.get("reason") for each in status["attempts"]] == ["Rescheduled", "Moved", None]
    assert (status["restarts"]["total"], status["attempts"][1]["lastStep"]) == (0, STEP + 2)
