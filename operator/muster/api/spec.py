"""What a user asks for: the spec of a TrainingJob.

Every default that is a constant stands here and in the CRD; defaults that depend on other fields are worked out where they are needed
and never written back into the spec.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from muster.api.base import ApiModel
from muster.api.quantity import Quantity

DISABLED_NEEDS_COMMAND = "Disabled starts nothing but a command: write command, or supervisor: Auto"
"""The message for `trainer.supervisor`, here because both the checks and the renderer need it."""

MAX_REPLICAS = 4096
MAX_GRACE_SECONDS = 86400

Word = Annotated[str, StringConstraints(max_length=4096)]
DeviceName = Annotated[str, StringConstraints(min_length=1, max_length=253)]


class StrategyName(StrEnum):
    """How the training is distributed."""

    ONE_DEVICE = "OneDevice"
    MIRRORED = "Mirrored"
    CENTRAL_STORAGE = "CentralStorage"
    MULTI_WORKER_MIRRORED = "MultiWorkerMirrored"
    PARAMETER_SERVER = "ParameterServer"
    TPU = "TPU"
    DDP = "DDP"
    FSDP = "FSDP"
    TENSOR_PARALLEL = "TensorParallel"
    PIPELINE = "Pipeline"
    RPC = "RPC"


class RoleName(StrEnum):
    """A group of identical pods of a job."""

    WORKER = "worker"
    PS = "ps"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


class SupervisorMode(StrEnum):
    AUTO = "Auto"
    DISABLED = "Disabled"


class LearningRateScaling(StrEnum):
    NONE = "None"
    LINEAR = "Linear"
    SQRT = "Sqrt"


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
    DISABLED = "Disabled"


class ConfigMapReference(ApiModel):
    name: str = Field(description="Name of a ConfigMap in the job's namespace.", min_length=1, max_length=253)


class Code(ApiModel):
    """The user's own files, for the working directory of the trainer container."""

    config_map: ConfigMapReference = Field(description="ConfigMap whose keys are file names and whose values are files.")


class Input(ApiModel):
    """How samples are read. What it says changes the time that the training waits for them, and only `shard` their order."""

    workers: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Readers in each training process; 0: each batch is read when it is needed. "
        "Default: 2 processes (PyTorch) or as many threads as help (TensorFlow) for data in files, else 0.",
    )
    prefetch: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Batches ahead, by each reader process (PyTorch, default 2) or in all (TensorFlow, default: as many as help).",
    )
    shard: Literal["Data", "File"] = Field(
        default="Data",
        description="Data: any device may get any sample. File: each device gets samples of neighbouring files only, so that the order "
        "depends on the number of devices.",
    )
    cache: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Folder on a fast disk of each machine for a decoded copy of data in files, such as /dev/shm/samples.",
    )


class Trainer(ApiModel):
    """What to train. Exactly one of task, module, script and command."""

    image: str | None = Field(
        default=None,
        max_length=1024,
        description="Container image; default: the installation's trainer image for the strategy's framework. "
        "An init container brings the supervisor into it. task and module need an image that is built on a trainer image.",
    )
    task: str | None = Field(default=None, min_length=1, max_length=253, description="A bundled task, such as digits.")
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
        description="A Python program with its arguments, started once per process with torchrun's environment or TF_CONFIG, "
        "by the image's python3 or python.",
    )
    command: list[Word] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="A command, started once per replica with PET_* or TF_CONFIG, such as [torchrun, train.py].",
    )
    args: list[Word] | None = Field(default=None, max_length=256, description="Further arguments of the script or command.")
    code: Code | None = Field(
        default=None,
        description="Files that are copied into the working directory, /code, which is writable, and first on the Python path.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of the training: typed for bundled tasks, free for others. "
        "Common: epochs, learningRate, seed, deterministic, precision.",
    )
    input: Input = Field(default_factory=Input, description="How samples are read, for task and module.")
    supervisor: SupervisorMode = Field(
        default=SupervisorMode.AUTO,
        description="Auto: a supervisor starts the processes, reports and restarts them, in any image. Disabled: the container "
        "runs the command itself. Muster then sees whether the container runs and its exit code, and no more.",
    )

    @property
    def supervised(self) -> bool:
        """Whether a supervisor runs in each replica, and starts its processes."""
        return self.supervisor is not SupervisorMode.DISABLED


