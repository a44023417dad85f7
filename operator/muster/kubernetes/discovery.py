"""Finds out which optional APIs the cluster serves: those of schedulers, queues and evictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.control.errors import ClusterError, NotFoundError
from muster.kubernetes.api_paths import ApiPath, api
from muster.kubernetes.gateway import Gateway
from muster.render import evictions, kueue
from muster.render.gang import PLURAL, SCHEDULERS

Versions = Mapping[str, set[str]]
"""The versions of each API group that the cluster serves."""


async def served_versions(gateway: Gateway) -> Versions:
    """The versions of all API groups. A cluster without any optional API gets only this request. Raises ClusterError."""
    listing = await gateway.request("GET", ApiPath("/apis"))
    return {str(group["name"]): {str(each["version"]) for each in group["versions"]} for group in listing["groups"]}


async def served_gang_schedulers(gateway: Gateway, groups: Sequence[str], versions: Versions) -> tuple[str, ...]:
    """The API groups that serve their PodGroup, in the same order. Raises ClusterError."""
    candidates = [SCHEDULERS[group] for group in groups if SCHEDULERS[group].version in versions.get(group, ())]
    return tuple([each.group for each in candidates if await _serves(gateway, each.group, each.version, PLURAL)])


async def serves_evictions(gateway: Gateway, versions: Versions) -> bool:
    """Whether the cluster serves the Evictions of KEP-4563. Raises ClusterError."""
    group, version = evictions.GROUP, evictions.VERSION
    return version in versions.get(group, ()) and await _serves(gateway, group, version, evictions.PLURAL)


async def serves_kueue(gateway: Gateway) -> bool:
    """Whether the cluster serves the Workloads of Kueue. Raises ClusterError."""
    return await _serves(gateway, kueue.GROUP, kueue.VERSION, kueue.PLURAL)


async def serves_positions(gateway: Gateway) -> bool:
    """Whether the cluster serves the positions of Workloads in their queues. Another server answers for this API, which may be down."""
    try:
        await gateway.request("GET", api(kueue.VISIBILITY))
    except ClusterError:
        return False
    return True


async def _serves(gateway: Gateway, group: str, version: str, plural: str) -> bool:
    """Whether this version has the resource. A group can have a version without it."""
    try:
        listing = await gateway.request("GET", api(f"{group}/{version}"))
    except NotFoundError:
        return False
    return any(each["name"] == plural for each in listing["resources"])
