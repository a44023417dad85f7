"""Reads, checks and renders the job file of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.api.job import TrainingJob


def rendered(path: str, *, namespace: str | None = None, attempt: int = 0) -> tuple[TrainingJob, list[dict[str, Any]]]:
    """The job in the file, in `namespace` where one is given, and its manifests. Raises InvalidJobError with the problems and the file."""
    from muster.admission.read import InvalidJobFileError, read_job
    from muster.api.problems import InvalidJobError
    from muster.render.addresses import ClusterAddresses
    from muster.render.images import default_images
    from muster.render.manifests import render

    job = read_job(path)
    try:
        if namespace is not None:
            job = _moved(job, namespace)
        addresses = ClusterAddresses(job.metadata.name, job.metadata.namespace)
        return job, render(job, attempt=attempt, addresses=addresses, images=default_images())
    except InvalidJobError as error:
        raise InvalidJobFileError(path, error.problems) from error


def _moved(job: TrainingJob, namespace: str) -> TrainingJob:
    from muster.admission.validate import problems
    from muster.api.problems import InvalidJobError

    moved = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    if errors := problems(moved):
        raise InvalidJobError(errors)
    return moved
