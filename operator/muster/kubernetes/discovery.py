"""Finds out which APIs of schedulers and queues the cluster serves."""

from __future__ import annotations

from collections.abc import Sequence

from muster.control.cluster import Object
from muster.control.errors import ClusterError, NotFoundError
from muster.kubernetes.gateway import Gateway
from muster.render import kueue
from muster.render.gang import PLURAL, SCHEDULERS, GangScheduler


async def served_gang_schedulers(gateway: Gateway, groups: Sequence[str]) -> tuple[str, ...]:
    """The API groups that serve their PodGroup, in the same order. Raises ClusterError.

    A cluster without any of these groups gets one request.
    """
    if not groups:
        return ()
    listing = await gateway.request("GET", "/apis")
    versions = {str(each["name"]): _versions(each) for each in listing["groups"]}
    candidates = [SCHEDULERS[group] for group in groups if SCHEDULERS[group].version in versions.get(group, ())]
    return tuple([each.group for each in candidates if await _serves_pod_groups(gateway, each)])


async def serves_kueue(gateway: Gateway) -> bool:
    """Whether the cluster serves the Workloads of Kueue. Raises ClusterError."""
    try:
        listing = await gateway.request("GET", f"/apis/{kueue.GROUP}/{kueue.VERSION}")
    except NotFoundError:
        return False
    return any(each["name"] == kueue.PLURAL for each in listing["resources"])


async def serves_positions(gateway: Gateway) -> bool:
    """Whether the cluster serves the positions of Workloads in their queues. Another server answers for this API, which may be down."""
    try:
        await gateway.request("GET", f"/apis/{kueue.VISIBILITY}")
    except ClusterError:
        return False
    return True


async def _serves_pod_groups(gateway: Gateway, scheduler: GangScheduler) -> bool:
    """Whether this version has the resource. A group can have a version without it."""
    try:
        listing = await gateway.request("GET", f"/apis/{scheduler.group}/{scheduler.version}")
    except NotFoundError:  # it has gone since
        return False
    return any(each["name"] == PLURAL for each in listing["resources"])


def _versions(group: Object) -> set[str]:
    return {str(each["version"]) for each in group["versions"]}
