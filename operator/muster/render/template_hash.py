"""Template hashes: digests of the input from which objects are rendered, in their label `muster.dev/template-hash`. All pods of one world
have the same one, because their processes must agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from muster.api.constants import GROUP, TEMPLATE_HASH_LABEL
from muster.api.spec import TrainingJobSpec
from muster.render.defaults import JobDefaults
from muster.render.trainer import memory_of
from muster.strategies.registry import strategy_of

_FORMER_LABEL = f"{GROUP}/form"
"""The label on objects of operators up to November 2026. Their jobs go on when the operator is upgraded."""
_OMITTED: Any = {
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


def template_hash_of(spec: TrainingJobSpec, defaults: Sequence[JobDefaults]) -> str:
    """The template hash of pods of this spec and these defaults. Fields with default values are omitted, so that a newer operator with more
    fields gets the same digest. Images are omitted too, because a job uses the images of its admission."""
    fields = spec.model_dump(mode="json", exclude=_OMITTED, exclude_defaults=True)
    memory = memory_of(spec, strategy_of(spec.strategy))
    if memory and memory.auto:
        fields["snapshots"] = "Auto"  # an operator of an older version starts replicas without them
    roles = {name: role for name, role in fields.pop("roles", {}).items() if role}
    installation = {name: value for each in defaults if not each.preset for name, value in each.template.items()}
    others = [[each.template, each.templates] for each in defaults if each.preset or each.templates]
    return digest_of([fields, roles, installation, *others])


def digest_of(value: Any) -> str:
    """A digest of a JSON value, fit for a label."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def is_outdated(existing: dict[str, Any], desired: dict[str, Any]) -> bool:
    """Whether an object was rendered from another input. Compares only digests, because the API server adds fields to the object."""
    return template_hash_in(existing["metadata"]) != template_hash_in(desired["metadata"])


def template_hash_in(metadata: Mapping[str, Any]) -> str:
    """The template hash of an object, from its label."""
    labels = metadata.get("labels") or {}
    return labels.get(TEMPLATE_HASH_LABEL) or labels.get(_FORMER_LABEL) or ""
