"""The form of a job's pods: a digest of what they are rendered from. All pods of one world must have the same form, because their processes
must agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from muster.api.spec import TrainingJobSpec
from muster.render.defaults import JobDefaults

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
    "roles": {"__all__": {"replicas"}},
}
"""Fields that may differ between the pods of a world. The operator uses them, or each world gets new values."""


def form_of(spec: TrainingJobSpec, defaults: Sequence[JobDefaults]) -> str:
    """The form of pods of this spec and these defaults, fit for a label. Fields with default values are left out, so that a newer operator
    with more fields gets the same digest. So are images, because a job keeps those of its admission."""
    fields = spec.model_dump(mode="json", exclude=_LEFT_OUT, exclude_defaults=True)
    roles = {name: role for name, role in fields.pop("roles", {}).items() if role}
    installation = {name: value for each in defaults if not each.preset for name, value in each.template.items()}
    others = [[each.template, each.templates] for each in defaults if each.preset or each.templates]
    sources = json.dumps([fields, roles, installation, *others], sort_keys=True)
    return hashlib.sha256(sources.encode()).hexdigest()[:10]
