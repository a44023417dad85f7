"""A control plane of Kubernetes with the scheduler of scheduler-plugins beside its own, the chart, an operator, and kwok's nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server.cluster import Cluster
from tests.support.api_server.coscheduling import coscheduling, define
from tests.support.api_server.fake_nodes import scheduling
from tests.support.api_server.gangs import jobs_on_nodes
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.operators import OperatorProcess, operating


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("control-plane")
    groups = "gangScheduling.apiGroups={scheduling.x-k8s.io}"
    with scheduling(folder, has_gangs=False, options=["--set", groups]) as cluster:
        define(cluster.admin)
        with coscheduling(folder, cluster.kubeconfig):
            yield cluster


@pytest.fixture(scope="session")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with operating(cluster, tmp_path_factory.mktemp("operator")) as operator:
        yield operator


@pytest.fixture
def jobs(cluster: Cluster, operator: OperatorProcess) -> Iterator[Jobs]:
    with jobs_on_nodes(cluster, "coscheduling") as jobs:
        yield jobs
