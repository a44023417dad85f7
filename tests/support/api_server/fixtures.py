"""What the conftests of tests with a real scheduler share. Each has a fixture `cluster` of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server.api import Api
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.operators import OperatorProcess, operating


@pytest.fixture(scope="session")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with operating(cluster, tmp_path_factory.mktemp("operator")) as operator:
        yield operator


def create_priority_classes(api: Api) -> None:
    for name, value in (("low", 10), ("high", 1000)):
        api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
