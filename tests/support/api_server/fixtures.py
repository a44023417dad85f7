"""What the conftests of tests with a real scheduler share. Each has a fixture `cluster` of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api_server.cluster import Cluster
from tests.support.api_server.operators import OperatorProcess, operating


@pytest.fixture(scope="session")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with operating(cluster, tmp_path_factory.mktemp("operator")) as operator:
        yield operator
