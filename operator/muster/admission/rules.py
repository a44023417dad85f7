"""The rules for a job that the CRD and Muster share. `cel.py` writes them into the CRD, and `violations` checks a job against them.

Each rule is here once, as a `Condition`. The CRD's rules refuse a job when a user applies it, without a webhook. They cover the built-in
strategies. Muster checks the same rules, for every installed strategy, in `muster run`, `muster validate` and the operator. `validate.py`
has the checks that CEL's cost budget has no room for, such as products of a mesh.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from muster.admission.conditions import (
    Condition,
    at_most,
    equals,
    every,
    exactly_one,
    has,
    is_one_of,
    matches,
    some,
    starts_with,
    value_at,
)
from muster.admission.paths import step
from muster.api.base import ApiModel
from muster.api.constants import IMAGE, RESERVED_ENV_PREFIXES, TRAINER_CONTAINER
from muster.api.problems import Problem
from muster.api.spec import DISABLED_NEEDS_COMMAND, ROLE_NAME, ROLE_NAME_MESSAGE, Communication, Input, Options, Settings
from muster.strategies.accelerators import GPUS
from muster.strategies.base import RoleRule, Strategy
from muster_contract.inputs import INPUT_NAME, INPUT_NAME_MESSAGE, INPUT_SOURCE, INPUT_SOURCE_MESSAGE
from muster_contract.trainer_spec import ENTRY_POINTS

MAX_NAME_LENGTH = 44
"""The rest of the 63 characters of a host name is for `-evaluator-4095`, the longest suffix of a replica, and for other suffixes."""
JOB_NAME = rf"[a-z]([-a-z0-9]{{0,{MAX_NAME_LENGTH - 2}}}[a-z0-9])?"
"""A DNS label as a Service needs it, which may not begin with a digit (RFC 1035)."""
DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
MODULE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
IMAGE_MESSAGE = "must be the name of an image, without spaces"

POD_FIELDS: Mapping[str, str] = {
    "restartPolicy": "Muster decides when a pod is replaced; leave it out",
    "hostname": "Muster names the pods, so that they find each other; leave it out",
    "subdomain": "Muster names the pods, so that they find each other; leave it out",
}
"""Fields of a pod's spec that Muster sets, and why a user may not."""
TRAINER_FIELDS = ("command", "args")
"""Fields of the trainer container that Muster sets."""
CONTAINER_LISTS = ("containers", "initContainers")

Part = tuple[str, ...]
JOB: Part = ()
SPEC: Part = ("spec",)
TRAINER: Part = ("spec", "trainer")
USAGE_LIMITS: Part = ("spec", "usageLimits")
POD: Part = ("spec", "roles", "*", "template", "spec")


@dataclass(frozen=True)
class Rule:
    """A rule for a part of the job. `*` in the path of the part means each entry of a mapping or list."""

    part: Part
    field: str
    """The path of the field that the message is about, relative to the part."""
    condition: Condition
    message: str
    """The rest of the message: what to write."""
    shows_value: bool = False
    """Whether Muster adds the value of the field to the message, if it is a text or a number."""


def violations(job: Mapping[str, Any], rules: Iterable[Rule]) -> Iterator[Problem]:
    """The violations of the rules. `job` is plain data as on the wire, with defaults."""
    for rule in rules:
        for path, part in _parts(job, rule.part):
            if not rule.condition.holds(part):
                value = value_at(part, rule.field)
                shows = rule.shows_value and isinstance(value, str | int)
                message = f"{rule.message}, not {value!r:.80}" if shows else rule.message
                yield Problem(".".join(filter(None, (path, rule.field))), message)


def rules_for_all(reserved: Collection[str]) -> list[Rule]:
    """The rules that do not depend on the strategy. `reserved` are the environment variables that strategies set."""
    name_message = (
        f"must be at most {MAX_NAME_LENGTH} lower-case letters, digits and '-' (pods add up to {63 - MAX_NAME_LENGTH}, such as "
        "-evaluator-4095), beginning with a letter and not ending with '-'"
    )
    rules = [
        Rule(JOB, "metadata.name", matches(JOB_NAME, "metadata.name"), name_message, shows_value=True),
        Rule(SPEC, "roles", every("roles", matches(ROLE_NAME)), f"a name must be {ROLE_NAME_MESSAGE}"),
        *_trainer_rules(),
        *_checkpoint_rules(),
        *_input_rules(),
        *_resource_claim_rules(),
        Rule(USAGE_LIMITS, "", has("deviceHours") | has("cost"), "write deviceHours, cost or both"),
        *_limit_rules(),
        _name_rule("managedBy", rf"{DNS_SUBDOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", "domain/name, such as muster.dev/operator"),
    ]
    for field, reason in POD_FIELDS.items():
        rules.append(Rule(POD, field, ~has(field), f"may not be set: {reason}"))
    sets_env = is_one_of(sorted(reserved))
    for prefix in RESERVED_ENV_PREFIXES:
        sets_env = sets_env | starts_with(prefix)
    for containers in CONTAINER_LISTS:
        other = ~equals("name", TRAINER_CONTAINER)
        for field in TRAINER_FIELDS:
            message = "may not be set for the trainer: write spec.trainer.command"
            rules.append(Rule((*POD, containers, "*"), field, other | ~has(field), message))
        variable = (*POD, containers, "*", "env", "*", "name")
        rules.append(_free_variable(variable, ~sets_env))
    rules.append(_free_variable((*TRAINER, "env", "*", "name"), ~sets_env))
    return rules


