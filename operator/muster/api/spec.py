"""The spec of a TrainingJob, which users write.

Defaults that are constants are here and in the CRD. Defaults that depend on other fields are computed where they are needed, and are
never written back into the spec.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel

from muster.api.base import ApiModel
from muster.api.capacity import MAX_CLASSES, ClassName
from muster.api.quantity import Quantity
from muster_contract import options
from muster_contract.batch import LearningRateScaling
from muster_contract.config import COMMON_KEYS
from muster_contract.inputs import MAX_INPUTS, MAX_SOURCE
from muster_contract.options import MAX_DEVICE_NAME, MAX_REPLICAS
from muster_contract.wire import decode, fields_of

DISABLED_NEEDS_COMMAND = "Disabled supports only command: write command, or supervisor: Auto"
"""The message for `trainer.supervisor`. Both the checks and the renderer use it."""

MAX_GRACE_SECONDS = 86400

MAX_SAVE_SECONDS = 7 * 86400
SAVE_POLICIES = ("Auto", "Continuous")


def _save_interval(value: Any) -> Any:
    if value in SAVE_POLICIES or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SAVE_SECONDS):
        return value
    raise ValueError(f"must be a whole number from 1 to {MAX_SAVE_SECONDS}, or Auto, or Continuous")


SaveInterval = Annotated[
    int | Literal["Auto", "Continuous"],
    BeforeValidator(_save_interval),
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "minimum": 1, "maximum": MAX_SAVE_SECONDS, "pattern": f"^({'|'.join(SAVE_POLICIES)})$"}
    ),
]
"""Seconds between saves, or how the trainer chooses them."""

Word = Annotated[str, StringConstraints(max_length=4096)]
ModuleName = Annotated[str, StringConstraints(min_length=1, max_length=253)]
DeviceName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_DEVICE_NAME)]


RoleName = str
"""The name of a group of identical pods of a job."""
PodLabels = tuple[RoleName, int, int]
"""Role, index and attempt of a pod, as in its labels."""
ROLE_NAME = r"[a-z][a-z0-9]{0,11}"
"""Has no hyphen. Otherwise role `b-c` of job `a` and role `c` of job `a-b` would have pods of the same name."""
ROLE_NAME_MESSAGE = "at most 12 lower-case letters and digits, beginning with a letter"
RoleKey = Annotated[str, StringConstraints(max_length=12, pattern=f"^{ROLE_NAME}$")]
MAX_ROLES = 8
MAX_RESOURCE_CLAIMS = 8
MAX_ENV = 128
MAX_PATH = 4096
MAX_WHOLE = 2**32 - 1
"""The largest whole number of `trainer.settings`. NumPy takes no larger seed."""
WORKER = "worker"
PS = "ps"
CHIEF = "chief"
EVALUATOR = "evaluator"

StrategyName = str
"""How the training is distributed: the name of an installed strategy."""


class SupervisorMode(StrEnum):
    AUTO = "Auto"
    DISABLED = "Disabled"


class Communication(StrEnum):
    AUTO = "Auto"
    NCCL = "NCCL"
    GLOO = "Gloo"
    RING = "Ring"
    HIERARCHICAL = "Hierarchical"
    ONE_DEVICE = "OneDevice"


class CleanPodPolicy(StrEnum):
    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class GangMode(StrEnum):
    AUTO = "Auto"
    REQUIRED = "Required"
    NEVER = "Never"


class ConfigMapReference(ApiModel):
    name: str = Field(description="Name of a ConfigMap in the job's namespace.", min_length=1, max_length=253)


class Code(ApiModel):
    """Files of the user for the working directory of the trainer container."""

    config_map: ConfigMapReference = Field(description="The ConfigMap. Its keys are file names and its values are the files.")


class Input(ApiModel):
    """How samples are read. The settings change how long the training waits for samples. Only `shard` changes their order."""

    workers: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Number of readers in each training process. With 0, each batch is read when it is needed. Default for data in "
        "files: 2 processes (PyTorch), or as many threads as TensorFlow chooses. Default for other data: 0.",
    )
    prefetch: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Number of batches that are read ahead: by each reader process (PyTorch, default 2) or in total (TensorFlow, which "
        "chooses the default).",
    )
    shard: Literal["Data", "File"] = Field(
        default="Data",
        description="Data: any device may get any sample. File: each device gets samples of neighbouring files only, so the order of "
        "samples depends on the number of devices.",
    )
    cache: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Folder for a decoded copy of data in files, on a fast disk of each machine, such as /dev/shm/samples.",
    )


class Variable(ApiModel):
    """An environment variable, as in a pod."""

    name: str = Field(min_length=1, max_length=253, description="Name of the variable, such as NCCL_DEBUG.")
    value: str | None = Field(default=None, max_length=32768, description="Its value. Write numbers in quotes. Default: an empty text.")
    value_from: dict[str, Any] | None = Field(
        default=None,
        description="Source of the value, as in a pod, such as secretKeyRef. A local run takes it from your environment.",
    )


def _shared(name: str) -> Any:
    """The field of a shared setting, with the default, the least number and the description that the contract has for it."""
    key = next(key for key in COMMON_KEYS if key.name == name)
    default = f" Default: {json.dumps(key.default)}." if key.default != "" else ""
    return Field(
        default=None,
        ge=key.least,
        le=MAX_WHOLE if isinstance(key.default, int) and key.least is not None else None,
        max_length=MAX_PATH if key.default == "" else None,
        strict=None if key.values else True,
        description=f"{key.doc} Value: {key.needed.removesuffix(',')}.{default}",
    )


class Settings(ApiModel):
    """Settings that all tasks and modules share."""

    epochs: int | None = _shared("epochs")
    learning_rate: float | None = _shared("learningRate")
    warmup_steps: int | None = _shared("warmupSteps")
    optimizer: Literal["SGD", "Adam", "AdamW"] | None = _shared("optimizer")
    momentum: float | None = _shared("momentum")
    weight_decay: float | None = _shared("weightDecay")
    gradient_clip_norm: float | None = _shared("gradientClipNorm")
    nan_loss: Literal["Stop", "Skip", "Continue"] | None = _shared("nanLoss")
    seed: int | None = _shared("seed")
    deterministic: bool | None = _shared("deterministic")
    precision: Literal["Float32", "BFloat16"] | None = _shared("precision")
    export: str | None = _shared("export")
    evaluate_every_epochs: int | None = _shared("evaluateEveryEpochs")
    step_delay_seconds: float | None = _shared("stepDelaySeconds")


class Trainer(ApiModel):
    """What to train. Exactly one of task, module, script and command is required."""

    image: str | None = Field(
        default=None,
        max_length=1024,
        description="Container image of the trainer. Default: the installation's trainer image for the strategy's framework. An init "
        "container copies the supervisor into the pod. task and module need an image that is built on a trainer image.",
    )
    task: str | None = Field(default=None, min_length=1, max_length=253, description="Name of a bundled task, such as digits.")
    module: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="A Python module with build_model, dataset and loss, such as my_pkg.model.",
    )
    script: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A Python program with its arguments. The image's python3 or python starts it once for each process, with the "
        "variables of its framework, such as torchrun's or TF_CONFIG.",
    )
    command: list[Word] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="A command that is started once for each replica, with the variables of its framework, such as PET_* or TF_CONFIG. "
        "Example: [torchrun, train.py].",
    )
    args: list[Word] | None = Field(default=None, max_length=256, description="Further arguments of the script or command.")
    preload: list[ModuleName] | None = Field(
        default=None,
        max_length=64,
        description="Modules that are imported before the next attempt needs them: what a module imports, such as transformers, or what "
        "libraries of a script import later, such as transformers.models.llama. A script must register its state, or have a callback "
        "of muster_training.",
    )
    env: list[Variable] | None = Field(
        default=None,
        max_length=MAX_ENV,
        description="Environment variables of all roles. Those in a role's template override them. Names that Muster sets are refused.",
    )
    code: Code | None = Field(
        default=None,
        description="Files that are copied into the working directory /code. The directory is writable, and first on the Python path.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Further settings, which the task, module or program names itself. Those of `settings` may be here too.",
    )
    settings: Settings = Field(default_factory=Settings, description="Settings that all tasks and modules share.")
    input: Input = Field(default_factory=Input, description="How samples are read, for task and module.")
    supervisor: SupervisorMode = Field(
        default=SupervisorMode.AUTO,
        description="Auto: a supervisor starts the processes, reports what they do, and restarts them, in any image. Disabled: the "
        "container runs the command itself. Only whether the container runs and its exit code are then visible.",
    )

    @property
    def all_settings(self) -> dict[str, Any]:
        """`config` and the shared settings together, by their names in a job file."""
        return {**self.config, **self.settings.wire()}

    @property
    def supervised(self) -> bool:
        """Whether a supervisor runs in each replica and starts its processes."""
        return self.supervisor is not SupervisorMode.DISABLED


class Resources(ApiModel):
    """Compute resources of the trainer container, as in a pod."""

    limits: dict[str, Quantity] = Field(
        default_factory=dict, max_length=16, description="Limits by resource name, such as nvidia.com/gpu: 4."
    )
    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=16, description="Requests by resource name.")


class ResourceClaim(ApiModel):
    """Devices of a pod from dynamic resource allocation (DRA). Exactly one of a claim and a template is required."""

    name: str = Field(min_length=1, max_length=63, description="Name of the claim within the pod.")
    resource_claim_template_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name of a ResourceClaimTemplate in the job's namespace. Each replica gets a claim of its own from it.",
    )
    resource_claim_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name of a ResourceClaim in the job's namespace. All replicas of the role share its devices. Their driver must allow "
        "that.",
    )


class Role(ApiModel):
    """A group of identical replicas."""

    replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS, description="Number of replicas (pods) of the role.")
    resources: Resources = Field(default_factory=Resources, description="Compute resources of each trainer container.")
    processes_per_replica: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Number of training processes in each replica. Default: one for each accelerator, or one in all, by strategy.",
    )
    resource_claims: list[ResourceClaim] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_RESOURCE_CLAIMS,
        description="Devices from ResourceClaims for the training container of each replica. The number of these devices is unknown, "
        "so processesPerReplica is the number of processes in each replica. A local run ignores them.",
    )
    template: dict[str, Any] = Field(
        default_factory=dict,
        description="A PodTemplateSpec that is merged into the rendered pod by strategic merge. The name of the training container is "
        "trainer.",
    )


def _option(cls: type, name: str) -> Any:
    """The field with the default, limits and description that the contract has for it."""
    plan = next(plan for plan in fields_of(cls) if plan.name == name)
    limits, is_list = plan.limits, plan.limits.min_items > 0
    return Field(
        default=plan.default,
        alias=None if plan.wire_name == to_camel(name) else plan.wire_name,
        ge=limits.minimum,
        le=limits.maximum,
        min_length=limits.min_items if is_list else None,
        max_length=limits.max_items if is_list else None,
        description=plan.doc,
    )


class PipelineOptions(ApiModel):
    stages: int | None = _option(options.PipelineOptions, "stages")
    micro_batches: int | None = _option(options.PipelineOptions, "micro_batches")
    schedule: options.Schedule = _option(options.PipelineOptions, "schedule")
    cut: options.Cut = _option(options.PipelineOptions, "cut")
    stage_memory_mib: int | None = _option(options.PipelineOptions, "stage_memory_mib")


class MeshOptions(ApiModel):
    data: int = _option(options.MeshOptions, "data")
    pipeline: int = _option(options.MeshOptions, "pipeline")
    tensor: int = _option(options.MeshOptions, "tensor")
    shard: int | None = _option(options.MeshOptions, "shard")


class TpuOptions(ApiModel):
    accelerator: str | None = Field(default=None, max_length=63, description="GKE accelerator type, such as tpu-v5-lite-podslice.")
    topology: str | None = Field(
        default=None, pattern=r"^[0-9]+(x[0-9]+){1,2}$", max_length=20, description="Topology of the slice, such as 2x4 or 2x2x2."
    )


class Options(ApiModel):
    """Options of the strategy. Options of other strategies are refused."""

    loop: options.Loop = _option(options.Options, "loop")
    devices: list[DeviceName] | None = _option(options.Options, "devices")
    logical_devices: int | None = _option(options.Options, "logical_devices")
    pipeline: PipelineOptions | None = _option(options.Options, "pipeline")
    mesh: MeshOptions | None = _option(options.Options, "mesh")
    tpu: TpuOptions | None = Field(default=None, description="Options of the TPU strategy.")
    gradient_compression: options.GradientCompression = _option(options.Options, "gradient_compression")
    synchronous: bool | None = _option(options.Options, "synchronous")

    @property
    def for_trainer(self) -> options.Options:
        """The options as the trainer gets them."""
        return decode(options.Options, self.wire())


class Batch(ApiModel):
    """The batch of a step, over all devices together."""

    global_size: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="Number of samples in a step, over all devices. Default: set by the task."
    )
    accumulation_steps: int = Field(
        default=1,
        ge=1,
        le=65536,
        description="Number of portions in which each device computes its share of a batch. More portions need less memory.",
    )
    learning_rate_scaling: LearningRateScaling = Field(
        default=LearningRateScaling.NONE, description="How the learning rate grows with the number of devices."
    )


class PersistentVolumeClaim(ApiModel):
    claim_name: str = Field(
        min_length=1,
        max_length=253,
        description="Name of a PersistentVolumeClaim in the job's namespace. It must be ReadWriteMany if the pods run on several nodes.",
    )


class SecretReference(ApiModel):
    name: str = Field(min_length=1, max_length=253, description="Name of a Secret in the job's namespace.")


class Storage(ApiModel):
    """Where checkpoints are stored. Exactly one of a claim and a URI is required."""

    persistent_volume_claim: PersistentVolumeClaim | None = Field(default=None, description="A volume that all pods mount.")
    uri: str | None = Field(default=None, min_length=1, max_length=2048, description="A URI: file:///path or s3://bucket/prefix.")
    secret_ref: SecretReference | None = Field(
        default=None,
        description="Credentials for the URI. Each key becomes a variable, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or "
        "AWS_ENDPOINT_URL.",
    )


class PeersMemory(ApiModel):
    """Snapshots in the memory of the replicas, from which a job goes on after the loss of some of them."""

    every_steps: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Number of steps between snapshots. 1: no finished step is lost. Default: the trainer measures what a snapshot costs, "
        "and chooses the number so that snapshots take at most 2 % of the time.",
    )
    copies: int = Field(
        default=1,
        ge=0,
        le=16,
        description="Number of other replicas that hold a copy of each part of a snapshot. Up to this many replicas may be lost at "
        "once. 0: snapshots help only if processes end and their replicas stay.",
    )
    size_mib: int | None = Field(
        default=None,
        ge=0,
        le=2**24,
        description="Most memory that snapshots take in each replica, in MiB. It is added to the memory that its pod requests. 0: none are "
        "taken. Default: half of the memory that the replica may use, and none are taken if that is too little.",
    )


class Checkpoint(ApiModel):
    storage: Storage | None = Field(
        default=None, description="Where checkpoints are stored. Without storage, a job on a cluster starts over after most failures."
    )
    name: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        description="Name of the job's folder, in the namespace's folder of the storage. It consists of letters, digits, '.', '_' and "
        "'-'. Default: the job's name.",
    )
    resume: str = Field(
        default="Auto",
        min_length=1,
        max_length=2048,
        description="Auto: resume from the newest commit. Never: start over. Any other value is the path of a checkpoint to resume from.",
    )
    every_steps: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Number of steps between saves. Default: 100 if everySeconds is absent too.",
    )
    every_seconds: SaveInterval | None = Field(
        default=None,
        description="Seconds between saves. Auto: the trainer chooses them from the measured cost of a save and the restarts of the job. "
        "Continuous: it saves again when the previous save is complete.",
    )
    memory: PeersMemory | None = Field(
        default=None,
        description="Snapshots in the memory of the replicas, in addition to storage or without it. Default: FSDP, TensorParallel and "
        "synchronous Pipeline take them, if they fit into the memory.",
    )
    keep: int = Field(default=3, ge=2, le=1000, description="Number of commits to keep.")
    asynchronous: bool = Field(
        default=True,
        alias="async",
        description="true: train on while a checkpoint is written, from a copy if the memory is large enough. false: wait until it is "
        "written.",
    )
    grace_period_seconds: int = Field(
        default=120,
        ge=1,
        le=MAX_GRACE_SECONDS,
        description="Seconds that a replica gets to save when it is stopped. Pods that are created later get more if saves take longer.",
    )


class JobInput(ApiModel):
    """A model or data set that is fetched before the training starts, into a folder that the trainer can read."""

    name: str = Field(
        min_length=1,
        max_length=32,
        description="Name of the input, such as base-model. The trainer finds it in the folder that MUSTER_INPUT_BASE_MODEL names, which "
        "is /inputs/base-model in a pod.",
    )
    source: str = Field(
        min_length=1,
        max_length=MAX_SOURCE,
        description="Where the input is: hf://[datasets/]org/name[@revision][/folder] or s3://bucket[/prefix].",
    )
    secret_ref: SecretReference | None = Field(
        default=None,
        description="Credentials for the source. Each key is a variable: HF_TOKEN and HF_ENDPOINT, or AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL. Only the init container gets them.",
    )
    roles: list[RoleKey] | None = Field(
        default=None, min_length=1, max_length=MAX_ROLES, description="Roles whose pods get the input. Default: all."
    )


class Elastic(ApiModel):
    """Limits between which a job may change its number of workers."""

    min_replicas: int = Field(ge=1, le=MAX_REPLICAS, description="Smallest number of workers the job may run with.")
    max_replicas: int = Field(ge=1, le=MAX_REPLICAS, description="Largest number of workers the job may run with.")
    shrink_after_seconds: int = Field(
        default=30,
        ge=0,
        le=86400,
        description="Seconds to wait for lost workers before the job continues without them. With 0 it does not wait. A pod that has a "
        "node and is starting does not count as lost for its first 30 s.",
    )
    grow_after_seconds: int = Field(
        default=60, ge=0, le=86400, description="Shortest time that a world trains before new workers join it, in seconds."
    )


class PreemptionBudget(ApiModel):
    limit: int = Field(default=-1, ge=-1, le=100000, description="Number of restarts after preemptions. -1: no limit.")


class InfrastructureBudget(ApiModel):
    limit: int = Field(
        default=10,
        ge=-1,
        le=100000,
        description="Number of restarts after infrastructure failures within the window. -1: no limit.",
    )
    window_seconds: int = Field(default=3600, ge=1, le=30 * 86400, description="Length of the sliding window, in seconds.")


class ApplicationBudget(ApiModel):
    limit: int = Field(
        default=3,
        ge=-1,
        le=100000,
        description="Number of restarts after failures of the training code. -1: no limit. If a job reports steps, the same error twice in "
        "a row at the same step ends it in any case.",
    )


class Hang(ApiModel):
    """How long a job may make no progress before it is restarted."""

    step_seconds: int = Field(default=600, ge=1, le=7 * 86400, description="Longest time without a new step, in seconds.")
    start_seconds: int = Field(
        default=1800, ge=1, le=7 * 86400, description="Longest time from the start of an attempt to its first step, in seconds."
    )
    save_seconds: int = Field(default=900, ge=1, le=7 * 86400, description="Longest time that a save may take, in seconds.")
    evaluation_seconds: int = Field(default=900, ge=1, le=7 * 86400, description="Longest time that an evaluation may take, in seconds.")


class NodeNotices(StrEnum):
    """What a job does when a node announces that it goes."""

    AUTO = "Auto"
    SAVE = "Save"
    IGNORE = "Ignore"


class Recovery(ApiModel):
    """How often a job is restarted, by failure class."""

    preemption: PreemptionBudget = Field(
        default_factory=PreemptionBudget, description="Budget for preemptions: evictions, drains, pods that were deleted."
    )
    infrastructure: InfrastructureBudget = Field(
        default_factory=InfrastructureBudget,
        description="Budget for failures below the training code: lost peers and nodes, storage, devices, hangs.",
    )
    application: ApplicationBudget = Field(default_factory=ApplicationBudget, description="Budget for failures of the training code.")
    attempts_without_progress: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="Number of attempts in a row without a new step after which the job fails, regardless of the failure class.",
    )
    hang: Hang = Field(default_factory=Hang, description="How long the training may make no progress before it is restarted.")
    spares: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Number of stand-by workers. They have imported the framework, and take the places of workers whose pods are lost.",
    )
    node_notices: NodeNotices = Field(
        default=NodeNotices.AUTO,
        description="What the job does when a node announces that it goes (preemption, maintenance, scale-down). Auto: it saves, starts a "
        "replacement on another node, and moves once that is ready. Save: it saves. Ignore: it does nothing before the node goes.",
    )


class Topology(ApiModel):
    """Where the pods of the world should be."""

    pack: str = Field(
        max_length=317,
        description="Label of nodes. The pods of the world prefer nodes on which it has the same value, such as kubernetes.io/hostname, "
        "topology.kubernetes.io/zone, or the label of a rack. It is a preference: a world that does not fit there is placed all the same.",
    )


ClassNames = Annotated[list[ClassName], Field(min_length=1, max_length=MAX_CLASSES)]


class Capacity(ApiModel):
    """On which classes of nodes the pods run, such as spot and on-demand. The chart says which nodes are of a class."""

    classes: list[ClassName] = Field(
        default_factory=list,
        max_length=MAX_CLASSES,
        description="Classes for the roles that `roles` does not name, the preferred one first. No pod goes to another class. Default: "
        "these roles use any node.",
    )
    roles: dict[RoleKey, ClassNames] = Field(
        default_factory=dict,
        max_length=MAX_ROLES,
        description="Classes by role, the preferred one first, such as worker: [spot, on-demand].",
    )
    spares: ClassNames | None = Field(
        default=None,
        description="Classes for the spares, the preferred one first. They wait for none of them. Default: those of the workers.",
    )
    limits: dict[ClassName, Annotated[int, Field(ge=1, le=MAX_REPLICAS)]] = Field(
        default_factory=dict,
        max_length=MAX_CLASSES,
        description="Largest number of members of each role that may use a class, such as reserved: 4. Limits of several classes of a role "
        "divide it: the first members use the preferred class.",
    )
    fallback_after_seconds: int = Field(
        default=600,
        ge=1,
        le=30 * 86400,
        description="How long pods wait for nodes of a class before they may also use the next one, in seconds.",
    )
    return_after_seconds: int = Field(
        default=3600,
        ge=1,
        le=30 * 86400,
        description="How long a world trains after a fallback before Muster looks for nodes of the preferred class again, in seconds. Then "
        "workers move there at the end of a step, once their replacements are ready.",
    )


class Scheduling(ApiModel):
    gang: GangMode = Field(
        default=GangMode.AUTO,
        description="Auto: the scheduler places all pods of the world or none, if the cluster can do that. "
        "Required: the job does not start on a cluster that cannot. Never: each pod is scheduled by itself. "
        "Takes effect when the job starts, or resumes after a suspension.",
    )
    queue: str = Field(
        default="",
        max_length=253,
        description="Queue that the job waits in: a LocalQueue of Kueue, if the installation uses Kueue, or else the queue of Volcano's "
        "PodGroup. On a cluster with neither, the job does not start. Takes effect when the job starts, or resumes after a suspension.",
    )
    priority_class_name: str = Field(default="", max_length=253, description="PriorityClass of the pods.")
    topology: Topology | None = Field(default=None, description="Which nodes the pods of the world prefer.")
    capacity: Capacity | None = Field(
        default=None, description="Classes of nodes for the pods, such as spot and on-demand. Not possible with a queue."
    )


class LimitAction(StrEnum):
    """What happens when a job has used what it may."""

    END = "End"
    SUSPEND = "Suspend"


class UsageLimits(ApiModel):
    """Limits of what the pods of a job use (`status.usage`). At least one of deviceHours and cost is required."""

    device_hours: float | None = Field(
        default=None, ge=0.001, le=1e9, allow_inf_nan=False, strict=True, description="Most device-hours of all pods of the job together."
    )
    cost: float | None = Field(
        default=None,
        ge=0.001,
        le=1e12,
        allow_inf_nan=False,
        strict=True,
        description="Highest cost of the job, at the prices of the installation's capacity classes.",
    )
    action: LimitAction = Field(
        default=LimitAction.END,
        description="End: the job saves and fails. Suspend: it saves, and its pods are deleted, until the limit is raised or removed.",
    )


class TrainingJobSpec(ApiModel):
    """The desired training."""

    strategy: StrategyName = Field(
        max_length=63,
        pattern=r"^[A-Za-z][A-Za-z0-9]*$",
        description="Name of the strategy, which determines how the training is distributed. Immutable.",
    )
    preset: str | None = Field(
        default=None,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="Name of a TrainingPreset, such as h100-8: lower-case letters, digits, '-' and '.'. The job gets its defaults for "
        "images, resources, pod templates and storage. The job's own fields override them.",
    )
    trainer: Trainer = Field(description="What to train. Exactly one of task, module, script and command is required.")
    roles: dict[RoleKey, Role] = Field(
        default_factory=dict,
        max_length=MAX_ROLES,
        description="The groups of pods by name, such as worker. The strategy determines which roles a job may have. Default: one worker, "
        "and the roles that the strategy requires.",
    )
    options: Options = Field(default_factory=Options, description="Options of the strategy. Options of other strategies are refused.")
    batch: Batch = Field(default_factory=Batch, description="The batch of a step.")
    communication: Communication = Field(default=Communication.AUTO, description="Communication library or algorithm for gradients.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="Where and how often the job saves.")
    inputs: list[JobInput] = Field(
        default=[],
        max_length=MAX_INPUTS,
        description="Models and data sets that an init container fetches before the training starts.",
    )
    elastic: Elastic | None = Field(
        default=None, description="Limits of the number of workers, for strategies that support it. Without it the number is fixed."
    )
    recovery: Recovery = Field(default_factory=Recovery, description="Budgets for restarts, by failure class.")
    scheduling: Scheduling = Field(default_factory=Scheduling, description="How pods are scheduled.")
    suspend: bool = Field(default=False, description="true: save, delete the pods, and wait until the field is false.")
    managed_by: str = Field(default="muster.dev/operator", max_length=253, description="The controller that manages this job. Immutable.")
    startup_deadline_seconds: int = Field(
        default=1800,
        ge=1,
        le=30 * 86400,
        description="Longest time from the creation of an attempt's pods until all of them run, in seconds. Time in which the whole gang "
        "waits for nodes does not count.",
    )
    active_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=10 * 365 * 86400,
        description="Longest time from the creation of the job to its end, without suspensions, in seconds. Default: no limit.",
    )
    usage_limits: UsageLimits | None = Field(
        default=None, description="Limits of the device-hours and the cost of the job. Default: no limit."
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None, ge=0, le=10 * 365 * 86400, description="Seconds after its end when the job is deleted. Default: it is kept."
    )
    clean_pod_policy: CleanPodPolicy = Field(
        default=CleanPodPolicy.RUNNING,
        description="Which pods are deleted when the job has ended: Running, All or None. A pod whose side-car container still runs "
        "counts as running. With None, pods stay for their logs, and supervisors end by themselves.",
    )
