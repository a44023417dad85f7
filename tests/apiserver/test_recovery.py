"""The operator is killed, frozen and cut off: jobs still finish, and nothing is done twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.api_server.api import Object
from tests.support.api_server.cluster import ACCOUNT, RELEASE_NAMESPACE, Cluster
from tests.support.api_server.jobs import Jobs, attempt_of, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.operators import OperatorProcess, operating
from tests.support.waiting import wait_until

TAKEOVER_SECONDS = 60.0
"""Five on an idle machine (docs/architecture/operator.md). On a busy one, a standby that gets late answers counts the time of the lease
again."""


def mixed(history: Iterable[tuple[str, Object]]) -> list[str]:
    """Moments at which pods of two attempts of one job existed at once."""
    alive: dict[str, Object] = {}
    found = []
    for kind, pod in history:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["labels"]["muster.dev/job-name"]
        if kind == "DELETED":
            alive.pop(uid, None)
            continue
        alive[uid] = pod
        others = {attempt_of(each) for each in alive.values() if each["metadata"]["labels"]["muster.dev/job-name"] == name}
        if len(others) > 1:
            found.append(f"{name}: attempts {sorted(others)}")
    return found


def runs(jobs: Jobs, name: str, attempt: int) -> None:
    jobs.reaches(name, "Running", attempt=attempt)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 20), marks=pytest.mark.thorough)], ids=["few", "more"])
def test_a_job_succeeds_although_its_operator_is_killed_at_random_moments(
    jobs: Jobs, nodes: Nodes, kubelet: Kubelet, operator: OperatorProcess, seeds: range
) -> None:
    nodes.grace = 0.1
    for seed in seeds:
        chance = random.Random(seed)
        name, workers = f"digits-{seed}", chance.randint(1, 6)

        def kill_soon(chance: random.Random = chance) -> None:
            time.sleep(chance.random() * 0.4)  # the moment of the kill is what the seed decides
            operator.kill()
            operator.start()

        jobs.submit(job(name, workers=workers))
        kill_soon()
        runs(jobs, name, 0)
        kubelet.end(chance.choice(jobs.pods(name)), 137)
        kill_soon()
        runs(jobs, name, 1)
        for pod in jobs.pods(name):
            kubelet.end(pod, 0)
        kill_soon()
        status = jobs.reaches(name, "Succeeded")
        assert status["restarts"]["total"] == 1, f"seed {seed}"
        assert [len(status["restarts"].get(each, ())) for each in ("preemption", "infrastructure", "application")] == [0, 1, 0]
        assert [record["attempt"] for record in status["attempts"]] == [0, 1]
        made = [pod for pod in nodes.seen.values() if pod["metadata"]["labels"]["muster.dev/job-name"] == name]
        assert len(made) == 2 * workers, f"seed {seed}: each replica is made once for each attempt"
        assert mixed(nodes.history) == [], f"seed {seed}"
        jobs.delete(name)


def test_an_outage_of_the_api_server_restarts_no_job(
    jobs: Jobs, nodes: Nodes, kubelet: Kubelet, cluster: Cluster, operator: OperatorProcess
) -> None:
    jobs.submit(job("digits"))
    runs(jobs, "digits", 0)
    with cluster.down():
        wait_until(lambda: operator.probe("readyz")[0] == 503, "a leader without an API server is not ready")
        assert "API server" in operator.probe("readyz")[1]
        assert operator.probe("healthz")[0] == 200, "no restart cures an API server that is away"
    wait_until(lambda: operator.probe("readyz")[0] == 200, "it is ready again")
    assert operator.process
    assert operator.process.poll() is None
    assert jobs.status("digits")["restarts"]["total"] == 0
    kubelet.end(jobs.pods("digits")[0], 137)
    runs(jobs, "digits", 1)
    assert jobs.status("digits")["restarts"]["total"] == 1
    for pod in jobs.pods("digits"):
        kubelet.end(pod, 0)
    jobs.reaches("digits", "Succeeded")
    assert mixed(nodes.history) == []


def test_a_pod_that_is_deleted_during_an_outage_is_replaced(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    """The watch breaks with the frozen process and misses the deletion; kopf's new list never says DELETED."""
    jobs.submit(job("digits"))
    runs(jobs, "digits", 0)
    assert operator.process
    operator.process.send_signal(signal.SIGSTOP)
    for pod in jobs.pods("digits"):
        jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    operator.process.send_signal(signal.SIGCONT)
    runs(jobs, "digits", 1)


def writers(cluster: Cluster) -> list[str]:
    """The credential behind every write to jobs and pods, in the order in which they were made."""
    changes = [each for each in cluster.requests() if each["verb"] not in ("get", "list", "watch") and "leases" not in each["requestURI"]]
    return [each["user"]["extra"]["authentication.kubernetes.io/credential-id"][0] for each in changes]