def _free_variable(part: Part, is_free: Condition) -> Rule:
    return Rule(part, "", is_free, "must be the name of a variable that Muster does not set", shows_value=True)


def rules_for(strategy: Strategy, strategies: Collection[Strategy]) -> list[Rule]:
    """The rules for jobs of a strategy. Messages name those of `strategies` that support what this one does not."""
    return [
        *_role_rules(strategy),
        *_option_rules(strategy, strategies),
        *_memory_rules(strategy, strategies),
        *_communication_rules(strategy),
        *_elastic_rules(strategy, strategies),
        *_spares_rules(strategy, strategies),
    ]


def listed(names: Iterable[str], word: str = "and") -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def _limit_rules() -> Iterator[Rule]:
    """API servers cut the fraction off a `minimum` before they compare it with a whole number, so that it does not refuse 0."""
    for field in ("deviceHours", "cost"):
        yield Rule(USAGE_LIMITS, field, ~has(field) | ~at_most(field, 0), "must be a number of at least 0.001", shows_value=True)


def _trainer_rules() -> Iterator[Rule]:
    is_program = has("script") | has("command")
    yield Rule(TRAINER, "", exactly_one(*ENTRY_POINTS), f"needs exactly one of {listed(ENTRY_POINTS)}")
    yield Rule(TRAINER, "supervisor", ~equals("supervisor", "Disabled") | has("command"), DISABLED_NEEDS_COMMAND)
    yield Rule(
        TRAINER, "args", ~has("args") | is_program, "is for script and command; write settings of a task or module into settings and config"
    )
    yield Rule(TRAINER, "preload", ~has("preload") | has("script") | has("module"), "is for script and module; remove it")
    are_modules = ~has("preload") | every("preload", matches(MODULE))
    yield Rule(TRAINER, "preload", are_modules, "each item must be a Python module, such as transformers.models.llama")
    one_source = ~has("value") | ~has("valueFrom")
    yield Rule((*TRAINER, "env", "*"), "valueFrom", one_source, "write value or valueFrom, not both")
    for path, unset in _unset(Input, "input"):
        yield Rule(TRAINER, path, unset | ~is_program, "is for task and module, and other programs read by themselves; remove it")
    has_none = reduce(and_, (unset for _, unset in _unset(Settings, "settings")))
    yield Rule(TRAINER, "settings", has_none | ~is_program, "is for task and module; give them to your program in args or config")
    yield Rule((*TRAINER, "image"), "", matches(IMAGE), IMAGE_MESSAGE, shows_value=True)
    module_message = "must be a Python module, such as my_pkg.model; a file goes into script"
    yield Rule((*TRAINER, "module"), "", matches(MODULE) & ~matches(r".*\.py"), module_message, shows_value=True)
    yield _name_rule("trainer.code.configMap.name", DNS_SUBDOMAIN, "the name of a ConfigMap")


def _input_rules() -> Iterator[Rule]:
    one = ("spec", "inputs", "*")
    yield Rule(one, "name", matches(INPUT_NAME, "name"), f"must be {INPUT_NAME_MESSAGE}", shows_value=True)
    yield Rule(one, "source", matches(INPUT_SOURCE, "source"), INPUT_SOURCE_MESSAGE, shows_value=True)
    yield Rule((*one, "secretRef", "name"), "", matches(DNS_SUBDOMAIN), "must be the name of a Secret", shows_value=True)


