"""A strategy of another package on a real API server: its roles, its ConfigMap, and `kubectl scale`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.api_server.api import Object
from tests.support.api_server.cluster import ACCOUNT, RELEASE_NAMESPACE, Cluster
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.kubelet import Kubelet
from tests.support.api_server.operators import operating
from tests.support.waiting import wait_until
from tests.toy_strategy.install import TOY, installed

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def toy_operator(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An operator that has the toy installed, and the rights of `rbac.strategyObjects: [configmaps]`."""
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path / "toy")["PYTHONPATH"])
    role = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "update"]}
    named = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "toy"}}
    cluster.admin.apply(f"{RBAC}/clusterroles/toy", {**named, "kind": "ClusterRole", "rules": [role]})
    binding = {
        **named,
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "toy"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": RELEASE_NAMESPACE}],
    }
    cluster.admin.apply(f"{RBAC}/clusterrolebindings/toy", binding)
    with operating(cluster, tmp_path / "operator") as operator:
        yield operator
    for kind in ("clusterrolebindings", "clusterroles"):
        cluster.admin.delete(f"{RBAC}/{kind}/toy")


def test_the_config_map_of_a_strategy_exists_before_the_pods_and_follows_the_spec(
    jobs: Jobs, kubelet: Kubelet, toy_operator: object
) -> None:
    job: Object = yaml.safe_load((TOY / "job.yaml").read_text())
    jobs.submit(job)

    def pods(count: int) -> list[Object]:
        listing: list[Object] = wait_until(lambda: each if len(each := jobs.pods("relay")) == count else None, f"{count} pods")
        return listing

    def hosts() -> list[str]:
        text: str = jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/configmaps/relay-hostfile")["data"]["hosts"]
        return [line.partition(".")[0] for line in text.split()]

    names = {pod["metadata"]["name"] for pod in pods(3)}
    assert names == {"relay-launcher-0", "relay-worker-0", "relay-worker-1"}
    assert hosts() == ["worker-0", "worker-1"]
    owner = jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/configmaps/relay-hostfile")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("TrainingJob", "relay", True)

    jobs.patch("relay", {"spec": {"suspend": True}})
    wait_until(lambda: not jobs.pods("relay"), "the pods of the suspended job go")
    jobs.scale("relay", 3)
    jobs.patch("relay", {"spec": {"suspend": False}})
    pods(4)
    assert hosts() == ["worker-0", "worker-1", "worker-2"]
