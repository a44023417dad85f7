"""A control plane of Kubernetes with Kueue, the chart in it, an operator, and kwok's nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import add_node, scheduling
from tests.support.api_server.fixtures import operator
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.kueue import API, aggregation, can_show_positions, define, kueue, kueue_object, quota
from tests.support.api_server.operators import OperatorProcess

__all__ = ["cluster", "jobs", "operator"]  # pytest finds the fixture that is imported

QUOTA = 4
"""CPUs of the only ClusterQueue. Its nodes have more, so only the quota makes a job wait."""
READY_SECONDS = 30
"""Time within which all pods of an admitted job must run. Then Kueue evicts it."""


@pytest.fixture(scope="session")
def shows_positions() -> bool:
    """Whether Kueue serves the positions of jobs in its queues on this machine."""
    return can_show_positions()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, shows_positions: bool) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("control-plane")
    options = ["--set", "queueing.kueue.enabled=true"]
    with scheduling(folder, options=options, arguments=aggregation(folder)) as cluster:
        define(cluster.admin)
        with kueue(folder, cluster.kubeconfig, shows_positions=shows_positions, ready_seconds=READY_SECONDS):
            admin = cluster.admin
            admin.create(f"{API}/resourceflavors", kueue_object("ResourceFlavor", "main", {"nodeLabels": {"pool": "main"}}))
            spec = {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": quota("main", QUOTA),
            }
            admin.create(f"{API}/clusterqueues", kueue_object("ClusterQueue", "all", spec))
            for number in range(3):
                add_node(admin, f"main-{number}", cpu=4, labels={"pool": "main"})
            add_node(admin, "other", cpu=16)
            yield cluster


@pytest.fixture
def jobs(cluster: Cluster, operator: OperatorProcess) -> Iterator[Jobs]:
    """Jobs in a namespace of their own, with the LocalQueue `team`."""
    namespace = cluster.namespace("kueue")
    cluster.admin.create(f"{API}/namespaces/{namespace}/localqueues", kueue_object("LocalQueue", "team", {"clusterQueue": "all"}))
    yield Jobs(cluster.admin, namespace)
    cluster.empty(namespace)
