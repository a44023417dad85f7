"""Finds out which optional APIs the cluster serves: those of schedulers and queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from muster.kubernetes.api_paths import ApiPath, api
from muster.kubernetes.errors import ClusterError, NotFoundError
from muster.operator.gateway import Gateway
from muster.render import gang
from muster.render.gang import SCHEDULERS
from muster.render.kueue_versions import GROUP, PLURAL, VERSIONS, VISIBILITY_GROUP

NODE_CLAIMS = ("karpenter.sh", "v1", "nodeclaims")
"""Group, version and plural."""
Versions = Mapping[str, set[str]]
"""The versions of each API group that the cluster serves."""


async def served_versions(gateway: Gateway) -> Versions:
    """The versions of all API groups. A cluster without any optional API gets only this request. Raises ClusterError."""
    listing = await gateway.request("GET", ApiPath("/apis"))
    return {str(group["name"]): {str(each["version"]) for each in group["versions"]} for group in listing["groups"]}


async def served_gang_schedulers(gateway: Gateway, groups: Sequence[str], versions: Versions) -> tuple[str, ...]:
    """The API groups that serve their PodGroup, in the same order. Raises ClusterError."""
    candidates = [SCHEDULERS[group] for group in groups if SCHEDULERS[group].version in versions.get(group, ())]
    return tuple([each.group for each in candidates if await _serves(gateway, each.group, each.version, gang.PLURAL)])


async def kueue_version(gateway: Gateway) -> str:
    """The version in which Muster uses the Workloads of Kueue. Empty if the cluster serves none. Raises ClusterError."""
    for version in VERSIONS:
        if await _serves(gateway, GROUP, version, PLURAL):
            return version
    return ""


async def positions_version(gateway: Gateway) -> str:
    """The version in which Muster reads the positions of Workloads in their queues. Another server answers for this API. Empty if it is
    down, or there is none."""
    for version in VERSIONS:
        with suppress(ClusterError):
            await gateway.request("GET", api(f"{VISIBILITY_GROUP}/{version}"))
            return version
    return ""


async def serves_node_claims(gateway: Gateway) -> bool:
    """Whether the cluster serves the NodeClaims of Karpenter. Raises ClusterError."""
    return await _serves(gateway, *NODE_CLAIMS)


async def _serves(gateway: Gateway, group: str, version: str, plural: str) -> bool:
    """Whether this version has the resource. A group can have a version without it."""
    try:
        listing = await gateway.request("GET", api(f"{group}/{version}"))
    except NotFoundError:
        return False
    return any(each["name"] == plural for each in listing["resources"])
