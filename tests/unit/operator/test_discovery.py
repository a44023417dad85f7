"""The discovery of the optional APIs that the cluster serves."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from muster.kubernetes.errors import NotFoundError
from muster.operator.discovery import kueue_version, positions_version, served_gang_schedulers, served_versions
from muster.operator.gateway import Gateway

NATIVE, COSCHEDULING, VOLCANO = "scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"


class Served:
    """A server of the discovery API. `versions` has the resources of each group version."""

    def __init__(self, versions: dict[str, list[str]]) -> None:
        self.versions = versions
        self.requests: list[str] = []

    async def request(self, verb: str, path: str) -> Any:
        self.requests.append(f"{verb} {path}")
        if path == "/apis":
            groups: dict[str, list[Any]] = {}
            for each in self.versions:
                group, _, version = each.partition("/")
                groups.setdefault(group, []).append({"groupVersion": each, "version": version})
            return {"groups": [{"name": name, "versions": versions} for name, versions in groups.items()]}
        name = path.removeprefix("/apis/")
        if name not in self.versions:
            raise NotFoundError(name)
        return {"resources": [{"name": each} for each in self.versions[name]]}


@pytest.mark.parametrize(
    ("versions", "groups", "expected", "requests"),
    [
        ({"scheduling.k8s.io/v1": ["priorityclasses"]}, [NATIVE, COSCHEDULING, VOLCANO], (), 1),
        ({"scheduling.k8s.io/v1": [], "scheduling.k8s.io/v1beta1": ["workloads", "podgroups"]}, [NATIVE], (NATIVE,), 2),
        ({"scheduling.k8s.io/v1beta1": ["priorityclasses"]}, [NATIVE], (), 2),  # Kubernetes before 1.22
        ({"scheduling.x-k8s.io/v1alpha1": ["podgroups"]}, [NATIVE], (), 1),  # the installation does not use it
        (
            {"scheduling.volcano.sh/v1beta1": ["podgroups", "queues"], "scheduling.x-k8s.io/v1alpha1": ["podgroups"]},
            [VOLCANO, COSCHEDULING],
            (VOLCANO, COSCHEDULING),
            3,
        ),
        ({"scheduling.k8s.io/v1beta1": ["podgroups"]}, [], (), 1),
    ],
)
def test_only_configured_apis_with_pod_groups_are_used(
    versions: dict[str, list[str]], groups: list[str], expected: tuple[str, ...], requests: int
) -> None:
    server = Served(versions)
    gateway = cast(Gateway, server)

    async def discover() -> tuple[str, ...]:
        return await served_gang_schedulers(gateway, groups, await served_versions(gateway))

    assert asyncio.run(discover()) == expected
    assert len(server.requests) == requests


KUEUE, VISIBILITY = "kueue.x-k8s.io", "visibility.kueue.x-k8s.io"


@pytest.mark.parametrize(
    ("versions", "workloads", "positions"),
    [
        ({}, "", ""),
        ({f"{KUEUE}/v1beta1": ["workloads"], f"{VISIBILITY}/v1beta1": ["localqueues"]}, "v1beta1", "v1beta1"),  # Kueue 0.10
        ({f"{KUEUE}/{each}": ["workloads"] for each in ("v1beta1", "v1beta2")}, "v1beta2", ""),  # Kueue 0.17
        ({f"{KUEUE}/v1beta2": ["workloads"], f"{VISIBILITY}/v1beta2": ["localqueues"]}, "v1beta2", "v1beta2"),  # Kueue 0.20
        ({f"{KUEUE}/v1beta2": ["topologies"], f"{KUEUE}/v1beta1": ["workloads"]}, "v1beta1", ""),
        ({f"{KUEUE}/v1beta3": ["workloads"], f"{VISIBILITY}/v1beta3": ["localqueues"]}, "", ""),
    ],
)
def test_the_newest_version_of_kueue_that_the_cluster_serves_is_used(
    versions: dict[str, list[str]], workloads: str, positions: str
) -> None:
    gateway = cast(Gateway, Served(versions))

    async def discover() -> tuple[str, str]:
        return await kueue_version(gateway), await positions_version(gateway)

    assert asyncio.run(discover()) == (workloads, positions)
