"""Defaults for jobs: those of the installation (`jobDefaults`), and those that a TrainingPreset gives to the jobs that name it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from muster.api.base import ApiModel
from muster.api.spec import MAX_ROLES, Resources, RoleKey, Storage

FrameworkName = Annotated[str, StringConstraints(min_length=1, max_length=63)]
ImageName = Annotated[str, StringConstraints(min_length=1, max_length=1024)]

_TEMPLATE = "A PodTemplateSpec for the pods of {}. The template of a job's role overrides it. The training container is called trainer."


class CheckpointDefaults(ApiModel):
    storage: Storage | None = Field(default=None, description="Storage of jobs without `spec.checkpoint.storage`.")


class RoleDefaults(ApiModel):
    """Defaults for one role of a job. A job without this role ignores them."""

    resources: Resources = Field(
        default_factory=Resources,
        description="Compute resources of each trainer container. A resource that the job's role names itself is not changed.",
    )
    template: dict[str, Any] = Field(default_factory=dict, description=_TEMPLATE.format("the role"))


class Defaults(ApiModel):
    """Defaults for the fields that a job does not set."""

    images: dict[FrameworkName, ImageName] = Field(
        default_factory=dict, max_length=16, description="Trainer images by the name of the framework, such as PyTorch."
    )
    template: dict[str, Any] = Field(default_factory=dict, description=_TEMPLATE.format("all roles"))
    roles: dict[RoleKey, RoleDefaults] = Field(
        default_factory=dict, max_length=MAX_ROLES, description="Defaults for single roles by name, such as worker."
    )
    checkpoint: CheckpointDefaults = Field(default_factory=CheckpointDefaults, description="Defaults for checkpoints.")


class PresetMetadata(ApiModel):
    """The part of metav1.ObjectMeta that Muster reads; others pass through."""

    model_config = {**ApiModel.model_config, "extra": "ignore"}
    name: str = Field(min_length=1, max_length=253, description="Name of the preset, which jobs write in spec.preset.")


class TrainingPreset(ApiModel):
    """Defaults for training jobs, by name, in all namespaces."""

    api_version: Literal["muster.dev/v1beta1", "muster.dev/v1alpha1"] = Field(description="muster.dev/v1beta1")
    kind: Literal["TrainingPreset"] = Field(description="TrainingPreset")
    metadata: PresetMetadata = Field(description="Name and the rest of an object's metadata.")
    spec: Defaults = Field(description="What jobs that name the preset get where they set nothing themselves.")
