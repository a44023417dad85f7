"""What a strategy cannot do of what a spec asks: the rules that several strategies share."""

from __future__ import annotations

from muster.api.problems import Problem
from muster.api.spec import Communication, LearningRateScaling, Options, RoleName, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Framework, RoleRule
from muster.strategies.traits import Traits

ELASTIC_SUPERVISED = "only Muster's supervisor can restart a worker in another world; remove it, or write trainer.supervisor: Auto"
ELASTIC_SIZE = "must be given with spec.elastic, or the batch would change with the number of workers"
ELASTIC_RATE = "the batch of an elastic job stays as it is, and so must the rate; write None"


def general_problems(traits: Traits, spec: TrainingJobSpec, *, devices: int) -> list[Problem]:
    """Roles, counts, resources, options, communication, elasticity and batch; `devices` share a batch."""
    return [
        *_role_problems(traits, spec),
        *_resource_problems(spec),
        *_option_problems(traits, spec),
        *_communication_problems(traits, spec),
        *_elastic_problems(traits, spec),
        *_batch_problems(spec, devices),
    ]


def tensorflow_problems(traits: Traits, spec: TrainingJobSpec) -> list[Problem]:
    """One process drives all devices of a TensorFlow replica."""
    return [
        Problem(
            f"spec.roles.{name.value}.processesPerReplica",
            f"{traits.name.value} runs one process per replica, not {role.processes_per_replica}; write 1, or leave it out",
        )
        for name, role in spec.roles.named().items()
        if name in traits.roles and (role.processes_per_replica or 1) != 1
    ]


def torch_problems(traits: Traits, spec: TrainingJobSpec) -> list[Problem]:
    """NCCL refuses two processes on one GPU."""
    if spec.communication is not Communication.NCCL or Communication.NCCL not in traits.communications:
        return []
    worker = traits.worker(spec)
    gpus, processes = accelerators.count(worker, accelerators.GPUS), worker.processes_per_replica or 0
    if not gpus or processes <= gpus:
        return []
    message = f"NCCL needs a GPU for each process, and {processes} processes would share {gpus}; write {gpus} at most"
    return [Problem("spec.roles.worker.processesPerReplica", message)]


def _role_problems(traits: Traits, spec: TrainingJobSpec) -> list[Problem]:
    found = []
    for name, role in spec.roles.named().items():
        rule = traits.roles.get(name)
        if rule is None:
            has = ", ".join(known.value for known in traits.roles)
            found.append(Problem(f"spec.roles.{name.value}", f"{traits.name.value} has no role {name.value}; remove it (it has: {has})"))
        elif not rule.minimum <= role.replicas <= (rule.maximum or role.replicas):
            found.append(Problem(f"spec.roles.{name.value}.replicas", _count_message(traits, name, role.replicas, rule)))
    return found


def _count_message(traits: Traits, name: RoleName, count: int, rule: RoleRule) -> str:
    bound = rule.minimum if count < rule.minimum else rule.maximum
    few_or_many = "at least" if count < rule.minimum else "at most"
    wanted = "exactly" if rule.minimum == rule.maximum and rule.default else few_or_many
    return f"{traits.name.value} takes {wanted} {bound} {name.value}, not {count}; write {bound}"


def _resource_problems(spec: TrainingJobSpec) -> list[Problem]:
    return [
        Problem(f"spec.roles.{name.value}.resources.limits[{resource}]", f"{quantity!r} is no number of devices; write a whole number")
        for name, role in spec.roles.named().items()
        for resource, quantity in accelerators.limits(role).items()
        if resource in accelerators.ACCELERATORS and accelerators.whole(quantity) is None
    ]


def _option_problems(traits: Traits, spec: TrainingJobSpec) -> list[Problem]:
    """Options of another strategy. A server writes defaults into a spec, so that only what differs from them is the user's wish."""
    return [
        Problem(f"spec.options.{info.alias or name}", _no_option(traits, name))
        for name, info in Options.model_fields.items()
        if name not in traits.options and getattr(spec.options, name) != info.get_default()
    ]


def _no_option(traits: Traits, name: str) -> str:
    if name == "logical_devices" and traits.framework is Framework.TENSORFLOW and traits.roles[RoleName.WORKER].maximum != 1:
        return f"tf.distribute.{traits.name.value} takes the accelerators of a worker, or its CPU as one; remove it, or use Mirrored"
    names = [info.alias or field for field, info in Options.model_fields.items() if field in traits.options]
    return f"is no option of {traits.name.value}; remove it" + (f" (it has: {', '.join(names)})" if names else "")


def _communication_problems(traits: Traits, spec: TrainingJobSpec) -> list[Problem]:
    asked = spec.communication
    if asked is Communication.AUTO:
        return []
    if asked not in traits.communications:
        names = [Communication.AUTO.value, *sorted(known.value for known in traits.communications)]
        message = f"{traits.name.value} cannot use {asked.value}: {_unusable(traits, asked)}; write {' or '.join(names)}"
        return [Problem("spec.communication", message)]
    if asked is Communication.NCCL and not accelerators.count(traits.worker(spec), accelerators.GPUS):
        message = "NCCL connects GPUs, and the workers have none; write Auto, or nvidia.com/gpu in spec.roles.worker.resources.limits"
        return [Problem("spec.communication", message)]
    return []


def _unusable(traits: Traits, asked: Communication) -> str:
    """Why a strategy cannot use a communication that it does not list."""
    if not traits.communications:
        return "it does not all-reduce gradients over a library of your choice"
    if traits.framework is Framework.PYTORCH:
        return "it is a choice of tf.distribute, and this is PyTorch"
    if asked is Communication.GLOO:
        return "Gloo is a library of PyTorch, and this is TensorFlow"
    if asked is Communication.RING:
        return "Ring connects several machines, and this is one"
    return "it sums over the devices of one machine, and this has several"


def _elastic_problems(traits: Traits, spec: TrainingJobSpec) -> list[Problem]:
    elastic = spec.elastic
    if elastic is None:
        return []
    if not traits.elastic:
        return [Problem("spec.elastic", f"{traits.name.value} cannot change its number of workers; remove it, or use DDP or FSDP")]
    if not spec.trainer.supervised:
        return [Problem("spec.elastic", ELASTIC_SUPERVISED)]
    if spec.batch.global_size is None:
        return [Problem("spec.batch.globalSize", ELASTIC_SIZE)]
    if spec.batch.learning_rate_scaling is not LearningRateScaling.NONE:
        return [Problem("spec.batch.learningRateScaling", ELASTIC_RATE)]
    if elastic.min_replicas > elastic.max_replicas:
        message = f"{elastic.min_replicas} is more than maxReplicas, {elastic.max_replicas}; write {elastic.max_replicas} or less"
        return [Problem("spec.elastic.minReplicas", message)]
    replicas = traits.worker(spec).replicas
    if not elastic.min_replicas <= replicas <= elastic.max_replicas:
        limits = f"{elastic.min_replicas} to {elastic.max_replicas}"
        return [Problem("spec.roles.worker.replicas", f"{replicas} is outside the limits of spec.elastic; write {limits}")]
    return []


def _batch_problems(spec: TrainingJobSpec, devices: int) -> list[Problem]:
    size = spec.batch.global_size
    if size is None or size >= devices:
        return []
    return [Problem("spec.batch.globalSize", f"{size} samples cannot be shared out over {devices} devices; write at least {devices}")]
