"""Objects that belong to a job and have its name."""

from __future__ import annotations

from muster.api.job import TrainingJob
from muster.control.cluster import Cluster
from muster.kubernetes.errors import AlreadyExistsError, ConflictError, RefusedError
from muster.kubernetes.objects import Object, owner_of


async def ensured(cluster: Cluster, job: TrainingJob, manifest: Object) -> Object:
    """Creates the object unless it exists, and returns it as it is. Raises RefusedError if it does not belong to the job."""
    try:
        existing = await cluster.create(manifest)
    except AlreadyExistsError:
        existing = await cluster.read(manifest)
    if owner_of(existing) != job.metadata.uid:
        label = f"{manifest['kind']} {manifest['metadata']['name']}"
        if "deletionTimestamp" in existing["metadata"] or owner_of(existing):
            raise ConflictError(f"{label} of an earlier job of this name is not gone yet")
        raise RefusedError(f"a {label} exists and does not belong to this job: remove it, or give the job another name")
    return existing
