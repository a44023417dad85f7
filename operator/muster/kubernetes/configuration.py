"""The operator's configuration file, as the chart writes it, and what its pod tells it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from muster.admission.job_policy import UNLIMITED, JobPolicy
from muster.api.base import ApiModel
from muster.api.constants import CONTROLLER
from muster.api.spec import Storage
from muster.control.defaults import JobDefaults
from muster.render.images import Images, default_images
from muster.strategies.base import Framework

FILE_VARIABLE = "MUSTER_CONFIG"


class ConfigurationError(ValueError):
    """A configuration that cannot be worked with; the message says where and what to write instead."""


class LeaderElection(ApiModel):
    lease_name: str = Field(default="muster", description="Name of the Lease, in the operator's namespace.")
    lease_seconds: int = Field(default=4, ge=2, le=60, description="A standby takes over a lease that is not renewed for so long.")


class Coordination(ApiModel):
    service: str = Field(default="muster-coordination", description="The selector-less Service that leads to the leader.")
    port: int = Field(default=8443, ge=1, le=65535, description="Port at which supervisors report.")
    secret: str = Field(default="muster-coordination", description="The Secret that the operator keeps its certificate in.")


class Port(ApiModel):
    port: int = Field(ge=0, le=65535, description="A port; 0: one that is free.")


class NetworkPolicy(ApiModel):
    enabled: bool = Field(default=False, description="Make a NetworkPolicy for each job.")


class Supervisor(ApiModel):
    image: str | None = Field(default=None, description="The image that brings the supervisor into images of users.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(default=None, description="Its pull policy.")


class CheckpointDefaults(ApiModel):
    storage: Storage | None = Field(default=None, description="For jobs that name none.")


class Defaults(ApiModel):
    template: dict[str, Any] = Field(default_factory=dict, description="A pod template laid over every rendered pod, below the job's own.")
    checkpoint: CheckpointDefaults = Field(default_factory=CheckpointDefaults, description="Where checkpoints live.")


class Configuration(ApiModel):
    """operator.yaml"""

    images: dict[Framework, str] = Field(default_factory=dict, description="Trainer images.")
    controller: str = Field(default=CONTROLLER, min_length=1, max_length=253, description="Only jobs with this spec.managedBy are run.")
    supervisor: Supervisor = Field(default_factory=Supervisor, description="For jobs with images of their own.")
    namespaces: list[str] = Field(default_factory=list, description="Whose jobs are run; empty: all.")
    workers: int = Field(default=32, ge=1, le=1000, description="Jobs reconciled at once.")
    resync_seconds: float = Field(default=300, ge=1, description="Between two looks at everything.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="How much is logged.")
    leader_election: LeaderElection = Field(default_factory=LeaderElection, description="Who works.")
    coordination: Coordination = Field(default_factory=Coordination, description="The channel of supervisors.")
    health: Port = Field(default=Port(port=8080), description="Of /healthz and /readyz.")
    metrics: Port = Field(default=Port(port=9090), description="Of /metrics.")
    network_policy: NetworkPolicy = Field(default_factory=NetworkPolicy, description="For training pods.")
    job_policy: JobPolicy = Field(default=UNLIMITED, description="What jobs may ask for.")
    job_defaults: Defaults = Field(default_factory=Defaults, description="What a job gets where it does not say otherwise.")

    def all_images(self) -> Images:
        ours, supervisor = default_images(), self.supervisor
        return Images({**ours.trainers, **self.images}, supervisor.image or ours.supervisor, supervisor.pull_policy)

    def defaults(self) -> JobDefaults:
        return JobDefaults(self.job_defaults.template, self.job_defaults.checkpoint.storage)


class Place(ApiModel):
    """Where this process runs."""

    pod: str = Field(description="Its pod, or host and process.")
    namespace: str = Field(description="The operator's namespace.")
    address: str = Field(default="", description="Where supervisors reach it; empty: nowhere.")


def read_configuration(environment: Mapping[str, str]) -> Configuration:
    """The file that MUSTER_CONFIG names; the defaults where it names none. Raises ConfigurationError."""
    name = environment.get(FILE_VARIABLE)
    if not name:
        return Configuration()
    try:
        data = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
        return Configuration.model_validate(data or {}, by_alias=True, by_name=False)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{name}: cannot be read: {error}") from error
    except ValidationError as error:
        found = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        raise ConfigurationError(f"{name}: {'; '.join(found)}") from error


def place_of(environment: Mapping[str, str]) -> Place:
    """What the downward API says; on a developer's machine, what stands for it."""
    pod = environment.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
    return Place(pod=pod, namespace=environment.get("POD_NAMESPACE") or "default", address=environment.get("POD_IP", ""))