def _resource_claim_rules() -> Iterator[Rule]:
    one = ("spec", "roles", "*", "resourceClaims", "*")
    name, template = "resourceClaimName", "resourceClaimTemplateName"
    yield Rule(one, "name", matches(DNS_LABEL, "name"), "must be lower-case letters, digits and '-', such as gpus", shows_value=True)
    yield Rule(one, name, exactly_one(name, template), f"write exactly one of {name} and {template}")
    yield Rule((*one, name), "", matches(DNS_SUBDOMAIN), "must be the name of a ResourceClaim", shows_value=True)
    yield Rule((*one, template), "", matches(DNS_SUBDOMAIN), "must be the name of a ResourceClaimTemplate", shows_value=True)


def _checkpoint_rules() -> Iterator[Rule]:
    storage = ("spec", "checkpoint", "storage")
    yield Rule(storage, "", exactly_one("persistentVolumeClaim", "uri"), "needs exactly one of persistentVolumeClaim and uri")
    yield Rule(storage, "secretRef", ~has("secretRef") | has("uri"), "is for a uri, such as s3://bucket/prefix: leave it out")
    uri_message = "must be file:///path, with three slashes, or s3://bucket/prefix"
    yield Rule((*storage, "uri"), "", matches(r"file:///.+|s3://[^/]+(/.*)?"), uri_message, shows_value=True)
    yield _name_rule("checkpoint.storage.persistentVolumeClaim.claimName", DNS_SUBDOMAIN, "the name of a PersistentVolumeClaim")
    yield _name_rule("checkpoint.storage.secretRef.name", DNS_SUBDOMAIN, "the name of a Secret")
    resume_message = "must be Auto, Never or the path of a checkpoint"
    yield Rule(
        ("spec", "checkpoint", "resume"), "", ~matches("(?i)auto|never") | is_one_of(("Auto", "Never")), resume_message, shows_value=True
    )
    for field, kind in (("queue", "queue"), ("priorityClassName", "PriorityClass")):
        yield _name_rule(f"scheduling.{field}", f"|{DNS_SUBDOMAIN}", f"the name of a {kind}: lower-case letters, digits, '-' and '.'")
    yield _name_rule("scheduling.topology.pack", rf"({DNS_SUBDOMAIN}/)?{LABEL_NAME}", "a label of nodes, such as kubernetes.io/hostname")


def _name_rule(path: str, pattern: str, expected: str) -> Rule:
    """A rule for a name in the spec."""
    return Rule((*SPEC, *path.split(".")), "", matches(pattern), f"must be {expected}", shows_value=True)


def _role_rules(strategy: Strategy) -> Iterator[Rule]:
    names = listed(strategy.roles)
    yield Rule(SPEC, "roles", every("roles", is_one_of(strategy.roles)), f"only {names} with this strategy; remove all other roles")
    for name, rule in strategy.roles.items():
        absent, count = ~has(f"roles.{name}"), f"roles.{name}.replicas"
        if rule.maximum is not None:
            yield Rule(SPEC, count, absent | at_most(count, rule.maximum), _count_message(rule), shows_value=True)
        if rule.minimum > 1:
            yield Rule(SPEC, count, absent | ~at_most(count, rule.minimum - 1), _count_message(rule), shows_value=True)
        if rule.single_process:
            path = f"roles.{name}.processesPerReplica"
            yield Rule(SPEC, path, absent | ~has(path) | equals(path, 1), "must be 1 with this strategy, or left out", shows_value=True)


def _count_message(rule: RoleRule) -> str:
    if rule.minimum == rule.maximum:
        return f"must be {rule.minimum} with this strategy"
    limits = [f"at least {rule.minimum}", *([] if rule.maximum is None else [f"at most {rule.maximum}"])]
    return f"must be {' and '.join(limits)} with this strategy"


def _option_rules(strategy: Strategy, strategies: Collection[Strategy]) -> Iterator[Rule]:
    """Options of other strategies. Defaults do not count, because the API server writes them into the spec."""
    for (path, unset), name in zip(_unset(Options, "options"), Options.model_fields, strict=True):
        if name not in strategy.options:
            supporting = listed(each.name for each in strategies if name in each.options)
            yield Rule(SPEC, path, unset, f"only for {supporting}; remove it")


def _memory_rules(strategy: Strategy, strategies: Collection[Strategy]) -> Iterator[Rule]:
    field = "checkpoint.memory"
    if not strategy.keeps_snapshots:
        supporting = listed(each.name for each in strategies if each.keeps_snapshots)
        yield Rule(SPEC, field, ~has(field), f"only {supporting} keep snapshots in memory; remove it")
        return
    is_program = has("trainer.script") | has("trainer.command")
    message = "is for task and module, because other programs save by themselves; remove it"
    yield Rule(SPEC, field, ~has(field) | ~is_program, message)