class EnvVar(ApiModel):
    """The two fields of a container's env entry that rules look at; the rest passes through."""

    model_config = {**ApiModel.model_config, "extra": "allow"}
    name: str = Field(description="Name of the variable; reserved names are refused.", min_length=1, max_length=253)


class Resources(ApiModel):
    """Compute resources of the trainer container, as in a pod."""

    limits: dict[str, Quantity] = Field(
        default_factory=dict, max_length=16, description="Limits by resource name, such as nvidia.com/gpu: 4."
    )
    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=16, description="Requests by resource name.")


class Role(ApiModel):
    """A group of identical replicas."""

    replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS, description="How many replicas (pods) the role has.")
    resources: Resources = Field(default_factory=Resources, description="Resources of each trainer container.")
    processes_per_replica: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Training processes in each replica; default: one per accelerator for PyTorch, one for TensorFlow.",
    )
    template: dict[str, Any] = Field(
        default_factory=dict,
        description="A PodTemplateSpec laid over the rendered pod by strategic merge; the training container is named trainer.",
    )


class Roles(ApiModel):
    """The roles of the job; which of them a strategy has, its documentation says."""

    worker: Role | None = Field(default=None, description="The replicas that compute.")
    ps: Role | None = Field(default=None, description="Parameter servers, which hold the variables.")
    chief: Role | None = Field(default=None, description="The coordinator of a ParameterServer or RPC job.")
    evaluator: Role | None = Field(default=None, description="Evaluates each commit beside the training; its failure never fails the job.")

    def named(self) -> dict[RoleName, Role]:
        """The roles that are present, in the fixed order worker, ps, chief, evaluator."""
        present = ((name, getattr(self, name.value)) for name in RoleName)
        return {name: role for name, role in present if role is not None}


class PipelineOptions(ApiModel):
    stages: int | None = Field(
        default=None, ge=1, le=1024, description="Pipeline stages; default: one in each process, with Interleaved1F1B two."
    )
    micro_batches: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Micro-batches that a batch is cut into; default: the number of stages.",
    )
    schedule: Literal["GPipe", "1F1B", "Interleaved1F1B", "PipeDream"] = Field(
        default="GPipe", description="Order of forward and backward passes; PipeDream updates after each micro-batch, asynchronously."
    )
    cut: Literal["Cost", "Even"] = Field(
        default="Cost",
        description="Where stages begin: so that the slowest is as fast as can be, by measured layers, or with as many layers in each.",
    )
    stage_memory_mib: int | None = Field(
        default=None,
        alias="stageMemoryMiB",
        ge=1,
        le=2**31 - 1,
        description="What a stage may take in training, in MiB: weights, gradients, optimizer state and activations; default: anything.",
    )


class MeshOptions(ApiModel):
    data: int = Field(default=1, ge=1, le=MAX_REPLICAS, description="Data-parallel size.")
    pipeline: int = Field(default=1, ge=1, le=1024, description="Pipeline-parallel size.")
    tensor: int = Field(default=1, ge=1, le=1024, description="Tensor-parallel size.")
    shard: int | None = Field(
        default=None, ge=1, le=MAX_REPLICAS, description="FSDP: how many of data share one set of shards (hybrid sharding); default: all."
    )


class TpuOptions(ApiModel):
    accelerator: str | None = Field(default=None, max_length=63, description="GKE accelerator type, such as tpu-v5-lite-podslice.")
    topology: str | None = Field(
        default=None, pattern=r"^[0-9]+(x[0-9]+){1,2}$", max_length=20, description="Topology, such as 2x4 or 2x2x2."
    )


