"""Karpenter with its provider for kwok, beside an API server. It adds and removes nodes, and kwok keeps them ready."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

import local_cluster
from local_cluster.ports import free_ports
from tests.support.api_server.api import Api, ApiError, Object
from tests.support.waiting import wait_until

API = "/apis/karpenter.sh/v1"
NODE_CLAIMS = f"{API}/nodeclaims"
_NODE_CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_INSTANCE_TYPE = {
    "name": "one-worker",
    "architecture": "amd64",
    "operatingSystems": ["linux"],
    "resources": {"cpu": "2", "memory": "8Gi", "ephemeral-storage": "20Gi"},
    "offerings": [
        {
            "Price": 1.0,
            "Available": True,
            "Requirements": [
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
            ],
        }
    ],
}
"""The only kind of node. The provider keeps a part of its two CPUs for the node, so it has room for one worker with one CPU."""


def define(api: Api) -> None:
    """The definitions of Karpenter's objects, from its own source."""
    programs = local_cluster.Programs(local_cluster.Places.default())
    source = programs.module_folder("karpenter", "sigs.k8s.io/karpenter")
    for folder in ("pkg", "kwok"):
        for file in sorted((source / folder / "apis" / "crds").glob("*.yaml")):
            api.create(_DEFINITIONS, yaml.safe_load(file.read_text()))
    wait_until(lambda: _serves(api), "NodeClaims are served")


@contextmanager
def karpenter(folder: Path, kubeconfig: Path) -> Iterator[None]:
    """Runs Karpenter. Its definitions exist already."""
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure(["karpenter"])
    types, log, (health, metrics) = folder / "instance-types.json", folder / "karpenter.log", free_ports(2)
    types.write_text(json.dumps([_INSTANCE_TYPE]))
    command = [
        *[str(programs.path("karpenter")), f"--instance-types-file-path={types}"],
        *["--disable-leader-election=true", f"--health-probe-port={health}", f"--metrics-port={metrics}", "--log-level=debug"],
    ]
    with local_cluster.running(command, log, env={**os.environ, "KUBECONFIG": str(kubeconfig)}) as process:
        wait_until(lambda: "Starting workers" in log.read_text() or process.poll() is not None, f"Karpenter starts; see {log}")
        assert process.poll() is None, log.read_text()[-2000:]
        yield


@contextmanager
def node_pool(api: Api, name: str, *, launch_seconds: int = 0, **spec: str) -> Iterator[None]:
    """A NodePool for pods with its name as the node selector `pool`. A node is there so many seconds after Karpenter has launched it.
    Karpenter replaces one at a time of those that have drifted, and removes those that are empty for ten seconds. `spec` has more fields
    of its nodes. At the end the nodes are gone."""
    node_class: Object = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": name}}
    api.create(_NODE_CLASSES, {**node_class, "spec": {"nodeRegistrationDelay": f"{launch_seconds}s"}})
    template: dict[str, Any] = {
        "metadata": {"labels": {"pool": name}},
        "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": name},
            "expireAfter": "Never",
            "requirements": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}],
            **spec,
        },
    }
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "10s", "budgets": [{"nodes": "1", "reasons": ["Drifted"]}]}
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}}
    api.create(f"{API}/nodepools", {**pool, "spec": {"template": template, "disruption": disruption}})
    try:
        yield
    finally:
        api.delete(f"{API}/nodepools/{name}")
        for claim in claims(api, name):
            with suppress(ApiError):
                api.delete(f"{NODE_CLAIMS}/{claim['metadata']['name']}")
        wait_until(lambda: not claims(api, name), "the nodes of the pool are gone")
        api.delete(f"{_NODE_CLASSES}/{name}")


def change_nodes(api: Api, pool: str) -> None:
    """Changes what the NodePool asks of its nodes, so that all of them have drifted."""
    api.patch(f"{API}/nodepools/{pool}", {"spec": {"template": {"metadata": {"labels": {"generation": "next"}}}}})


def claims(api: Api, pool: str) -> list[Object]:
    return api.items(NODE_CLAIMS, labelSelector=f"karpenter.sh/nodepool={pool}")


def claim_of(api: Api, node: str) -> Object:
    """The NodeClaim of a node."""
    [claim] = [each for each in api.items(NODE_CLAIMS) if (each.get("status") or {}).get("nodeName") == node]
    return claim


def _serves(api: Api) -> bool:
    """Whether the API server serves the objects and lists them in its discovery, which comes later."""
    plurals = {"nodeclaims", "nodepools", "nodeoverlays"}
    with suppress(ApiError):
        listed = {each["name"] for name in ("v1", "v1alpha1") for each in api.get(f"/apis/karpenter.sh/{name}")["resources"]}
        return plurals <= listed and all(api.get(path) for path in (NODE_CLAIMS, f"{API}/nodepools", _NODE_CLASSES))
    return False
