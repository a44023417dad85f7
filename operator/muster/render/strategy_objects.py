"""The ConfigMaps and Secrets of a strategy, which its pods mount."""

from __future__ import annotations

from typing import Any

from muster.api.job import TrainingJob
from muster.render.pods import labels_of, object_name, owner_of
from muster.strategies.base import Addresses, WorldPlan
from muster.strategies.registry import strategy_of


def render_objects(job: TrainingJob, plan: WorldPlan, addresses: Addresses) -> list[dict[str, Any]]:
    """The manifests of the ConfigMaps and Secrets, for a job whose whole world is `plan`."""
    objects = strategy_of(job.spec.strategy).objects
    owner = owner_of(job)
    return [
        {
            "apiVersion": "v1",
            "kind": extra.kind,
            "metadata": {
                "name": object_name(job, extra.name),
                "namespace": job.metadata.namespace,
                "labels": labels_of(job),
                **({"ownerReferences": [owner]} if owner else {}),
            },
            "data" if extra.kind == "ConfigMap" else "stringData": dict(extra.data()),
        }
        for extra in (objects(job.spec, plan, addresses) if objects else ())
    ]
