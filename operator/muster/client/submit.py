"""Submits a job, with its code."""

from __future__ import annotations

from typing import Any

from muster.api.constants import API_VERSION, KIND
from muster.api.job import TrainingJob
from muster.client import errors
from muster.client.code import Code, config_map_of
from muster.client.connection import Connection
from muster.client.jobs import Jobs
from muster.kubernetes.objects import Object


async def submit(connection: Connection, job: TrainingJob, *, code: Code | None = None, dry_run: bool = False) -> Object:
    """Creates the job, and the ConfigMap with its code, in place of the one that the job names. The ConfigMap goes with the job, which
    owns it. With `dry_run`, the API server checks the job and creates nothing. Raises a ClientError."""
    jobs = Jobs(connection)
    manifest = _manifest(job, connection.namespace)
    config_map = config_map_of(code, job=job.metadata.name, namespace=connection.namespace) if code else None
    if config_map is not None:
        manifest["spec"]["trainer"]["code"] = {"configMap": {"name": config_map["metadata"]["name"]}}
    try:
        created = await jobs.create(manifest, dry_run=dry_run)
    except errors.ConflictError as error:
        name = job.metadata.name
        raise errors.ConflictError(
            f"a job {name} exists in namespace {connection.namespace}: delete it (muster delete {name}), restart it, or choose another name"
        ) from error
    if config_map is not None and not dry_run:
        await _create_code(connection, config_map, owner=created)
    return created


async def _create_code(connection: Connection, config_map: Object, *, owner: Object) -> None:
    """Creates the ConfigMap, for which the pods wait. If that fails, deletes the job again."""
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    config_map["metadata"]["ownerReferences"] = [reference]
    folder = connection.path("v1", "configmaps")
    try:
        try:
            await connection.create(folder, config_map)
        except errors.ConflictError:  # of an earlier job of this name, which the garbage collector may be about to remove
            await connection.delete(connection.path("v1", "configmaps", config_map["metadata"]["name"]))
            await connection.create(folder, config_map)
    except errors.ClientError:
        await Jobs(connection).delete(owner["metadata"]["name"], uid=owner["metadata"]["uid"])
        raise


def _manifest(job: TrainingJob, namespace: str) -> dict[str, Any]:
    """The job as its file has it, without defaults, so that the chart's defaults and later ones apply."""
    written = job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
    return {**written, "apiVersion": API_VERSION, "kind": KIND, "metadata": {**written["metadata"], "namespace": namespace}}
