"""What an installation allows its jobs and their authors, on a real API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.apiserver.stage.api import Object, until
from tests.apiserver.stage.cluster import Cluster
from tests.apiserver.stage.jobs import Jobs, condition, job
from tests.apiserver.stage.kubelet import Nodes
from tests.apiserver.stage.operators import operating


def templated(name: str, **spec: Any) -> Object:
    return job(name, roles={"worker": {"replicas": 1, "template": {"spec": spec}}})


def refused(jobs: Jobs, name: str) -> str:
    """The message of condition Valid once it is False."""
    return str(condition(until(lambda: _invalid(jobs.status(name)), f"{name} is refused"), "Valid")["message"])


def _invalid(status: Object) -> Object | None:
    return status if condition(status, "Valid").get("status") == "False" else None


def test_a_job_that_the_policy_forbids_says_so_and_gets_no_pods(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    policy = {
        "serviceAccounts": ["train"],
        "priorityClasses": ["low"],
        "volumes": ["emptyDir"],
        "templates": "Restricted",
        "maxReplicasPerJob": 2,
    }
    with operating(cluster, tmp_path / "operator", jobPolicy=policy):
        jobs.submit(templated("account", serviceAccountName="powerful"))
        jobs.submit(templated("secret", volumes=[{"name": "db", "secret": {"secretName": "db-password"}}]))
        jobs.submit(templated("host", hostNetwork=True, hostPID=True))
        jobs.submit(job("urgent", scheduling={"priorityClassName": "vip"}))
        jobs.submit(job("large", workers=3))
        assert "serviceAccountName: must be train" in refused(jobs, "account")
        assert "volumes[0].secret: may not be used: this installation allows emptyDir" in refused(jobs, "secret")
        assert "hostNetwork: may not be set" in refused(jobs, "host")
        assert "spec.scheduling.priorityClassName: must be low" in refused(jobs, "urgent")
        assert "this installation allows 2" in refused(jobs, "large")
        jobs.submit(templated("honest", nodeSelector={"pool": "gpu"}, volumes=[{"name": "scratch", "emptyDir": {}}]))
        jobs.reaches("honest", "Running")
        assert {pod["metadata"]["labels"]["muster.dev/job-name"] for pod in nodes.seen.values()} == {"honest"}


def test_a_job_beyond_the_namespaces_limit_starts_when_another_ends(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    with operating(cluster, tmp_path / "operator", jobPolicy={"maxJobsPerNamespace": 1}):
        jobs.submit(job("first", workers=1))
        jobs.reaches("first", "Running")
        jobs.submit(job("second", workers=1))
        assert "this installation allows 1" in refused(jobs, "second")
        nodes.ends = lambda pod: 0 if pod["metadata"]["labels"]["muster.dev/job-name"] == "first" else None
        [pod] = jobs.pods("first")
        jobs.api.patch(f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}", {"metadata": {"annotations": {"end": "now"}}})
        jobs.reaches("second", "Running")
        assert jobs.status("first")["phase"] == "Succeeded"


def test_a_policy_that_becomes_stricter_leaves_a_running_job_alone(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    with operating(cluster, tmp_path / "before"):
        jobs.submit(job("digits", workers=2))
        jobs.reaches("digits", "Running")
    with operating(cluster, tmp_path / "after", jobPolicy={"maxReplicasPerJob": 1}):
        jobs.submit(job("other", workers=1))
        jobs.reaches("other", "Running")  # so the operator watches pods
        [pod, _] = jobs.pods("digits")
        jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}")
        until(lambda: jobs.status("digits")["restarts"]["total"] == 1 and len(jobs.pods("digits")) == 2, "the job recovers")
        assert condition(jobs.reaches("digits", "Running"), "Valid")["status"] == "True"
