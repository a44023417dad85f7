"""Capacity classes on the scheduler of Kubernetes: workers wait for spot nodes, fall back to on-demand ones, and go back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.api_server.api import ApiError
from tests.support.api_server.fake_nodes import add_node
from tests.support.api_server.gangs import CPUS, gang_job, placed
from tests.support.api_server.jobs import Jobs, condition
from tests.support.api_server.operators import OperatorProcess
from tests.support.api_server.reports import progress, report, tell, token
from tests.support.waiting import wait_until

CLASS = "karpenter.sh/capacity-type"
CAPACITY = {"roles": {"worker": ["spot", "on-demand"]}, "fallbackAfterSeconds": 10, "returnAfterSeconds": 5}
STEP = 40


def nodes_of(jobs: Jobs, name: str) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in placed(jobs, name)}


def reason(jobs: Jobs, name: str) -> str:
    return str(condition(jobs.status(name), "CapacityPreferred").get("reason"))


@contextmanager
def supervised(jobs: Jobs, operator: OperatorProcess, name: str) -> Iterator[None]:
    """The running pods of the job report as supervisors do: those of the world train at the same step, and the others stand by."""
    ended, tokens, sequences = threading.Event(), dict[str, str](), Counter[str]()

    def tell_all() -> None:
        status = jobs.status(name)
        members = {each.get("uid") for each in status.get("world", {}).get("members", ())}
        for pod in jobs.pods(name):
            uid = pod["metadata"]["uid"]
            if pod["status"].get("phase") != "Running" or pod["metadata"].get("deletionTimestamp"):
                continue
            if uid not in tokens:
                tokens[uid] = token(jobs, pod)
            sequences[uid] += 1
            does = {"phase": "Training", "progress": progress(STEP)} if uid in members else {"phase": "Starting", "waiting": True}
            own = {"attempt": status.get("attempt", 0), "inPlace": True, **does}
            tell(operator, tokens[uid], report(pod, sequences[uid], **own))

    def run() -> None:
        while not ended.wait(0.3):
            try:
                tell_all()
            except (ApiError, OSError):
                continue  # the pod is gone meanwhile

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


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
    assert (status["restarts"]["total"], status["attempts"][1]["lastStep"]) == (0, STEP)
