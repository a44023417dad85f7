"""Checks of a whole job: the rules of `rules.py`, and those that only Muster checks.

The API types check the types and bounds of single fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from muster.admission.bounds import bound_problems, bounded
from muster.admission.rules import DNS_LABEL, Rule, rules_for, rules_for_all, violations
from muster.admission.sentences import not_one_of
from muster.admission.template import template_problems
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.spec import Communication, Role, RoleName, StrategyName, Trainer, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Strategy, host_in_cluster, processes_of
from muster.strategies.faults import StrategyFaultError
from muster.strategies.registry import REFUSED, STRATEGIES, reserved_for
from muster_contract.config import wrong_values
from muster_contract.environment import LARGE_VARIABLES
from muster_contract.inputs import INPUT_SOURCE, parse_source
from muster_contract.large_variables import LONGEST, MAX_UNPACKED, pack, size

MAX_PROCESSES = 65_536
FEW_REPLICAS = 500
"""The addresses of fewer replicas always fit into a variable of a program."""


def problems(job: TrainingJob) -> list[Problem]:
    """All problems of a job with correct types. Empty if the job can be accepted."""
    spec = job.spec
    if unknown := strategy_problems(spec.strategy):
        return unknown
    try:
        return list(dict.fromkeys(_problems(job, STRATEGIES[spec.strategy])))
    except StrategyFaultError as error:
        return error.problems


def _problems(job: TrainingJob, strategy: Strategy) -> list[Problem]:
    spec = job.spec
    document = {"metadata": {"name": job.metadata.name}, "spec": spec.wire()}
    return [
        *violations(document, _rules(spec.strategy)),
        *_namespace_problems(job.metadata.namespace),
        *_bounds_problems(spec),
        *_program_problems(spec.trainer),
        *_config_problems(spec.trainer),
        *_input_problems(strategy, spec),
        *(problem for name, role in spec.roles.items() for problem in template_problems(name, role.template)),
        *_resource_claim_problems(spec),
        *_device_problems(strategy, spec),
        *_size_problems(strategy, spec),
        *_memory_problems(strategy, spec),
        *_variable_problems(strategy, job),
        *(problem for check in strategy.checks for problem in check(strategy, spec)),
    ]


def strategy_problems(name: object) -> list[Problem]:
    """The problem of a job whose strategy is not installed. No rule of a strategy applies to such a job."""
    if not isinstance(name, str) or name in STRATEGIES:
        return []
    return [Problem("spec.strategy", "; ".join([not_one_of(list(STRATEGIES), name), *REFUSED]))]


@cache
def _rules(name: StrategyName) -> list[Rule]:
    strategy = STRATEGIES[name]
    return [*rules_for_all(reserved_for(strategy)), *rules_for(strategy, STRATEGIES.values())]


def _namespace_problems(namespace: str) -> Iterable[Problem]:
    if not re.fullmatch(DNS_LABEL, namespace) or len(namespace) > 63:
        yield Problem("metadata.namespace", f"must be at most 63 lower-case letters, digits and '-', not {namespace!r:.80}")


def _bounds_problems(spec: TrainingJobSpec) -> Iterable[Problem]:
    trainer = {"config": spec.trainer.config, "command": spec.trainer.command, "args": spec.trainer.args}
    roles = {
        name: {"template": role.template, "resources": {"limits": role.resources.limits, "requests": role.resources.requests}}
        for name, role in spec.roles.items()
    }
    return bound_problems(bounded({"trainer": trainer, "roles": roles}))


def _program_problems(trainer: Trainer) -> Iterable[Problem]:
    if trainer.command is not None and not trainer.command[0].strip():
        yield Problem("spec.trainer.command[0]", "must name a program, such as torchrun")
    if trainer.script is not None and not trainer.script.strip():
        yield Problem("spec.trainer.script", "must name a Python program, such as train.py")


def _config_problems(trainer: Trainer) -> Iterator[Problem]:
    """Wrong values of the common keys. The trainer checks the other keys, which depend on the task. Other programs accept any key."""
    if trainer.task is not None or trainer.module is not None:
        for name, message in wrong_values(trainer.config):
            yield Problem(f"spec.trainer.config.{name}", message)


def _input_problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
    names: set[str] = set()
    for index, each in enumerate(spec.inputs):
        path = f"spec.inputs[{index}]"
        if each.name in names:
            yield Problem(f"{path}.name", f"must be the only input called {each.name!r:.80}; give it another name")
        names.add(each.name)
        if re.fullmatch(INPUT_SOURCE, each.source) and (fault := _source_fault(each.source)):
            yield Problem(f"{path}.source", fault)
        for role in each.roles or ():
            if role not in strategy.roles:
                yield Problem(f"{path}.roles", not_one_of(list(strategy.roles), role))


def _source_fault(source: str) -> str:
    try:
        parse_source(source)
    except ValueError as error:
        return str(error)
    return ""


def _resource_claim_problems(spec: TrainingJobSpec) -> Iterator[Problem]:
    for role_name, role in spec.roles.items():
        names: set[str] = set()
        for index, each in enumerate(role.resource_claims or ()):
            if each.name in names:
                path = f"spec.roles.{role_name}.resourceClaims[{index}].name"
                yield Problem(path, f"must be the only claim of the role called {each.name!r:.80}; give it another name")
            names.add(each.name)


def _device_problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
    for name, role in spec.roles.items():
        for resource, quantity in accelerators.limits(role).items():
            if resource in accelerators.ACCELERATORS and accelerators.whole(quantity) is None:
                message = f"{quantity!r} is not a number of devices; write a whole number"
                yield Problem(f"spec.roles.{name}.resources.limits[{resource}]", message)
    if spec.communication is Communication.NCCL:
        worker = spec.roles.get(strategy.worker_role) or Role()
        gpus, processes = accelerators.count(worker, accelerators.GPUS), processes_of(worker)
        if gpus and processes > gpus:  # NCCL refuses two processes on one GPU
            message = f"NCCL needs a GPU for each process, and {processes} processes would share {gpus}; write {gpus} at most"
            yield Problem(f"spec.roles.{strategy.worker_role}.processesPerReplica", message)


def _size_problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterable[Problem]:
    processes = strategy.plan(spec).size
    if processes > MAX_PROCESSES:
        yield Problem(
            "spec.roles", f"make a world of {processes} processes; write fewer replicas or processesPerReplica, for at most {MAX_PROCESSES}"
        )
    size, devices = spec.batch.global_size, strategy.data_parallel(spec)
    if size is None:
        return
    if size < devices:
        message = f"{size} samples cannot be divided among {devices} devices; write at least {devices}"
        yield Problem("spec.batch.globalSize", message)
    elif spec.elastic and strategy.elastic:
        devices = strategy.data_parallel(_resized(strategy, spec, spec.elastic.max_replicas))
        if size < devices:
            message = f"{size} samples cannot be divided among {devices} devices, to which the job may grow"
            yield Problem("spec.batch.globalSize", f"{message}: write at least {devices}, or a smaller elastic.maxReplicas")


def _memory_problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterable[Problem]:
    memory = spec.checkpoint.memory
    if memory is None or all(strategy.roles[role].maximum == 1 for role in strategy.snapshot_roles):
        return
    plan = strategy.plan(_resized(strategy, spec, spec.elastic.min_replicas) if spec.elastic and strategy.elastic else spec)
    replicas = sum(replica.first_rank is not None for replica in plan.replicas)
    if memory.copies >= replicas:
        message = f"{memory.copies} copies on other replicas need {memory.copies + 1} replicas, and the job may have {replicas}"
        yield Problem("spec.checkpoint.memory.copies", f"{message}; write {replicas - 1} at most")


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
    """A problem if the description of the world is too long for an environment variable. Only commands get it in one; other processes
    unpack it."""
    plan = strategy.plan(job.spec)
    if len(plan.replicas) < FEW_REPLICAS:
        return
    addresses = _Longest(job.metadata.name, job.metadata.namespace)
    one_of_each = {replica.role: replica for replica in plan.replicas}
    environments = [strategy.environment(job.spec, plan, replica, addresses) for replica in one_of_each.values()]
    longest, name = max((_longest(environment) for environment in environments), default=(0, ""))
    message = f"{name} has the address of each replica, and {len(plan.replicas)} of them take {longest} bytes"
    if job.spec.trainer.command is not None and longest > LONGEST:
        most = len(plan.replicas) * LONGEST // longest - 5
        remedy = f"write script instead, or at most {most} replicas in all"
        yield Problem("spec.trainer.command", f"{message}: Linux starts no program with a variable of more than {LONGEST}; {remedy}")
    elif any(not _can_be_packed(environment) for environment in environments):
        yield Problem("spec.roles", f"{message}: that is more than a pod can have; write fewer replicas")


def _longest(environment: Mapping[str, str]) -> tuple[int, str]:
    return max(((size(name, value), name) for name, value in environment.items()), default=(0, ""))


def _can_be_packed(environment: Mapping[str, str]) -> bool:
    packed = pack(environment).get(LARGE_VARIABLES, "")
    return size(LARGE_VARIABLES, packed) <= LONGEST and sum(size(*each) for each in environment.items()) <= MAX_UNPACKED


def _resized(strategy: Strategy, spec: TrainingJobSpec, replicas: int) -> TrainingJobSpec:
    name = strategy.worker_role
    role = (spec.roles.get(name) or Role()).model_copy(update={"replicas": replicas})
    return spec.model_copy(update={"roles": {**spec.roles, name: role}})
