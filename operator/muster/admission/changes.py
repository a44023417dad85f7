"""What may change in a job that exists. The rules of the CRD say so too; one of which nothing runs may be corrected."""

from __future__ import annotations

from collections.abc import Iterable

from muster.api.base import ApiModel
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.spec import Role, RoleName, TrainingJobSpec

NEVER = ("strategy", "managedBy")
"""Fields of the spec that are fixed for good: they are what the job is, and whose."""
WHILE_RUNNING = ("trainer", "options", "batch", "communication", "checkpoint.storage", "checkpoint.name")
"""Fields that are fixed unless the job is suspended, before the change or by it: what runs was made from them."""


def changes(old: TrainingJob, new: TrainingJob) -> list[Problem]:
    """What the new version changes and may not; empty: the change can be accepted.

    Roles are fixed like WHILE_RUNNING, except for the number of workers of an elastic job. Queueing systems lay node selectors into
    templates in the update that ends a suspension, and take them out in the one that begins it: both are allowed.
    """
    return [*_fixed(old.spec, new.spec), *([] if old.spec.suspend or new.spec.suspend else _while_running(old.spec, new.spec))]


def _fixed(old: TrainingJobSpec, new: TrainingJobSpec) -> Iterable[Problem]:
    for field in NEVER:
        was = _at(old, field)
        if was != _at(new, field):
            yield Problem(f"spec.{field}", f"cannot be changed from {was}: delete the job and apply it anew")


def _while_running(old: TrainingJobSpec, new: TrainingJobSpec) -> Iterable[Problem]:
    remedy = "set suspend: true first, or in the same change"
    for field in WHILE_RUNNING:
        if _at(old, field) != _at(new, field):
            yield Problem(f"spec.{field}", f"cannot be changed while the job runs: {remedy}")
    before, after = _roles(old), _roles(new)
    for name in dict.fromkeys((*before, *after)):
        path = f"spec.roles.{name.value}"
        if (name in before) != (name in after):
            yield Problem(path, f"cannot be added or removed while the job runs: {remedy}")
            continue
        was, now = before[name], after[name]
        for field in ("resources", "processes_per_replica", "template"):
            if getattr(was, field) != getattr(now, field):
                alias = type(was).model_fields[field].alias or field
                yield Problem(f"{path}.{alias}", f"cannot be changed while the job runs: {remedy}")
        if was.replicas != now.replicas and not (name is RoleName.WORKER and new.elastic is not None):
            elastic = ", or write spec.elastic" if name is RoleName.WORKER else ""
            yield Problem(f"{path}.replicas", f"cannot be changed while the job runs: {remedy}{elastic}")


def _roles(spec: TrainingJobSpec) -> dict[RoleName, Role]:
    """The roles, with the one worker that every job has by default."""
    return {RoleName.WORKER: Role(), **spec.roles.named()}


def _at(spec: TrainingJobSpec, field: str) -> object:
    """The value of a field named as on the wire, such as checkpoint.storage."""
    value: object = spec
    for part in field.split("."):
        assert isinstance(value, ApiModel)
        names = {info.alias or name: name for name, info in type(value).model_fields.items()}
        value = getattr(value, names[part])
    return value
