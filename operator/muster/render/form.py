"""What pods of a job are made of, as a digest. Processes of one world must agree on what they do, so its pods must have the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from muster.api.spec import Roles, TrainingJobSpec

_LEFT_OUT: Any = {
    "elastic": True,
    "recovery": True,
    "scheduling": True,
    "suspend": True,
    "managed_by": True,
    "startup_deadline_seconds": True,
    "active_deadline_seconds": True,
    "ttl_seconds_after_finished": True,
    "clean_pod_policy": True,
    "roles": {name: {"replicas"} for name in Roles.model_fields},
}
"""What may differ between the pods of a world: it is the operator's, or is told anew with each world."""


def form_of(spec: TrainingJobSpec, defaults: Mapping[str, Any]) -> str:
    """Of the spec, and of the installation's pod template; fit for a label. What has its default is left out, so that a newer operator
    with more fields finds the same."""
    said = spec.model_dump(mode="json", exclude=_LEFT_OUT, exclude_defaults=True)
    roles = {name: role for name, role in said.pop("roles", {}).items() if role}
    made_of = json.dumps([said, roles, dict(defaults)], sort_keys=True)
    return hashlib.sha256(made_of.encode()).hexdigest()[:10]
