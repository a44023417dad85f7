"""The operator's configuration: the file that the chart writes, and the environment of its pod."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from muster.admission.job_policy import UNLIMITED, JobPolicy
from muster.api.base import ApiModel
from muster.api.capacity import DEFAULT_CLASSES, MAX_CLASSES, CapacityClass, Classes, ClassName
from muster.api.constants import CONTROLLER
from muster.api.preset import Defaults
from muster.api.status import Meaning
from muster.control.node_signals import KNOWN, Kind, NodeSignal
from muster.render.defaults import JobDefaults
from muster.render.images import Images, default_images

FILE_VARIABLE = "MUSTER_CONFIG"
GangGroup = Literal["scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"]


class ConfigurationError(ValueError):
    """An invalid configuration. The message names the field and what to write instead."""


class LeaderElection(ApiModel):
    lease_name: str = Field(default="muster", description="Name of the Lease, in the operator's namespace.")
    lease_seconds: int = Field(default=4, ge=2, le=60, description="Seconds without a renewal after which a standby operator takes over.")


class Coordination(ApiModel):
    service: str = Field(default="muster-coordination", description="Name of the Service, without a selector, that points at the leader.")
    port: int = Field(default=8443, ge=1, le=65535, description="Port that supervisors report to.")
    secret: str = Field(default="muster-coordination", description="Name of the Secret that holds the certificate of the channel.")


class Port(ApiModel):
    port: int = Field(ge=0, le=65535, description="Port. 0 selects a free one.")


class NetworkPolicy(ApiModel):
    enabled: bool = Field(default=False, description="Whether the operator creates a NetworkPolicy for each job.")


class GangScheduling(ApiModel):
    api_groups: list[GangGroup] = Field(
        default=["scheduling.k8s.io"],
        max_length=10,
        description="API groups whose PodGroup jobs may use, if the cluster serves it. The first one that is served is used.",
    )


class Kueue(ApiModel):
    enabled: bool = Field(default=False, description="Whether jobs that name a queue wait in this LocalQueue of Kueue.")


class Queueing(ApiModel):
    kueue: Kueue = Field(default_factory=Kueue, description="Queues of Kueue.")


class Signal(ApiModel):
    """A signal of a node besides the known ones. Exactly one of taint, label and condition is set."""

    taint: str | None = Field(default=None, min_length=1, max_length=317, description="Key of a taint.")
    label: str | None = Field(default=None, min_length=1, max_length=317, description="Key of a label.")
    condition: str | None = Field(default=None, min_length=1, max_length=317, description="Type of a condition that is True.")
    values: list[str] = Field(
        default_factory=list,
        max_length=50,
        description="Values of the taint or label, or reasons of the condition, that count. Empty: any.",
    )
    meaning: Meaning = Field(
        default=Meaning.GOES, description="Goes: the node goes. TakesNoPods: it takes no new pods, and may stay, so jobs only save."
    )
    seconds: int | None = Field(default=None, ge=0, le=7 * 86400, description="How long after the signal the node goes. Default: unknown.")

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if sum(each is not None for each in (self.taint, self.label, self.condition)) != 1:
            raise ValueError("write exactly one of taint, label and condition")
        return self

    def known(self) -> NodeSignal:
        places = ((Kind.TAINT, self.taint), (Kind.LABEL, self.label), (Kind.CONDITION, self.condition))
        kind, name = next((kind, name) for kind, name in places if name is not None)
        return NodeSignal(kind, name, self.meaning, frozenset(self.values), self.seconds)


class NodeNotices(ApiModel):
    enabled: bool = Field(default=True, description="Whether the operator watches nodes, so that jobs leave a node before it goes.")
    signals: list[Signal] = Field(default_factory=list, max_length=100, description="Signals besides the known ones.")
    node_claims: bool = Field(default=False, description="Whether jobs leave a node of Karpenter before it expires.")

    def all_signals(self) -> tuple[NodeSignal, ...]:
        return (*(each.known() for each in self.signals), *KNOWN)


class WebhookTarget(ApiModel):
    url: str = Field(
        default="",
        max_length=2048,
        pattern=r"^(https?://\S+)?$",
        description="URL that is notified when a job succeeds, fails, is invalid or hangs. Empty: none.",
    )


class Capacity(ApiModel):
    enabled: bool = Field(default=True, description="Whether jobs may choose classes of nodes. The operator then watches nodes.")
    classes: dict[ClassName, CapacityClass] = Field(
        default=dict(DEFAULT_CLASSES), max_length=MAX_CLASSES, description="Classes of nodes by name, such as spot."
    )

    @property
    def known(self) -> Classes:
        """The classes that jobs may name."""
        return self.classes if self.enabled else {}


class Inputs(ApiModel):
    node_cache: str | None = Field(
        default=None,
        pattern=r"^/.*[^/]$",
        max_length=1024,
        description="Folder of every node in which the pods of a namespace share inputs. Without it, each pod has its own copy.",
    )


class Supervisor(ApiModel):
    image: str | None = Field(default=None, description="Image that adds the supervisor to the images of users.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(default=None, description="Pull policy of that image.")


class Configuration(ApiModel):
    """operator.yaml"""

    images: dict[str, str] = Field(default_factory=dict, description="Trainer images, by the name of the framework.")
    controller: str = Field(
        default=CONTROLLER, min_length=1, max_length=253, description="The operator manages only jobs with this `spec.managedBy`."
    )
    supervisor: Supervisor = Field(default_factory=Supervisor, description="Supervisor of jobs with their own images.")
    inputs: Inputs = Field(default_factory=Inputs, description="Where inputs of jobs are stored.")
    namespaces: list[str] = Field(default_factory=list, description="Namespaces whose jobs the operator manages. An empty list means all.")
    workers: int = Field(default=32, ge=1, le=1000, description="Number of jobs that are reconciled concurrently.")
    resync_seconds: float = Field(default=300, ge=1, description="Seconds between two lists of all objects.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level of log records that are written."
    )
    leader_election: LeaderElection = Field(default_factory=LeaderElection, description="Settings of the leader election.")
    coordination: Coordination = Field(default_factory=Coordination, description="Channel through which supervisors report.")
    health: Port = Field(default=Port(port=8080), description="Port of /healthz and /readyz.")
    metrics: Port = Field(default=Port(port=9090), description="Port of /metrics.")
    network_policy: NetworkPolicy = Field(default_factory=NetworkPolicy, description="Network policies of jobs.")
    gang_scheduling: GangScheduling = Field(default_factory=GangScheduling, description="Schedulers that place all pods of a job or none.")
    queueing: Queueing = Field(default_factory=Queueing, description="Queues that jobs may name.")
    node_notices: NodeNotices = Field(default_factory=NodeNotices, description="Notices of nodes that go.")
    webhook: WebhookTarget = Field(default_factory=WebhookTarget, description="What is notified when a job ends, hangs or waits for long.")
    capacity: Capacity = Field(default_factory=Capacity, description="Classes of nodes, such as spot and on-demand.")
    job_policy: JobPolicy = Field(default=UNLIMITED, description="Limits on what jobs may request.")
    job_defaults: Defaults = Field(default_factory=Defaults, description="Defaults for fields that a job does not set.")

    @property
    def reads_nodes(self) -> bool:
        return self.node_notices.enabled or bool(self.capacity.known)

    def all_images(self) -> Images:
        ours, supervisor = default_images(), self.supervisor
        return Images({**ours.trainers, **self.images}, supervisor.image or ours.supervisor, supervisor.pull_policy)

    def defaults(self) -> JobDefaults:
        return replace(JobDefaults.of(self.job_defaults), node_cache=self.inputs.node_cache, classes=self.capacity.known)


class OperatorPod(ApiModel):
    """The pod that this process runs in."""

    name: str = Field(description="Name of the pod. Outside a cluster, host name and process id.")
    namespace: str = Field(description="Namespace of the operator.")
    address: str = Field(default="", description="IP address that supervisors connect to. Empty if there is none.")


def read_configuration(environment: Mapping[str, str]) -> Configuration:
    """Reads the file that MUSTER_CONFIG names. Returns the defaults if it names none. Raises ConfigurationError."""
    name = environment.get(FILE_VARIABLE)
    if not name:
        return Configuration()
    try:
        data = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
        return Configuration.model_validate(data or {}, by_alias=True, by_name=False)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{name}: cannot be read: {error}") from error
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        raise ConfigurationError(f"{name}: {'; '.join(problems)}") from error


def operator_pod(environment: Mapping[str, str]) -> OperatorPod:
    """The pod, from the downward API. Outside a cluster, from the machine."""
    name = environment.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
    return OperatorPod(name=name, namespace=environment.get("POD_NAMESPACE") or "default", address=environment.get("POD_IP", ""))