def test_a_standby_replaces_lost_pods_soon_after_the_leader_was_killed(
    jobs: Jobs, nodes: Nodes, kubelet: Kubelet, cluster: Cluster, tmp_path: Path, operator: OperatorProcess
) -> None:
    standby = OperatorProcess(cluster, tmp_path / "standby", pod="muster-1", settings={}).start()
    try:
        wait_until(lambda: standby.probe("readyz")[0] == 200, "a standby is ready to take over")
        assert not standby.leads
        jobs.submit(job("digits"))
        runs(jobs, "digits", 0)
        operator.kill()
        begun = time.monotonic()
        kubelet.end(jobs.pods("digits")[0], 137)
        wait_until(lambda: any(attempt_of(pod) == 1 for pod in jobs.pods("digits")), "the standby replaces the lost pod")
        taken = time.monotonic() - begun
        print(f"the standby made a pod {taken:.1f} s after the leader was killed; load {os.getloadavg()[0]:.1f}")
        runs(jobs, "digits", 1)
        assert jobs.status("digits")["restarts"]["total"] == 1
        assert taken < TAKEOVER_SECONDS
        assert standby.stop() == 0
    finally:
        standby.close()


def test_requests_for_the_lease_have_the_priority_of_leader_elections(cluster: Cluster, operator: OperatorProcess) -> None:
    labels = f'{{flow_schema="{ACCOUNT}-leader-election",priority_level="leader-election"}}'

    def dispatched() -> float:
        lines = cluster.admin.get("/metrics")["message"].splitlines()
        counts = [line.split()[-1] for line in lines if line.startswith(f"apiserver_flowcontrol_dispatched_requests_total{labels}")]
        return sum(map(float, counts))

    before = dispatched()
    wait_until(lambda: dispatched() > before, "the leader renews its lease")


def test_a_short_outage_of_the_api_server_changes_no_leader(cluster: Cluster, tmp_path: Path, operator: OperatorProcess) -> None:
    name = cluster.configuration["leaderElection"]["leaseName"]
    standby = OperatorProcess(cluster, tmp_path / "standby", pod="muster-1", settings={}).start()

    def lease() -> Object:
        spec: Object = cluster.admin.get(f"/apis/coordination.k8s.io/v1/namespaces/{RELEASE_NAMESPACE}/leases/{name}")["spec"]
        return spec

    try:
        wait_until(lambda: standby.probe("readyz")[0] == 200, "a standby is ready to take over")
        before = lease()
        with cluster.frozen():
            wait_until(lambda: not operator.leads, "the leader is not sure any more that it leads")
            time.sleep(2 * before["leaseDurationSeconds"])  # long enough for the lease to expire by the clock of each
        wait_until(lambda: operator.leads, "the leader goes on")
        wait_until(lambda: lease()["renewTime"] > before["renewTime"], "it renews its lease")
        assert (lease()["holderIdentity"], lease()["leaseTransitions"]) == (before["holderIdentity"], before["leaseTransitions"])
        assert not standby.leads
    finally:
        standby.close()


def test_a_frozen_leader_ends_without_a_write_once_another_leads(
    jobs: Jobs, nodes: Nodes, kubelet: Kubelet, cluster: Cluster, tmp_path: Path, operator: OperatorProcess
) -> None:
    jobs.submit(job("digits"))
    runs(jobs, "digits", 0)
    old = writers(cluster)[-1]
    standby = OperatorProcess(cluster, tmp_path / "standby", pod="muster-1", settings={}).start()
    try:
        wait_until(lambda: standby.probe("readyz")[0] == 200, "a standby is ready to take over")
        assert operator.process
        operator.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: standby.leads, "the standby leads")
        kubelet.end(jobs.pods("digits")[0], 137)
        runs(jobs, "digits", 1)
        before = len(writers(cluster))
        operator.process.send_signal(signal.SIGCONT)
        assert operator.process.wait(60) == 3
        assert old not in writers(cluster)[before:]
        assert mixed(nodes.history) == []
    finally:
        standby.close()


def test_a_leader_that_gets_sigterm_ends_soon_and_releases_the_lease(
    jobs: Jobs, cluster: Cluster, tmp_path: Path, operator: OperatorProcess
) -> None:
    jobs.submit(job("digits", workers=30))
    assert operator.stop() == 0
    with operating(cluster, tmp_path / "next", pod="muster-1"):
        wait_until(lambda: len(jobs.pods("digits")) == 30, "what it had begun is finished")


def test_an_operator_without_an_api_server_is_not_ready_and_ends_at_sigterm(cluster: Cluster, tmp_path: Path) -> None:
    lonely = OperatorProcess(cluster, tmp_path / "lonely", pod="muster-9", settings={})
    kubeconfig = tmp_path / "lonely" / "kubeconfig"
    kubeconfig.write_text(kubeconfig.read_text().replace(cluster.admin.server, "https://127.0.0.1:1"))
    lonely.start()
    try:
        wait_until(lambda: lonely.probe("healthz")[0] == 200, "it lives")
        wait_until(lambda: lonely.probe("readyz")[0] == 503, "it is not ready")
        assert lonely.stop() == 0
    finally:
        lonely.close()


@pytest.mark.parametrize("text", ["workers: many", "unknown: 1", "{", "resyncSeconds: 0"])
def test_an_invalid_configuration_ends_the_operator_at_once_with_a_message(cluster: Cluster, tmp_path: Path, text: str) -> None:
    wrong = OperatorProcess(cluster, tmp_path / "wrong", pod="muster-9", settings={})
    (tmp_path / "wrong" / "operator.yaml").write_text(text)
    wrong.start()
    assert wrong.process
    assert wrong.process.wait(60) == 2
    said = wrong.log.read_text()
    assert "operator.yaml" in said
    assert "Traceback" not in said
