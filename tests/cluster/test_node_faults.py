"""A node dies, freezes or is cut off in mid-training: its pods are made elsewhere, and what lives on in it can do no harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cluster.faults import TAKEN_AWAY, Moment, check_attempt, check_succeeded
from tests.cluster.harness import Cluster
from tests.cluster.installation import Installation
from tests.cluster.training import Ground, Job, digits

# Missed after 40-50 s, tolerated for 30 s, 25 s to end in grace, 60 s until it is removed by force; then the job's own time.
NODE_LOST_SECONDS = 420.0
Uninterrupted = Callable[[str], Job]

APART = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchExpressions": [{"key": "muster.dev/job-name", "operator": "Exists"}]},
                },
            }
        ]
    }
}


@dataclass(frozen=True)
class NodeFault:
    """How a node is lost, and how it comes back."""

    lose: Callable[[Cluster, str], None]
    bring_back: Callable[[Cluster, str], None]


FAULTS = {
    "killed": NodeFault(Cluster.kill_node, Cluster.start_node),
    "frozen": NodeFault(Cluster.pause_node, Cluster.unpause_node),
    "cut-off": NodeFault(Cluster.disconnect_node, Cluster.reconnect_node),
}


@contextmanager
def lost(cluster: Cluster, node: str, fault: NodeFault) -> Iterator[Callable[[], None]]:
    """The node is lost; it comes back when what is given is called, and at the end in any case."""
    is_back = False

    def bring_back() -> None:
        nonlocal is_back
        if not is_back:
            is_back = True
            fault.bring_back(cluster, node)
            cluster.wait_until(f"{node} is ready", lambda: _ready(cluster, node), timeout=120)

    fault.lose(cluster, node)
    try:
        yield bring_back
    finally:
        bring_back()


def spread(strategy: str) -> dict[str, Any]:
    """digits with its workers on two nodes."""
    manifest = digits("digits", strategy, delay=0.06)
    manifest["spec"]["roles"]["worker"]["template"]["spec"]["affinity"] = APART
    return manifest


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["DDP", "MultiWorkerMirrored"])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_job_goes_on_after_its_node_is(
    kind: str, strategy: str, seed: int, ground: Ground, muster: Installation, uninterrupted: Uninterrupted
) -> None:
    """A frozen or cut-off node comes back while the replacement trains: what its processes do then must not count."""
    like = uninterrupted(strategy)
    job = ground.apply(spread(strategy))
    moment = Moment.of(seed, last=120)
    job.wait_for_step(moment.step)
    node = job.pod(moment.replica)["spec"]["nodeName"]
    with lost(ground.cluster, node, FAULTS[kind]) as bring_back:
        job.wait_for_step(moment.step + 20, attempt=1, timeout=NODE_LOST_SECONDS)
        bring_back()
        check_succeeded(job, like)
    check_attempt(job, 0, failure_class="Preemption", reasons=TAKEN_AWAY)
    muster.wait_until_ready()


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_job_goes_on_after_its_node_was_drained(seed: int, ground: Ground, uninterrupted: Uninterrupted, muster: Installation) -> None:
    like = uninterrupted("DDP")
    job = ground.apply(spread("DDP"))
    moment = Moment.of(seed)
    job.wait_for_step(moment.step)
    node = job.pod(moment.replica)["spec"]["nodeName"]
    try:
        ground.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s", timeout=130)
        check_succeeded(job, like)
    finally:
        ground.cluster.kubectl("uncordon", node)
    check_attempt(job, 0, failure_class="Preemption", reasons=TAKEN_AWAY, saves=True)
    muster.wait_until_ready()


def _ready(cluster: Cluster, node: str) -> bool:
    conditions = cluster.get("node", node)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
