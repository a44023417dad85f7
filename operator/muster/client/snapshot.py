"""Reads the snapshot of a job for `muster explain` and `muster debug-dump`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeVar

from muster.api.constants import API_VERSION, KIND, MULTIKUEUE
from muster.client import cuts, errors
from muster.client.connection import Connection
from muster.client.jobs import Jobs
from muster.explain.copies import WORKLOADS
from muster.explain.snapshot import Snapshot
from muster.kubernetes.api_paths import ApiPath, collection
from muster.kubernetes.objects import Object
from muster.render.kueue_versions import GROUP, PLURAL, VERSIONS, api_version

Result = TypeVar("Result")


async def snapshot_of(connection: Connection, name: str) -> Snapshot:
    """The job and the objects around it. The snapshot names the objects that the user may not read. Raises NoJobError."""
    jobs = Jobs(connection)
    job = await jobs.get(name, bounded=True)
    unreadable = list[str]()

    async def allowed(label: str, reading: Awaitable[Result]) -> Result | None:
        try:
            return await reading
        except (errors.NoRightsError, errors.NotFoundError, errors.NotInstalledError, errors.TooLargeError):
            unreadable.append(label)
            return None

    async def listed(path: ApiPath, cut: Callable[[Object], Object] = cuts.plain) -> list[Object] | None:
        return await allowed(path.rpartition("/")[2], connection.items(path, cut))

    lists = await asyncio.gather(
        allowed("pods", jobs.pods(job)),
        listed(connection.path("v1", "events")),
        listed(collection("v1", "nodes"), cuts.node),
        listed(connection.path("v1", "persistentvolumeclaims")),
        listed(connection.path("v1", "resourcequotas")),
        listed(connection.path("networking.k8s.io/v1", "networkpolicies")),
    )
    pods, events = lists[0] or [], lists[1] or []
    uids = {job["metadata"]["uid"], *(pod["metadata"]["uid"] for pod in pods)}
    return Snapshot(
        now=datetime.now(UTC),
        job=job,
        pods=tuple(pods),
        events=tuple(event for event in events if _concerns(event, uids)),
        nodes=_frozen(lists[2]),
        claims=_frozen(lists[3]),
        quotas=_frozen(lists[4]),
        policies=_frozen(lists[5]),
        workload=await allowed(WORKLOADS, workload_of(connection, name)) if job["spec"].get("managedBy") == MULTIKUEUE else None,
        spec_fields=await allowed("the definition of TrainingJobs", spec_fields(connection)),
        unreadable=tuple(sorted(unreadable)),
    )


async def workload_of(connection: Connection, name: str) -> Object | None:
    """The Workload of a job in Kueue. None if there is none, and if the cluster has no Kueue that Muster can use."""
    with suppress(errors.NotFoundError, errors.NotInstalledError):
        served = {each.get("version") for each in (await connection.get(ApiPath(f"/apis/{GROUP}"))).get("versions") or ()}
        version = next((each for each in VERSIONS if each in served), None)
        return await connection.get(connection.path(api_version(version), PLURAL, name)) if version else None
    return None


async def spec_fields(connection: Connection) -> frozenset[str] | None:
    """The fields of spec in the definition that the cluster serves. Every user that is logged in may read them."""
    document = await connection.get(ApiPath(f"/openapi/v3/apis/{API_VERSION}"))
    schemas = (document.get("components") or {}).get("schemas") or {}
    for schema in schemas.values():
        kinds = schema.get("x-kubernetes-group-version-kind") or ()
        if any(each.get("kind") == KIND for each in kinds):
            return frozenset(schema["properties"]["spec"]["properties"])
    return None


def _concerns(event: Object, uids: set[str]) -> bool:
    """Whether an Event is about an object with one of these uids, or about a claim."""
    about = event.get("involvedObject") or {}
    return about.get("uid") in uids or about.get("kind") == "PersistentVolumeClaim"


def _frozen(objects: list[Object] | None) -> tuple[Object, ...] | None:
    return None if objects is None else tuple(objects)
