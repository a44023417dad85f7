"""One API server for all tests, with the chart in it; a namespace, kubelets and an operator for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_server.cluster import Cluster, running
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.operators import OperatorProcess, operating


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("apiserver")) as cluster:
        yield cluster


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = cluster.namespace("test")
    yield name
    cluster.empty(name)


@pytest.fixture
def jobs(cluster: Cluster, namespace: str) -> Jobs:
    return Jobs(cluster.admin, namespace)


@pytest.fixture
def kubelet(cluster: Cluster) -> Kubelet:
    return Kubelet(cluster.admin)


@pytest.fixture
def nodes(cluster: Cluster, namespace: str) -> Iterator[Nodes]:
    """Kubelets that run every pod at once."""
    with Nodes(cluster.admin, namespace).working() as nodes:
        yield nodes


@pytest.fixture
def operator(cluster: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    with operating(cluster, tmp_path / "operator") as operator:
        yield operator


@pytest.fixture(scope="module")
def shared_operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for all tests of a module."""
    with operating(cluster, tmp_path_factory.mktemp("operator")) as operator:
        yield operator
