"""The CEL rules for changes of a job, for a ValidatingAdmissionPolicy of the chart.

A policy for the resource `trainingjobs` does not match its subresources, so the API server does not evaluate these rules when the operator
writes a status. It evaluates all rules of the definition at each write. `cel.py` has the one rule for changes that `kubectl scale` needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.admission.changes import FIXED_WHILE_RUNNING, REMEDY, REPLICAS, ROLE_NAMES
from muster.admission.conditions import literals
from muster.api.status import Phase

DEFAULT_FILE = Path("charts") / "muster" / "files" / "changes.yaml"
ENDED = [phase.value for phase in Phase if phase.final]
_IDLE = [Phase.SUSPENDED.value, *ENDED]
"""Phases of a started job in which no replica trains."""
HAS_ENDED = "cannot be changed because the job has ended; delete it and apply it again, or apply it under another name"
_ROLES = ("object.spec.roles", "oldObject.spec.roles")


def change_policy() -> dict[str, Any]:
    """What the policy's spec has besides its constraints."""
    same = {field: _same(field) for field in FIXED_WHILE_RUNNING if field != REPLICAS}  # the rule of the definition covers replicas
    phase = "oldObject.?status.?phase.orValue('')"
    may_change = (
        "object.spec.?suspend.orValue(false) || oldObject.spec.?suspend.orValue(false) || "
        f"!has(oldObject.status) || !has(oldObject.status.admittedTime) || {phase} in {literals(_IDLE)}"
    )
    return {
        "matchConditions": [{"name": "changes-the-spec", "expression": "object.spec != oldObject.spec"}],
        "variables": [
            {"name": "ended", "expression": f"{phase} in {literals(ENDED)}"},
            {"name": "mayChange", "expression": may_change},
        ],
        "validations": [
            *(
                {"expression": f"variables.mayChange || {condition}", "message": f"{_path(field)}: {while_it_runs(field)}"}
                for field, condition in same.items()
            ),
            {"expression": f"!variables.ended || ({' && '.join(same.values())})", "message": f"spec: {HAS_ENDED}"},
        ],
    }


def while_it_runs(field: str) -> str:
    """The message about a field of `FIXED_WHILE_RUNNING` that was changed while the job runs."""
    return f"cannot be changed while the job runs: {REMEDY}{FIXED_WHILE_RUNNING[field]}"


def _path(field: str) -> str:
    return f"spec.{field.removesuffix('.*')}"


def _same(field: str) -> str:
    """The condition that a field of the spec is unchanged, whether it is present or not."""
    now, before = _ROLES
    if field == ROLE_NAMES:
        return f"({now}.all(name, name in {before}) && {before}.all(name, name in {now}))"
    if field.startswith(f"{ROLE_NAMES}."):
        inner = field.removeprefix(f"{ROLE_NAMES}.")
        return f"{now}.all(name, !(name in {before}) || {now}[name].?{inner} == {before}[name].?{inner})"
    optional = ".?".join(field.split("."))
    return f"object.spec.?{optional} == oldObject.spec.?{optional}"
