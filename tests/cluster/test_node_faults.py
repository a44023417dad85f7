"""A node dies, freezes or is cut off in mid-training: its pods are made elsewhere, and what lives on in it can do no harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from tests.chaos.matrix import parametrised
from tests.cluster.faults import TAKEN_AWAY, Moment, check_attempt, check_succeeded
from tests.cluster.harness import Cluster
from tests.cluster.installation import Installation
from tests.cluster.training import Ground, Job, apart, digits, of_matrix

# Missed after 40-50 s, tolerated for 30 s, 25 s to end in grace, 60 s until it is removed by force; then the job's own time.
NODE_LOST_SECONDS = 420.0
Uninterrupted = Callable[[str], Job]


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


def go_on(kind: str, name: str, seed: int | str, *, ground: Ground, uninterrupted: Uninterrupted) -> None:
    """A frozen or cut-off node comes back while the replacement trains: what its processes do then must not count."""
    like = uninterrupted(name)
    job = ground.apply(apart(of_matrix(name, delay=0.06)))
    moment = Moment.of(seed, last=120, replicas=job.replicas)
    job.wait_for_step(moment.step)
    node = job.pod(moment.replica)["spec"]["nodeName"]
    with lost(ground.cluster, node, FAULTS[kind]) as bring_back:
        job.wait_for_step(moment.step + 20, attempt=1, timeout=NODE_LOST_SECONDS)
        bring_back()
        check_succeeded(job, like)
    check_attempt(job, 0, failure_class="Preemption", reasons=TAKEN_AWAY)


@pytest.mark.timeout(900)
@parametrised("tests/cluster/test_node_faults.py::test_a_job_goes_on_after_its_node_is_lost")
def test_a_job_goes_on_after_its_node_is_lost(
    fault: str, job: str, ground: Ground, muster: Installation, uninterrupted: Uninterrupted
) -> None:
    go_on("killed", job, f"{fault}/{job}", ground=ground, uninterrupted=uninterrupted)
    muster.wait_until_ready()


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["DDP", "MultiWorkerMirrored"])
@pytest.mark.parametrize("kind", ["frozen", "cut-off"])
def test_a_job_goes_on_after_its_node_is(
    kind: str, strategy: str, seed: int, ground: Ground, muster: Installation, uninterrupted: Uninterrupted
) -> None:
    go_on(kind, strategy, seed, ground=ground, uninterrupted=uninterrupted)
    muster.wait_until_ready()


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_job_goes_on_after_its_node_was_drained(seed: int, ground: Ground, uninterrupted: Uninterrupted, muster: Installation) -> None:
    like = uninterrupted("DDP")
    job = ground.apply(apart(digits("digits", delay=0.06)))
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
