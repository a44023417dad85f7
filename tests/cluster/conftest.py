"""Fixtures of the tests that need a Kubernetes."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

import local_cluster
from local_cluster import installation
from tests.support import cluster_jobs

pytest.register_assert_rewrite("tests.cluster.faults", "tests.support.cluster_jobs")


SEEDS = int(os.environ.get("MUSTER_CHAOS_SEEDS", "3"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `seed` runs once for each: the moment of its fault is drawn from it."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(SEEDS))


@pytest.fixture(scope="session")
def api_server() -> Iterator[Path]:
    """The kubeconfig of an API server without nodes; one for the whole session, so a test uses names of its own."""
    with local_cluster.api_server(local_cluster.Places.default()) as kubeconfig:
        yield kubeconfig


@pytest.fixture(scope="session")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], AbstractContextManager[None]]:
    """Workers of one run (`pytest -n`) make what they share one after the other: the first makes it, the others find it made."""

    @contextmanager
    def turn() -> Iterator[None]:
        with (tmp_path_factory.getbasetemp().parent / "muster-turn").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return turn


@pytest.fixture(scope="session")
def cluster(in_turn: Callable[[], AbstractContextManager[None]]) -> Iterator[local_cluster.Cluster]:
    """The cluster of KUBECONFIG, or the one of `make cluster`, made if it is not up. It stays up: `make cluster-down` removes it."""
    places = local_cluster.Places.default()
    with ExitStack() as used:
        with in_turn():
            cluster = local_cluster.up(places)
            used.enter_context(places.in_use(os.environ.get("PYTEST_XDIST_TESTRUNUID", "")))
        yield cluster


@pytest.fixture(scope="session")
def muster(cluster: local_cluster.Cluster, in_turn: Callable[[], AbstractContextManager[None]]) -> installation.Installation:
    """Muster of this checkout, installed by Helm."""
    with in_turn():
        return installation.ensure(cluster)


Grounds = Callable[[str], cluster_jobs.Ground]


@pytest.fixture(scope="session")
def grounds(cluster: local_cluster.Cluster, muster: installation.Installation) -> Iterator[Grounds]:
    """Makes namespaces to train in, with restricted pod security and a claim; all go at the end."""
    made: list[cluster_jobs.Ground] = []

    def make(name: str) -> cluster_jobs.Ground:
        namespace = f"t-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')[-50:].strip('-')}"
        made.append(cluster_jobs.make_ground(cluster, namespace))
        return made[-1]

    yield make
    for ground in made:  # all at once: Kubernetes takes its time for each
        ground.leave()
    for ground in made:
        ground.remove()


@pytest.fixture
def ground(grounds: Grounds, request: pytest.FixtureRequest) -> Iterator[cluster_jobs.Ground]:
    """A namespace for this test alone."""
    ground = grounds(request.node.name.removeprefix("test_"))
    yield ground
    ground.leave()


@pytest.fixture(scope="session")
def uninterrupted(grounds: Grounds) -> Callable[[str], cluster_jobs.ClusterJob]:
    """That job of the matrix, trained at full speed without any fault: what the others must equal. Each runs once."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    finished: dict[str, cluster_jobs.ClusterJob] = {}

    def job(name: str) -> cluster_jobs.ClusterJob:
        if name not in finished:
            ground = grounds(f"uninterrupted-{name}-{worker}")
            finished[name] = ground.apply(cluster_jobs.of_matrix(name, delay=0))
            finished[name].wait_for_end()
        return finished[name]

    return job
