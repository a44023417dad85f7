"""Reads the snapshot of a job for `muster explain` and `muster debug-dump`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TypeVar

from muster.api.constants import GROUP, KIND, VERSION
from muster.client import errors
from muster.client.connection import Connection
from muster.client.jobs import Jobs
from muster.control.cluster import Object
from muster.explain.snapshot import Snapshot

Result = TypeVar("Result")


async def snapshot_of(connection: Connection, name: str) -> Snapshot:
    """The job and the objects around it. The snapshot names the objects that the user may not read. Raises NoJobError."""
    jobs = Jobs(connection)
    job = await jobs.get(name)
    core, unreadable = f"/api/v1/namespaces/{connection.namespace}", list[str]()

    async def allowed(label: str, reading: Awaitable[Result]) -> Result | None:
        try:
            return await reading
        except (errors.NoRightsError, errors.NotFoundError, errors.NotInstalledError):
            unreadable.append(label)
            return None

    async def listed(label: str, path: str) -> list[Object] | None:
        return await allowed(label, connection.items(path))

    policies = f"/apis/networking.k8s.io/v1/namespaces/{connection.namespace}/networkpolicies"
    lists = await asyncio.gather(
        allowed("pods", jobs.pods(job)),
        listed("events", f"{core}/events"),
        listed("nodes", "/api/v1/nodes"),
        listed("persistentvolumeclaims", f"{core}/persistentvolumeclaims"),
        listed("resourcequotas", f"{core}/resourcequotas"),
        listed("networkpolicies", policies),
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
        spec_fields=await allowed("the definition of TrainingJobs", spec_fields(connection)),
        unreadable=tuple(sorted(unreadable)),
    )


async def spec_fields(connection: Connection) -> frozenset[str] | None:
    """The fields of spec in the definition that the cluster serves. Every user that is logged in may read them."""
    document = await connection.get(f"/openapi/v3/apis/{GROUP}/{VERSION}")
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
