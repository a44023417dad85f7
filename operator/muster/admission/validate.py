"""Checks of a whole job: the rules of `rules.py`, and those that only Muster checks.

The API types check the types and bounds of single fields.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from muster.admission.bounds import bound_problems, bounded
from muster.admission.capacity import capacity_problems, capacity_remarks
from muster.admission.conditions import value_at
from muster.admission.paths import step
from muster.admission.resources import resource_problems
from muster.admission.rules import DNS_LABEL, SPEC, Rule, rules_for, rules_for_all, violations
from muster.admission.sentences import not_one_of
from muster.admission.template import env_problems, template_problems, template_remarks
from muster.api import grace
from muster.api.constants import API_VERSION, DEPRECATED_API_VERSION
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.spec import Communication, Role, RoleName, StrategyName, Trainer, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Strategy, host_in_cluster, processes_of
from muster.strategies.faults import StrategyFaultError
from muster.strategies.registry import BUILT_IN, REFUSED, RESERVED_BUILT_IN, STRATEGIES, reserved_for
from muster.strategies.torchrun import PYTORCH
from muster_contract.config import slips, unknown_keys, wrong_values
from muster_contract.environment import LARGE_VARIABLES
from muster_contract.inputs import INPUT_SOURCE, parse_source
from muster_contract.large_variables import LONGEST, MAX_UNPACKED, pack, size
from muster_contract.tasks import MEASURING, TASKS, no_task

MAX_PROCESSES = 65_536
FEW_REPLICAS = 500
"""The addresses of fewer replicas always fit into a variable of a program."""


def problems(job: TrainingJob, *, unread: Collection[str] = ()) -> list[Problem]:
    """All problems of a job with correct types. Empty if the job can be accepted.

    `unread` are fields whose values could not be read. The job has defaults in their places, so checks that depend on them are left out.
    """
    spec = job.spec
    if unknown := strategy_problems(spec.strategy):
        return unknown
    try:
        return list(dict.fromkeys(_problems(job, STRATEGIES[spec.strategy], unread)))
    except StrategyFaultError as error:
        return error.problems


def remarks(job: TrainingJob) -> list[Problem]:
    """What may be wrong with a valid job."""
    trainer, roles = job.spec.trainer, job.spec.roles
    return [
        *_version_remarks(job),
        *capacity_remarks(job.spec),
        *(problem for name, role in roles.items() for problem in template_remarks(name, role.template)),
        *(Problem(f"spec.trainer.config.{name}", message) for name, message in slips(trainer.config) if trainer.task is None),
    ]


def _version_remarks(job: TrainingJob) -> Iterator[Problem]:
    if job.api_version == DEPRECATED_API_VERSION:
        yield Problem("apiVersion", f"{DEPRECATED_API_VERSION} is deprecated: write {API_VERSION}. No field differs")


def _problems(job: TrainingJob, strategy: Strategy, unread: Collection[str]) -> list[Problem]:
    spec = job.spec
    document = {"metadata": {"name": job.metadata.name}, "spec": spec.wire()}
    gaps = {re.split(r"[.\[]", field)[1] for field in unread if field.startswith("spec.")}
    of_strategy = rules_of_strategy(spec.strategy) if "strategy" not in gaps else rules_for_all(RESERVED_BUILT_IN)
    is_comparable = gaps.isdisjoint(_COMPARED)
    found = [
        *violations(document, [rule for rule in of_strategy if rule.part != SPEC or gaps.isdisjoint(_sections(rule))]),
        *_namespace_problems(job.metadata.namespace),
        *_bounds_problems(spec),
        *_program_problems(strategy, spec.trainer),
        *_config_problems(strategy, spec.trainer),
        *env_problems(_env(spec.trainer), "spec.trainer.env"),
        *_input_problems(strategy, spec),
        *_role_problems(spec),
        *_resource_claim_problems(spec),
        *capacity_problems(strategy, spec),
        *(_comparisons(strategy, job) if is_comparable else ()),
    ]
    return [problem for problem in found if not any(_is_around(problem.field, field) for field in unread)]


_COMPARED = frozenset({"batch", "checkpoint", "communication", "elastic", "options", "recovery", "roles", "strategy", "trainer"})
"""The parts of the spec that `_comparisons` reads."""


def _comparisons(strategy: Strategy, job: TrainingJob) -> list[Problem]:
    """The problems of fields that do not fit each other."""
    spec = job.spec
    return [
        *_device_problems(strategy, spec),
        *_size_problems(strategy, spec),
        *_memory_problems(strategy, spec),
        *_variable_problems(strategy, job),
        *(problem for check in strategy.checks for problem in check(strategy, spec)),
    ]


def _is_around(field: str, other: str) -> bool:
    """Whether one of the fields is the other one, or contains it."""
    return field == other or f"{field}.".startswith((f"{other}.", f"{other}[")) or other.startswith((f"{field}.", f"{field}["))


@cache
def _sections(rule: Rule) -> frozenset[str]:
    """The fields of the spec that a rule reads."""
    return frozenset(re.findall(r"\bself\.(?:__)?([A-Za-z]+)", rule.condition.cel("self")))


def strategy_problems(name: object) -> list[Problem]:
    """The problem of a job whose strategy is not installed. No rule of a strategy applies to such a job."""
    if not isinstance(name, str) or name in STRATEGIES:
        return []
    return [Problem("spec.strategy", "; ".join([not_one_of(list(STRATEGIES), name), *REFUSED]))]


@cache
def rules_of_strategy(name: StrategyName) -> list[Rule]:
    strategy = STRATEGIES[name]
    return [*rules_for_all(reserved_for(strategy)), *rules_for(strategy, STRATEGIES.values())]


def _namespace_problems(namespace: str) -> Iterable[Problem]:
    if not re.fullmatch(DNS_LABEL, namespace) or len(namespace) > 63:
        yield Problem("metadata.namespace", f"must be at most 63 lower-case letters, digits and '-', not {namespace!r:.80}")


def _bounds_problems(spec: TrainingJobSpec) -> Iterable[Problem]:
    trainer = {"config": spec.trainer.config, "command": spec.trainer.command, "args": spec.trainer.args, "env": _env(spec.trainer)}
    roles = {
        name: {"template": role.template, "resources": {"limits": role.resources.limits, "requests": role.resources.requests}}
        for name, role in spec.roles.items()
    }
    return bound_problems(bounded({"trainer": trainer, "roles": roles}))


def _env(trainer: Trainer) -> list[dict[str, Any]]:
    return [each.wire() for each in trainer.env or ()]


def _program_problems(strategy: Strategy, trainer: Trainer) -> Iterable[Problem]:
    if trainer.command is not None and not trainer.command[0].strip():
        yield Problem("spec.trainer.command[0]", "must name a program, such as torchrun")
    script = (trainer.script or "").split()
    if trainer.script is not None and not script:
        yield Problem("spec.trainer.script", "must name a Python program, such as train.py")
    elif script and script[0].startswith("-"):
        python = "torchrun" if strategy.framework is PYTORCH else "python"
        command = ", ".join([python, *script]) if script[0] == "-m" else f"{python}, {', '.join(script)}"
        yield Problem("spec.trainer.script", f"must begin with the file of a Python program, not {script[0]}: write command: [{command}]")


def _config_problems(strategy: Strategy, trainer: Trainer) -> Iterator[Problem]:
    """Wrong values of the shared settings, and all that is wrong with the settings of a bundled task. Other programs accept any other key.

    The strategy of another package may have tasks of its own.
    """
    own, shared = trainer.config, trainer.settings.wire()

    def problems(found: Iterable[tuple[str, str]]) -> Iterator[Problem]:
        return (Problem(step(f"spec.trainer.{'settings' if name in shared else 'config'}", name), message) for name, message in found)

    for name in (name for name in shared if name in own and own[name] != shared[name]):
        message = f"spec.trainer.config.{name} has another value, {own[name]!r:.80}: remove that one"
        yield Problem(f"spec.trainer.settings.{name}", message)
    if trainer.task is None or trainer.task in MEASURING or strategy not in BUILT_IN:
        if trainer.task is not None or trainer.module is not None:
            yield from problems(wrong_values(trainer.all_settings))
        return
    task, framework = TASKS.get(trainer.task), strategy.framework.name
    if task is None:
        yield Problem("spec.trainer.task", no_task(trainer.task))
    elif framework not in task.frameworks:
        yield Problem("spec.trainer.task", f"{framework} has no task {trainer.task}; write another task or strategy")
    else:
        yield from problems(unknown_keys(trainer.all_settings, task.keys))
        yield from problems(wrong_values(trainer.all_settings, task.keys))


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


def _role_problems(spec: TrainingJobSpec) -> Iterator[Problem]:
    for name, role in spec.roles.items():
        own = role.resources
        yield from resource_problems(own.limits, own.requests, f"spec.roles.{name}.resources", below=accelerators.limits(role))
        yield from template_problems(name, role.template, own.limits)
        yield from _grace_problems(name, role, spec)


def _grace_problems(name: RoleName, role: Role, spec: TrainingJobSpec) -> Iterator[Problem]:
    """The program counts on the job's grace period, so its pod must not be killed before."""
    seconds, needed = value_at(role.template, "spec.terminationGracePeriodSeconds"), grace.pod_seconds(spec)
    if isinstance(seconds, int) and not isinstance(seconds, bool) and 0 <= seconds < needed:
        message = f"must be at least {needed}, not {seconds}: the grace period of the job and {grace.SECONDS_AFTER_GRACE} s more"
        remedy = f"leave it out, and write spec.checkpoint.gracePeriodSeconds: {max(1, seconds)} in its place"
        yield Problem(f"spec.roles.{name}.template.spec.terminationGracePeriodSeconds", f"{message}; {remedy}")


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
    if memory is None or memory.size_mib == 0 or not strategy.keeps_snapshots:
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
