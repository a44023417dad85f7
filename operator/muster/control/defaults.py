"""What an installation gives to jobs that do not say otherwise. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.api.spec import Storage, TrainingJobSpec


@dataclass(frozen=True)
class JobDefaults:
    """`template` is a pod template for every replica, under the job's own; `storage` is for checkpoints."""

    template: Mapping[str, Any] = field(default_factory=dict)
    storage: Storage | None = None

    def applied(self, spec: TrainingJobSpec) -> TrainingJobSpec:
        """The spec with the storage that it leaves open. The template is laid under when pods are rendered."""
        if self.storage is None or spec.checkpoint.storage is not None:
            return spec
        return spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"storage": self.storage})})

    def removed(self, spec: TrainingJobSpec) -> TrainingJobSpec:
        """The spec without storage that is the installation's own."""
        if self.storage is None or spec.checkpoint.storage != self.storage:
            return spec
        return spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"storage": None})})
