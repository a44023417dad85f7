"""A control plane of Kubernetes with the scheduler of scheduler-plugins beside its own, the chart, an operator, and kwok's nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server.cluster import Cluster
from tests.support.api_server.coscheduling import scheduling_with_coscheduling
from tests.support.api_server.fixtures import operator
from tests.support.api_server.gangs import jobs

__all__ = ["cluster", "jobs", "operator"]  # pytest finds fixtures that are imported


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with scheduling_with_coscheduling(tmp_path_factory.mktemp("control-plane")) as cluster:
        yield cluster