class Options(ApiModel):
    """Options of the strategy; those of another strategy are refused."""

    loop: Literal["Custom", "Fit"] = Field(default="Custom", description="TensorFlow: Muster's own training loop, or Keras compile/fit.")
    devices: list[DeviceName] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="TensorFlow on one machine: the devices to use, such as [GPU:0, GPU:1].",
    )
    logical_devices: int | None = Field(default=None, ge=1, le=64, description="TensorFlow on CPU: how many logical devices to make.")
    pipeline: PipelineOptions | None = Field(default=None, description="Of the Pipeline strategy.")
    mesh: MeshOptions | None = Field(default=None, description="How processes are laid out when strategies are combined.")
    tpu: TpuOptions | None = Field(default=None, description="Of the TPU strategy.")
    gradient_compression: Literal["None", "FP16", "BF16", "PowerSGD"] = Field(
        default="None", description="DDP: how gradients are made smaller on their way; what is lost is lost to the training."
    )
    synchronous: bool | None = Field(default=None, description="RPC: wait for all workers at each step (default false).")


class Batch(ApiModel):
    """The batch of a step, over all devices together."""

    global_size: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="Samples per step over all devices; default: the task's own."
    )
    accumulation_steps: int = Field(default=1, ge=1, le=65536, description="Parts that each device's share is computed in, to save memory.")
    learning_rate_scaling: LearningRateScaling = Field(
        default=LearningRateScaling.NONE, description="How the learning rate grows with the number of devices."
    )


class PersistentVolumeClaim(ApiModel):
    claim_name: str = Field(
        min_length=1,
        max_length=253,
        description="A PersistentVolumeClaim of the job's namespace; ReadWriteMany where the job has several nodes.",
    )


class SecretReference(ApiModel):
    name: str = Field(min_length=1, max_length=253, description="A Secret in the job's namespace.")


class Storage(ApiModel):
    """Where checkpoints live: exactly one of a claim and a URI."""

    persistent_volume_claim: PersistentVolumeClaim | None = Field(default=None, description="A volume that all pods mount.")
    uri: str | None = Field(default=None, min_length=1, max_length=2048, description="file:///path or s3://bucket/prefix.")
    secret_ref: SecretReference | None = Field(
        default=None,
        description="Credentials for the URI: each key becomes a variable, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
        "AWS_ENDPOINT_URL.",
    )


class Checkpoint(ApiModel):
    storage: Storage | None = Field(
        default=None, description="Where checkpoints live; without it a job on a cluster starts over when it breaks."
    )
    name: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        description="Folder in the namespace's folder of the storage, of letters, digits, '.', '_' and '-'; default: the job's name.",
    )
    resume: str = Field(
        default="Auto",
        min_length=1,
        max_length=2048,
        description="Auto: from the newest commit. Never: start over. Else the path of a checkpoint.",
    )
    every_steps: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Save every so many steps; default 100 where everySeconds is absent too.",
    )
    every_seconds: int | None = Field(default=None, ge=1, le=7 * 86400, description="Save every so many seconds.")
    keep: int = Field(default=3, ge=2, le=1000, description="How many commits to keep.")
    asynchronous: bool = Field(
        default=True,
        alias="async",
        description="Train on while a checkpoint is written, from a copy where there is memory for one; false: wait for it.",
    )
    grace_period_seconds: int = Field(
        default=120,
        ge=1,
        le=MAX_GRACE_SECONDS,
        description="Time a replica gets to save when it is asked to stop; one made later gets more where saves take longer.",
    )


class Elastic(ApiModel):
    """Limits between which a DDP or FSDP job may change its number of workers."""

    min_replicas: int = Field(ge=1, le=MAX_REPLICAS, description="The job goes on with as few workers.")
    max_replicas: int = Field(ge=1, le=MAX_REPLICAS, description="The job grows to as many workers.")
    shrink_after_seconds: int = Field(
        default=30,
        ge=0,
        le=86400,
        description="How long workers that are lost are waited for before the others go on without; 0: not at all. One that a node has and "
        "that only starts is not lost for its first 30 s.",
    )
    grow_after_seconds: int = Field(
        default=60, ge=0, le=86400, description="How long a world trains at least before workers that have come are taken in."
    )


