"""NodeClaims of Karpenter on a real API server, with the rights that the chart gives for them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.apiserver.test_node_notices import NODES, is_apart_from, running_on
from tests.support.api_server.cluster import Cluster, rendered
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.kubelet import Kubelet
from tests.support.api_server.operators import operating

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodeclaims.karpenter.sh"},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"kind": "NodeClaim", "plural": "nodeclaims"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """A node, and a cluster that serves NodeClaims, which the operator may read."""
    name = f"spot-{secrets.token_hex(3)}"
    cluster.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    cluster.admin.create(DEFINITIONS, DEFINITION)
    [role] = [
        each
        for each in rendered("--set", "nodeNotices.nodeClaims=true")
        if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "muster-nodes")
    ]
    cluster.admin.apply("/apis/rbac.authorization.k8s.io/v1/clusterroles/muster-nodes", role)
    yield name
    cluster.admin.delete(f"{DEFINITIONS}/nodeclaims.karpenter.sh")
    cluster.admin.delete(f"{NODES}/{name}")


def test_a_job_gets_a_replacement_before_its_node_expires(
    jobs: Jobs, kubelet: Kubelet, cluster: Cluster, node: str, tmp_path: Path
) -> None:
    with operating(cluster, tmp_path / "operator", nodeNotices={"nodeClaims": True}):
        running_on(node, jobs, kubelet)
        spec = {"expireAfter": "10m"}
        claim = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": node}, "spec": spec}
        created = cluster.admin.create(CLAIMS, claim)["metadata"]["creationTimestamp"]
        cluster.admin.replace_status(f"{CLAIMS}/{node}", lambda status: {**status, "nodeName": node})
        _, leaves, replacement = jobs.pods_of("digits", 3)
        assert is_apart_from(replacement, leaves, node)
        [notice] = jobs.status("digits")["nodeNotices"]
    assert (notice["node"], notice["signal"]) == (node, "spec.expireAfter of its NodeClaim")
    assert (datetime.fromisoformat(notice["goesTime"]) - datetime.fromisoformat(created)).total_seconds() == 600
