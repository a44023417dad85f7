"""Whether a whole job can run as written.

Types and bounds of single fields are the API's matter; counts, options, communication and elasticity are the strategy's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from muster.admission.bounds import bounded, left_out
from muster.admission.template import IMAGE, IMAGE_MESSAGE, template_problems
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.spec import DISABLED_NEEDS_COMMAND, Checkpoint, Input, Role, RoleName, SupervisorMode, Trainer, TrainingJobSpec
from muster.strategies.base import Strategy, host_in_cluster
from muster.strategies.registry import STRATEGIES

MAX_NAME_LENGTH = 44
"""Leaves room in the 63 characters of a host name for `-evaluator-4095`, the longest that a replica adds, and a suffix of children."""
MAX_PROCESSES = 65_536
MAX_VARIABLE = 131_072
"""Bytes of an environment variable with its name, the sign between and a NUL: Linux starts no program with a longer one (execve(2))."""
FEW_REPLICAS = 500
"""The addresses of fewer fit into a variable, however long their names are."""

SERVICE_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
"""A DNS label as a Service needs it, which may not begin with a digit (RFC 1035)."""
DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
MANAGER = rf"{DNS_SUBDOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
MODULE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
MODULE_MESSAGE = "must be a name that Python can import, such as my_pkg.model"
ARGS_MESSAGE = "is for script and command; write settings of a task or module into config"
STORAGE_URI = r"file:///.+|s3://[^/]+(/.*)?"

PROGRAMS = ("task", "module", "script", "command")


def problems(job: TrainingJob) -> list[Problem]:
    """All that is wrong with a job whose types are right; empty: it can be accepted."""
    spec = job.spec
    strategy = STRATEGIES[spec.strategy]
    found = [
        *_name_problems(job),
        *_bounds_problems(spec),
        *_trainer_problems(spec.trainer),
        *_checkpoint_problems(spec.checkpoint),
        *_managed_by_problems(spec),
        *_scheduling_problems(spec),
        *(problem for name, role in spec.roles.named().items() for problem in template_problems(name, role.template)),
        *strategy.problems(spec),
        *_size_problems(strategy, spec),
        *_variable_problems(strategy, job),
    ]
    return list(dict.fromkeys(found))


def _name_problems(job: TrainingJob) -> Iterable[Problem]:
    name, namespace = job.metadata.name, job.metadata.namespace
    if not re.fullmatch(SERVICE_NAME, name):
        yield Problem(
            "metadata.name", f"must be lower-case letters, digits and '-', beginning with a letter, not {name!r}{_label_of(name)}"
        )
    if len(name) > MAX_NAME_LENGTH:
        message = f"must have at most {MAX_NAME_LENGTH} characters, not {len(name)}: names of pods are made of it"
        yield Problem("metadata.name", message)
    if not re.fullmatch(DNS_LABEL, namespace) or len(namespace) > 63:
        yield Problem(
            "metadata.namespace", f"must be at most 63 lower-case letters, digits and '-', not {namespace!r}{_label_of(namespace)}"
        )


def _bounds_problems(spec: TrainingJobSpec) -> Iterable[Problem]:
    trainer = {"config": spec.trainer.config, "command": spec.trainer.command, "args": spec.trainer.args}
    roles = {
        name.value: {"template": role.template, "resources": {"limits": role.resources.limits, "requests": role.resources.requests}}
        for name, role in spec.roles.named().items()
    }
    return left_out(bounded({"trainer": trainer, "roles": roles}))


def _label_of(name: str) -> str:
    """A name that would do, near the one that does not."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:MAX_NAME_LENGTH].lstrip("-0123456789").rstrip("-")
    return f": write {plain}, say" if plain else ""


def _trainer_problems(trainer: Trainer) -> Iterable[Problem]:
    given = [name for name in PROGRAMS if getattr(trainer, name) is not None]
    if len(given) != 1:
        found = f"and not {' and '.join(given)} together" if given else "and none is there"
        yield Problem("spec.trainer", f"needs exactly one of {', '.join(PROGRAMS[:-1])} and {PROGRAMS[-1]}, {found}")
    if trainer.module is not None and not re.fullmatch(MODULE, trainer.module):
        yield Problem("spec.trainer.module", _module_message(trainer.module))
    if trainer.command is not None and not trainer.command[0].strip():
        yield Problem("spec.trainer.command[0]", "must name a program, such as torchrun")
    if trainer.script is not None and not trainer.script.strip():
        yield Problem("spec.trainer.script", "must name a Python program, such as train.py")
    if trainer.image is not None and not re.fullmatch(IMAGE, trainer.image):
        yield Problem("spec.trainer.image", f"{IMAGE_MESSAGE}, not {trainer.image!r}")
    if trainer.code is not None and not re.fullmatch(DNS_SUBDOMAIN, trainer.code.config_map.name):
        name = trainer.code.config_map.name
        yield Problem("spec.trainer.code.configMap.name", f"must be the name of a ConfigMap, not {name!r}")
    if trainer.input != Input() and given and not {"task", "module"} & set(given):
        yield Problem("spec.trainer.input", f"is for task and module, and a {' and '.join(given)} reads by itself; remove it")
    if trainer.supervisor is SupervisorMode.DISABLED and "command" not in given:
        yield Problem("spec.trainer.supervisor", DISABLED_NEEDS_COMMAND)
    if trainer.args is not None and given and not {"script", "command"} & set(given):
        yield Problem("spec.trainer.args", ARGS_MESSAGE)