def _communication_rules(strategy: Strategy) -> Iterator[Rule]:
    supported = [Communication.AUTO.value, *sorted(each.value for each in strategy.communications)]
    yield Rule(
        SPEC,
        "communication",
        is_one_of(supported, "communication"),
        f"must be {listed(supported, 'or')} with this strategy",
        shows_value=True,
    )
    if Communication.NCCL in strategy.communications:
        role = f"roles.{strategy.worker_role}"
        trainer = equals("name", TRAINER_CONTAINER) & _with_gpus("resources.limits")
        in_template = _present(f"{role}.template.spec.containers") & some(f"{role}.template.spec.containers", trainer)
        claims = _present(f"{role}.resourceClaims")
        message = f"NCCL connects GPUs, and the replicas have none; write Auto, or {GPUS[0]} in {role}.resources.limits"
        condition = ~equals("communication", "NCCL") | _with_gpus(f"{role}.resources.limits") | claims | in_template
        yield Rule(SPEC, "communication", condition, message)


def _elastic_rules(strategy: Strategy, strategies: Collection[Strategy]) -> Iterator[Rule]:
    absent, least, most = ~has("elastic"), "elastic.minReplicas", "elastic.maxReplicas"
    if not strategy.elastic:
        supporting = listed(each.name for each in strategies if each.elastic)
        yield Rule(SPEC, "elastic", absent, f"only {supporting} can change their number of workers; remove it")
        return
    yield Rule(SPEC, least, absent | at_most(least, most), "must not be more than maxReplicas")
    role = f"roles.{strategy.worker_role}"
    count = f"{role}.replicas"
    number = strategy.roles[strategy.worker_role].default
    default = ~has(role) & at_most(least, number)
    if number > 1:
        default = default & ~at_most(most, number - 1)
    between = has(role) & at_most(least, count) & at_most(count, most)
    yield Rule(SPEC, count, absent | ~at_most(least, most) | default | between, f"must be from {least} to {most}", shows_value=True)
    for name in (name for name in strategy.roles if name != strategy.worker_role):
        message = f"an elastic job has only {strategy.worker_role}; remove it, or remove spec.elastic"
        yield Rule(SPEC, f"roles.{name}", absent | ~has(f"roles.{name}"), message)
    supervised = ~equals("trainer.supervisor", "Disabled")
    message = "only Muster's supervisor can restart a worker in another world; remove it, or write trainer.supervisor: Auto"
    yield Rule(SPEC, "elastic", absent | supervised, message)
    message = "is required with elastic, because otherwise the batch would change with the number of workers"
    yield Rule(SPEC, "batch.globalSize", absent | has("batch.globalSize"), message)
    message = "must be None with elastic"
    yield Rule(SPEC, "batch.learningRateScaling", absent | equals("batch.learningRateScaling", "None"), message, shows_value=True)


def _spares_rules(strategy: Strategy, strategies: Collection[Strategy]) -> Iterator[Rule]:
    none = equals("recovery.spares", 0)
    if not strategy.spares:
        supporting = listed(each.name for each in strategies if each.spares)
        yield Rule(SPEC, "recovery.spares", none, f"only workers of {supporting} can be replaced by spares; write 0")
        return
    message = "an elastic job has no spares; write 0, and raise elastic.maxReplicas and the number of workers instead"
    yield Rule(SPEC, "recovery.spares", none | ~has("elastic"), message)
    message = "only Muster's supervisor can take a place in a running job; write 0, or trainer.supervisor: Auto"
    yield Rule(SPEC, "recovery.spares", none | ~equals("trainer.supervisor", "Disabled"), message)


def _with_gpus(limits: str) -> Condition:
    return _present(limits) & some(limits, is_one_of(GPUS))


def _present(path: str) -> Condition:
    """Each step of the path is present. Only for parts of the spec that may be absent."""
    names = path.split(".")
    steps = [".".join(names[: count + 1]) for count in range(len(names))]
    condition = has(steps[0])
    for each in steps[1:]:
        condition = condition & has(each)
    return condition


def _unset(model: type[ApiModel], path: str) -> Iterator[tuple[str, Condition]]:
    """Each field of the model at `path`, and the condition that it has its default."""
    for name, info in model.model_fields.items():
        here = f"{path}.{info.alias or name}"
        default = info.get_default()
        yield here, ~has(here) if default is None else equals(here, default)


def _parts(value: Any, part: Part, path: str = "") -> Iterator[tuple[str, Any]]:
    """The parts at a path of a job, each with its path."""
    if not part:
        yield path, value
        return
    name, *rest = part
    if name != "*":
        if isinstance(value, Mapping) and value.get(name) is not None:
            yield from _parts(value[name], tuple(rest), step(path, name))
        return
    entries = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        yield from _parts(each, tuple(rest), step(path, key))