class PreemptionBudget(ApiModel):
    limit: int = Field(default=-1, ge=-1, le=100000, description="Restarts after preemptions; -1: without limit.")


class InfrastructureBudget(ApiModel):
    limit: int = Field(
        default=10,
        ge=-1,
        le=100000,
        description="Restarts after infrastructure failures within the window; -1: without limit.",
    )
    window_seconds: int = Field(default=3600, ge=1, le=30 * 86400, description="Length of the sliding window.")


class ApplicationBudget(ApiModel):
    limit: int = Field(default=3, ge=-1, le=100000, description="Restarts after failures of the training code; -1: without limit.")


class Hang(ApiModel):
    """How long a job may stand still before it is restarted."""

    step_seconds: int = Field(default=600, ge=1, le=7 * 86400, description="Longest time without a new step.")
    start_seconds: int = Field(default=1800, ge=1, le=7 * 86400, description="Longest time from the start of an attempt to its first step.")
    save_seconds: int = Field(default=900, ge=1, le=7 * 86400, description="Longest time that a save may take.")
    evaluation_seconds: int = Field(default=900, ge=1, le=7 * 86400, description="Longest time that an evaluation may take.")


class Recovery(ApiModel):
    """How often a job is brought back, by class of failure."""

    preemption: PreemptionBudget = Field(
        default_factory=PreemptionBudget, description="Taken away by the cluster: eviction, drain, node loss."
    )
    infrastructure: InfrastructureBudget = Field(
        default_factory=InfrastructureBudget,
        description="Broken below the training code: peers lost, volumes, devices, hangs.",
    )
    application: ApplicationBudget = Field(default_factory=ApplicationBudget, description="The training code failed by itself.")
    attempts_without_progress: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="Attempts in a row without a new step that end the job, whatever the class.",
    )
    hang: Hang = Field(default_factory=Hang, description="Limits on standing still.")


class Scheduling(ApiModel):
    gang: GangMode = Field(default=GangMode.AUTO, description="Auto: all pods or none, where the cluster has a gang scheduler.")
    queue: str = Field(default="", max_length=253, description="Queue of the cluster's job queueing system.")
    priority_class_name: str = Field(default="", max_length=253, description="PriorityClass of the pods.")


class TrainingJobSpec(ApiModel):
    """The desired training."""

    strategy: StrategyName = Field(description="How the training is distributed. Immutable.")
    trainer: Trainer = Field(description="What to train.")
    roles: Roles = Field(default_factory=Roles, description="The groups of pods; default: one worker, and what else the strategy needs.")
    options: Options = Field(default_factory=Options, description="Options of the strategy.")
    batch: Batch = Field(default_factory=Batch, description="The batch of a step.")
    communication: Communication = Field(default=Communication.AUTO, description="How gradients travel.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="Where and how often to save.")
    elastic: Elastic | None = Field(default=None, description="DDP and FSDP: limits of the number of workers.")
    recovery: Recovery = Field(default_factory=Recovery, description="Budgets for restarts.")
    scheduling: Scheduling = Field(default_factory=Scheduling, description="How pods find nodes.")
    suspend: bool = Field(default=False, description="True: save, remove the pods and wait.")
    managed_by: str = Field(default="muster.dev/operator", max_length=253, description="The controller that manages this job. Immutable.")
    startup_deadline_seconds: int = Field(
        default=1800, ge=1, le=30 * 86400, description="Time from a pod set's creation until all of it runs."
    )
    active_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=10 * 365 * 86400,
        description="Time that the job may run in all, less suspension; absent: no limit.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None, ge=0, le=10 * 365 * 86400, description="Delete the job so long after its end; absent: keep it."
    )
    clean_pod_policy: CleanPodPolicy = Field(
        default=CleanPodPolicy.RUNNING,
        description="Which pods are deleted when the job has ended: those Running, All or None. A pod whose side-car still runs counts as "
        "running. With None pods stay for their logs; supervisors still end by themselves.",
    )
