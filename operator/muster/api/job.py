"""The TrainingJob object itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from muster.api.base import ApiModel, Time
from muster.api.spec import TrainingJobSpec
from muster.api.status import TrainingJobStatus


class Metadata(ApiModel):
    """The parts of metav1.ObjectMeta that Muster reads; others pass through."""

    model_config = {**ApiModel.model_config, "extra": "allow"}
    name: str = Field(description="Name of the job: a DNS label of at most 44 characters, so that pod names fit too.")
    namespace: str = Field(default="default", description="Namespace of the job.")
    uid: str = Field(default="", description="Unique ID of the object.")
    generation: int = Field(default=1, ge=0, description="Grows with every change of the spec.")
    creation_timestamp: Time | None = Field(default=None, description="When the job was created.")
    deletion_timestamp: Time | None = Field(default=None, description="When the deletion of the job was requested.")
    finalizers: list[str] = Field(default_factory=list, description="Tasks that must end before a deleted job is removed.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")


class TrainingJob(ApiModel):
    """A distributed training job."""

    api_version: Literal["muster.dev/v1beta1", "muster.dev/v1alpha1"] = Field(
        default="muster.dev/v1beta1", description="muster.dev/v1beta1"
    )
    kind: Literal["TrainingJob"] = Field(default="TrainingJob", description="TrainingJob")
    metadata: Metadata = Field(description="Name and the rest of an object's metadata.")
    spec: TrainingJobSpec = Field(description="The desired training.")
    status: TrainingJobStatus = Field(default_factory=TrainingJobStatus, description="The observed state.")

    @property
    def key(self) -> str:
        """namespace/name"""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def with_status(self, status: TrainingJobStatus) -> TrainingJob:
        return self.model_copy(update={"status": status})

    def manifest(self) -> dict[str, Any]:
        """The object without its status, as a user would apply it."""
        whole = self.wire()
        whole.pop("status", None)
        return whole