def _module_message(module: str) -> str:
    if module.endswith(".py"):
        name = module.removesuffix(".py").strip("./").replace("/", ".")
        return f"must be the name of a module, such as {name}, not of a file; a program goes into script"
    return f"{MODULE_MESSAGE}, not {module!r}"


def _checkpoint_problems(checkpoint: Checkpoint) -> Iterable[Problem]:
    storage = checkpoint.storage
    if storage is not None:
        if (storage.persistent_volume_claim is None) == (storage.uri is None):
            both = "not both" if storage.uri is not None else "and neither is there"
            yield Problem("spec.checkpoint.storage", f"needs exactly one of persistentVolumeClaim and uri, {both}")
        claim = storage.persistent_volume_claim
        if claim is not None and not re.fullmatch(DNS_SUBDOMAIN, claim.claim_name):
            message = f"must be the name of a PersistentVolumeClaim, not {claim.claim_name!r}"
            yield Problem("spec.checkpoint.storage.persistentVolumeClaim.claimName", message)
        if storage.uri is not None and not re.fullmatch(STORAGE_URI, storage.uri):
            yield Problem("spec.checkpoint.storage.uri", _uri_message(storage.uri))
        if storage.secret_ref is not None and storage.uri is None:
            yield Problem("spec.checkpoint.storage.secretRef", "is for a uri, such as s3://bucket/prefix: leave it out")
        if storage.secret_ref is not None and not re.fullmatch(DNS_SUBDOMAIN, storage.secret_ref.name):
            yield Problem("spec.checkpoint.storage.secretRef.name", f"must be the name of a Secret, not {storage.secret_ref.name!r}")
    if checkpoint.resume not in ("Auto", "Never") and checkpoint.resume.lower() in ("auto", "never"):
        yield Problem("spec.checkpoint.resume", f"must be Auto, Never or a path: write {checkpoint.resume.title()}")


def _uri_message(uri: str) -> str:
    wanted = "must be file:///path or s3://bucket/prefix"
    if "://" not in uri:
        return f"{wanted}, not {uri!r}" + (f": write file://{uri}" if uri.startswith("/") else "")
    if uri.startswith("file://"):
        return f"{wanted}: a path begins with a slash, so that there are three, not {uri!r}"
    return f"{wanted}, not {uri!r}"


def _managed_by_problems(spec: TrainingJobSpec) -> Iterable[Problem]:
    if not re.fullmatch(MANAGER, spec.managed_by):
        yield Problem("spec.managedBy", f"must be domain/name, such as muster.dev/operator, not {spec.managed_by!r}")


def _scheduling_problems(spec: TrainingJobSpec) -> Iterable[Problem]:
    for field, name in (("queue", spec.scheduling.queue), ("priorityClassName", spec.scheduling.priority_class_name)):
        if name and not re.fullmatch(DNS_SUBDOMAIN, name):
            yield Problem(f"spec.scheduling.{field}", f"must be lower-case letters, digits, '-' and '.', not {name!r}")


def _size_problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterable[Problem]:
    processes = strategy.plan(spec).size
    if processes > MAX_PROCESSES:
        yield Problem("spec.roles", f"make a world of {processes} processes; at most {MAX_PROCESSES} are possible")
    if spec.elastic is None or not strategy.elastic or spec.batch.global_size is None:
        return
    devices = strategy.data_parallel(_resized(spec, spec.elastic.max_replicas))
    if strategy.data_parallel(spec) <= spec.batch.global_size < devices:
        message = f"{spec.batch.global_size} samples cannot be shared out over {devices} devices, which the job may grow to"
        yield Problem("spec.batch.globalSize", f"{message}: write at least {devices}, or a smaller elastic.maxReplicas")


@dataclass(frozen=True)
class _Longest:
    """Addresses in a cluster, with the longest port."""

    job: str
    namespace: str

    def host(self, role: RoleName, index: int) -> str:
        return host_in_cluster(role, index, job=self.job, namespace=self.namespace)

    def port(self, role: RoleName, index: int, name: str) -> int:
        return 65_535


def _variable_problems(strategy: Strategy, job: TrainingJob) -> Iterable[Problem]:
    """A framework that finds its world in one environment variable cannot have a world that does not fit into it."""
    plan = strategy.plan(job.spec)
    if len(plan.replicas) < FEW_REPLICAS:
        return
    addresses = _Longest(job.metadata.name, job.metadata.namespace)
    one_of_each = {replica.role: replica for replica in plan.replicas}
    found = [
        (len(name) + len(value) + 2, name)
        for replica in one_of_each.values()
        for name, value in strategy.environment(job.spec, plan, replica, addresses).items()
    ]
    size, name = max(found, default=(0, ""))
    if size > MAX_VARIABLE:
        most = len(plan.replicas) * MAX_VARIABLE // size - 5
        message = f"{name} has the address of each replica, and {len(plan.replicas)} of them take {size} bytes"
        yield Problem("spec.roles", f"{message}: Linux allows {MAX_VARIABLE} in a variable; write at most {most} replicas in all")


def _resized(spec: TrainingJobSpec, workers: int) -> TrainingJobSpec:
    worker = (spec.roles.worker or Role()).model_copy(update={"replicas": workers})
    return spec.model_copy(update={"roles": spec.roles.model_copy(update={"worker": worker})})
