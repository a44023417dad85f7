"""A control plane of Kubernetes with Karpenter, the chart in it, an operator, and nodes that kwok keeps ready."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import scheduling
from tests.support.api_server.fixtures import operator
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.karpenter import define, karpenter, node_pool
from tests.support.api_server.operators import OperatorProcess

__all__ = ["cluster", "jobs", "operator", "pool"]  # pytest finds the fixture that is imported

LAUNCH_SECONDS = 5
"""After how many seconds a node that Karpenter launches is there."""
START_SECONDS = 2
"""After how many seconds the program of a new pod runs."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("control-plane")
    options = ["--set", "nodeNotices.nodeClaims=true"]
    arguments = ["--disable-admission-plugins=TaintNodesByCondition"]  # no controller removes the taint of new nodes
    with scheduling(folder, has_gangs=False, options=options, arguments=arguments, start_milliseconds=START_SECONDS * 1000) as cluster:
        define(cluster.admin)
        with karpenter(folder, cluster.kubeconfig):
            yield cluster


@pytest.fixture
def pool(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a NodePool. A test may give it fields for its nodes."""
    with node_pool(cluster.admin, "training", launch_seconds=LAUNCH_SECONDS, **getattr(request, "param", {})):
        yield "training"


@pytest.fixture
def jobs(cluster: Cluster, operator: OperatorProcess, pool: str) -> Iterator[Jobs]:
    """Jobs in a namespace of their own. They are gone before the nodes of the pool."""
    namespace = cluster.namespace("karpenter")
    yield Jobs(cluster.admin, namespace)
    cluster.empty(namespace)
