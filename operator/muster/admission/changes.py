"""Rules for changes of an existing job, for Muster here and for the CRD (`cel.py`). A job without running pods may be corrected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from muster.admission.conditions import value_at
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.spec import WORKER, Role

NEVER = ("strategy", "managedBy")
"""Fields of the spec that can never change."""
ROLE_NAMES = "roles.*"
REPLICAS = "roles.*.replicas"
"""Fields that cannot change, unless the job is elastic."""
FIXED_WHILE_RUNNING: Mapping[str, str] = {
    "preset": "",
    "trainer": "",
    "options": "",
    "batch": "",
    "inputs": "",
    "communication": "",
    "checkpoint.storage": "",
    "checkpoint.name": "",
    ROLE_NAMES: "",
    "roles.*.resources": "",
    "roles.*.processesPerReplica": "",
    "roles.*.resourceClaims": "",
    "roles.*.template": "",
    REPLICAS: ", or write elastic",
}
"""Fields of the spec that can change only if the job is suspended before the change or by it, because running pods were rendered from them.
`*` means each role. The value is added to the message.

Queueing systems add node selectors to templates in the update that ends a suspension, and remove them in the one that begins it. Both are
allowed."""
REMEDY = "set suspend: true first, or in the same change"


def changes(old: TrainingJob, new: TrainingJob) -> list[Problem]:
    """The problems of a change. Empty if the change can be accepted."""
    before, after = _document(old), _document(new)
    problems = [
        Problem(f"spec.{name}", f"cannot be changed from {before[name]}: delete the job and apply it again")
        for name in NEVER
        if before[name] != after[name]
    ]
    if not old.spec.suspend and not new.spec.suspend:
        for field, addition in FIXED_WHILE_RUNNING.items():
            for path in _changed(before, after, field):
                problems.append(Problem(f"spec.{path}", f"cannot be changed while the job runs: {REMEDY}{addition}"))
    return problems


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], field: str) -> Iterator[str]:
    """The paths of the changed fields."""
    if field == ROLE_NAMES:
        if before["roles"].keys() != after["roles"].keys():
            yield "roles"
    elif field != REPLICAS or "elastic" not in after:
        roles = before["roles"].keys() & after["roles"].keys() if "*" in field else {""}
        for path in (field.replace("*", role) for role in sorted(roles)):
            if value_at(before, path) != value_at(after, path):
                yield path


def _document(job: TrainingJob) -> dict[str, Any]:
    """The spec as on the wire, with the one worker that every job has by default."""
    spec = job.spec.wire()
    return {**spec, "roles": {WORKER: Role().wire(), **spec["roles"]}}
