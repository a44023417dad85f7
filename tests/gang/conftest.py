"""A control plane of Kubernetes with gang scheduling, the chart in it, an operator, and kwok's nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server.cluster import Cluster
from tests.support.api_server.fake_nodes import scheduling
from tests.support.api_server.fixtures import create_priority_classes, operator
from tests.support.api_server.gangs import jobs_on_nodes
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.operators import OperatorProcess

__all__ = ["cluster", "jobs", "operator"]  # pytest finds the fixture that is imported


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with scheduling(tmp_path_factory.mktemp("control-plane")) as cluster:
        create_priority_classes(cluster.admin)
        yield cluster


@pytest.fixture
def jobs(cluster: Cluster, operator: OperatorProcess) -> Iterator[Jobs]:
    with jobs_on_nodes(cluster, "gang") as jobs:
        yield jobs
