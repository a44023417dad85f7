"""Jobs as users of the Python client give them: built in Python, as plain data, or in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.admission.read import InvalidJobFileError, check_job, read_job
from muster.admission.sentences import problem_of
from muster.admission.validate import problems
from muster.api.constants import API_VERSION, KIND
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem

JobInput = TrainingJob | Mapping[str, Any] | str | os.PathLike[str]
"""A job built in Python, the data of a job file, or the path of a job file."""


def job(name: str, *, namespace: str | None = None, labels: Mapping[str, str] | None = None, **spec: Any) -> TrainingJob:
    """A job with this name. `spec` are the fields of muster.TrainingJobSpec, with their names in Python:

        muster.job("digits", strategy="DDP", trainer=muster.Trainer(task="digits"), roles={"worker": muster.Role(replicas=2)})

    Raises InvalidJobError with all problems, each with its field and what to write instead.
    """
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **({"labels": dict(labels)} if labels else {})}
    try:
        built = TrainingJob.model_validate({"metadata": metadata, "spec": spec})
    except ValidationError as error:
        raise InvalidJobError([problem_of(detail) for detail in error.errors(include_url=False)]) from None
    unplain = _unplain(built)
    if faults := [unplain] if unplain else problems(built):
        raise InvalidJobError(faults)
    return built


def checked(job: JobInput) -> tuple[TrainingJob, Path | None]:
    """The job and, if it was given as a path, its file. Raises InvalidJobError with all problems, as `muster validate` shows them."""
    if isinstance(job, TrainingJob):
        return check_job(data_of(job), source=job.metadata.name), None
    if isinstance(job, Mapping):
        return check_job(dict(job), source="the job"), None
    return read_job(Path(job)), Path(job)


def data_of(job: TrainingJob) -> dict[str, Any]:
    """The fields that the user has set, with the names of a job file. Defaults are omitted, so that those of the cluster apply."""
    if problem := _unplain(job):
        raise InvalidJobFileError(job.metadata.name, [problem])
    written = job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True, exclude={"status"})
    return {**written, "apiVersion": API_VERSION, "kind": KIND}


def _unplain(job: TrainingJob) -> Problem | None:
    """The problem of a free field, if its value has no form in JSON. A job file has no such values, but Python has many."""
    free: dict[str, Any] = {"spec.trainer.config": job.spec.trainer.config}
    free |= {f"spec.trainer.env[{at}].valueFrom": each.value_from for at, each in enumerate(job.spec.trainer.env or ())}
    free |= {f"spec.roles.{name}.template": role.template for name, role in job.spec.roles.items()}
    for field, value in free.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            return Problem(field, f"must have plain values only, such as finite numbers and text: {error}")
    return None
