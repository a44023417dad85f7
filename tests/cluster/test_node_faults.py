"""A node dies, freezes or is cut off in mid-training: its pods are made elsewhere, and what still runs on it cannot commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from local_cluster import Cluster, ClusterError
from local_cluster.installation import Installation
from muster.strategies.registry import strategy_of
from tests.chaos.matrix import parametrised
from tests.cluster.faults import TAKEN_AWAY, Moment, check_attempt, check_succeeded
from tests.support.cluster_jobs import ClusterJob, Ground, apart, digits, of_matrix
from tests.support.outages import NODE_FAULTS, NodeFault, is_ready, operator_nodes, operator_pods

# Missed after 40-50 s, tolerated for 30 s, 25 s to end in grace, 60 s until it is removed by force; then the job's own time.
NODE_LOST_SECONDS = 420.0
SILENT = frozenset({"NodeLost"})
NOTICED_SECONDS = 30.0  # before Kubernetes
AT_ONCE = 3
CUT_SECONDS = 20.0
Grounds = Callable[[str], Ground]
Uninterrupted = Callable[[str], ClusterJob]


@contextmanager
def lost(cluster: Cluster, node: str, fault: NodeFault) -> Iterator[Callable[[], None]]:
    """The node is lost; it comes back when what is given is called, and at the end in any case."""
    is_back = False

    def bring_back() -> None:
        nonlocal is_back
        if not is_back:
            is_back = True
            fault.bring_back(cluster, node)
            cluster.wait_until(f"{node} is ready", lambda: is_ready(cluster, node), timeout=240)

    fault.lose(cluster, node)
    try:
        yield bring_back
    finally:
        bring_back()


@dataclass
class Struck:
    """A job that lost a node, and what it must equal."""

    job: ClusterJob
    like: ClusterJob
    moment: Moment
    node: str = ""
    """The node that it lost."""
    is_silent: bool = False
    """Whether the operator and other replicas of a world with a fence lived on, so that Muster did not wait for Kubernetes."""
    trouble: ClusterError | AssertionError | None = None
    """Why it did not go on while the node was away."""

    def lose(self, node: str, operator_nodes: set[str]) -> None:
        """Notes what it is about to lose."""
        nodes = {pod["spec"]["nodeName"] for pod in self.job.pods() if pod["metadata"]["labels"]["muster.dev/role"] != "evaluator"}
        self.node = node
        self.is_silent = node in nodes and len(nodes) > 1 and node not in operator_nodes and strategy_of(self.job.spec["strategy"]).moves

    def wait_until_it_trains_elsewhere(self) -> None:
        try:
            self.job.wait_for_step(self.moment.step + 20, attempt=1, timeout=NODE_LOST_SECONDS)
        except (ClusterError, AssertionError) as error:  # the other jobs are not to blame for it
            self.trouble = error

    def check(self) -> None:
        if self.trouble:
            raise self.trouble
        check_succeeded(self.job, self.like)
        failure_class, reasons = ("Infrastructure", SILENT) if self.is_silent else ("Preemption", TAKEN_AWAY)
        check_attempt(self.job, 0, failure_class=failure_class, reasons=reasons)
        if self.is_silent:
            first, second = self.job.attempts[:2]
            assert first["replica"] in self.job.replicas
            assert first.get("node", self.node) == self.node
            assert second["phases"]["detectSeconds"] < NOTICED_SECONDS


def strike(kind: str, names: Sequence[str], seed: int | str, *, grounds: Grounds, uninterrupted: Uninterrupted) -> dict[str, Struck]:
    """Takes a node from jobs that train at the same time, since Kubernetes is slow to notice: one on which each of them has a pod.

    A frozen or cut-off node comes back while the replacements train: what its processes do then must not count.
    """
    likes, struck = {name: uninterrupted(name) for name in names}, {}
    for name, like in likes.items():
        job = grounds(f"{kind}-{seed}-{name}").apply(apart(of_matrix(name, delay=0.15 if like.is_synchronous else 0.8)))
        struck[name] = Struck(job, like, Moment.of(f"{seed}/{name}", last=80, replicas=job.replicas))
    for each in struck.values():
        each.job.wait_for_step(each.moment.step)
    victim = min(struck.values(), key=lambda each: len(each.job.replicas))
    node = victim.job.pod(victim.moment.replica)["spec"]["nodeName"]
    cluster = victim.job.ground.cluster
    safe = operator_nodes(cluster)
    for each in struck.values():
        each.lose(node, safe)
    with lost(cluster, node, NODE_FAULTS[kind]) as bring_back:
        for each in struck.values():
            each.wait_until_it_trains_elsewhere()
        bring_back()
    return struck


@pytest.fixture(scope="session")
def of_a_killed_node(
    request: pytest.FixtureRequest, grounds: Grounds, muster: Installation, uninterrupted: Uninterrupted
) -> Callable[[str], Struck]:
    """What became of a job when its node was killed; those of this run lose theirs a few at a time."""
    named = [
        item.callspec.params["job"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "of_a_killed_node" in item.fixturenames
    ]
    count = -(-len(named) // AT_ONCE)
    groups = [named[first::count] for first in range(count)]
    outcomes: dict[str, Struck] = {}

    def struck(name: str) -> Struck:
        if name not in outcomes:
            [group] = [each for each in groups if name in each]
            outcomes.update(strike("killed", group, 0, grounds=grounds, uninterrupted=uninterrupted))
            muster.wait_until_ready()
        return outcomes[name]

    return struck


@pytest.mark.timeout(1500)
@parametrised("tests/cluster/test_node_faults.py::test_a_job_goes_on_after_its_node_is_lost")
def test_a_job_goes_on_after_its_node_is_lost(fault: str, job: str, of_a_killed_node: Callable[[str], Struck]) -> None:
    of_a_killed_node(job).check()


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["frozen", "cut-off"])
def test_jobs_go_on_after_their_node_is(kind: str, seed: int, grounds: Grounds, muster: Installation, uninterrupted: Uninterrupted) -> None:
    for each in strike(kind, ["DDP", "MultiWorkerMirrored"], seed, grounds=grounds, uninterrupted=uninterrupted).values():
        each.check()
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


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_node_that_is_cut_off_from_the_operator_alone_trains_on(ground: Ground, uninterrupted: Uninterrupted) -> None:
    cluster, like = ground.cluster, uninterrupted("DDP")
    job = ground.apply(apart(digits("digits", delay=0.15)))
    job.wait_for_step(30)
    [operator] = operator_pods(cluster)
    replica = next(each for each in job.replicas if job.pod(each)["spec"]["nodeName"] != operator["spec"]["nodeName"])
    pod = job.pod(replica)
    ends = (pod["status"]["podIP"], operator["status"]["podIP"])
    rules = [("FORWARD", "--source", source, "--destination", goal, "--jump", "DROP") for source, goal in (ends, ends[::-1])]
    node = pod["spec"]["nodeName"]
    for rule in rules:
        cluster.execute(node, "iptables", "--insert", *rule)
    try:
        begun = time.time()
        step = max(event["step"] for event in job.events("step"))
        while time.time() < begun + CUT_SECONDS:  # far more than the silence that ends an attempt if its peers stand still
            step += 5
            job.wait_for_step(step)
    finally:
        for rule in rules:
            cluster.execute(node, "iptables", "--delete", *rule)
    check_succeeded(job, like, attempts=1)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_node_that_thaws_loses_its_pod_and_its_processes_commit_nothing(
    seed: int, ground: Ground, uninterrupted: Uninterrupted, muster: Installation
) -> None:
    cluster, like = ground.cluster, uninterrupted("DDP")
    job = ground.apply(apart(digits("digits", delay=0.15)))
    moment = Moment.of(seed, last=80)
    job.wait_for_step(moment.step)
    safe = operator_nodes(cluster)
    frozen = next(pod for pod in job.pods() if pod["spec"]["nodeName"] not in safe)
    node, name, uid = frozen["spec"]["nodeName"], frozen["metadata"]["name"], frozen["metadata"]["uid"]
    with lost(cluster, node, NODE_FAULTS["frozen"]) as bring_back:
        job.wait_for_step(moment.step + 20, attempt=1, timeout=NODE_LOST_SECONDS)
        [left] = job.status["orphaned"]
        assert (left["name"], left["uid"], left["node"]) == (name, uid, node)
        assert f"{name}-1" in {pod["metadata"]["name"] for pod in job.pods()}
        bring_back()
        job.wait_until("the old pod is gone", lambda status: not status.get("orphaned"))
        assert uid not in {pod["metadata"]["uid"] for pod in job.pods()}
    check_succeeded(job, like, attempts=2, infrastructure=1)
    muster.wait_until_ready()
