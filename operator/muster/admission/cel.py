"""The CEL rules of the CRD: what can be refused when a user applies a job, without a webhook.

Made from the same tables that the reconciler's rules use. What CEL cannot say within its cost budget (products of a mesh, batch
arithmetic) is left to `validate.problems`, which repeats all of this too.

All rules are evaluated whenever a status is written, too, and make up a quarter of what that costs the API server, most of it for looking
up fields. So what decides with the fewest of them comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from muster.admission.changes import NEVER, WHILE_RUNNING
from muster.admission.template import CONTAINER_LISTS, IMAGE, IMAGE_MESSAGE, OURS, TRAINER_OURS
from muster.admission.validate import (
    ARGS_MESSAGE,
    MANAGER,
    MAX_NAME_LENGTH,
    MODULE,
    MODULE_MESSAGE,
    PROGRAMS,
    SERVICE_NAME,
    STORAGE_URI,
)
from muster.api.constants import RESERVED_ENV_NAMES, RESERVED_ENV_PREFIXES, TRAINER_CONTAINER
from muster.api.spec import DISABLED_NEEDS_COMMAND, Communication, Options, RoleName, TrainingJobSpec
from muster.api.status import Phase
from muster.strategies.accelerators import GPUS
from muster.strategies.base import Framework, Strategy
from muster.strategies.checks import ELASTIC_RATE, ELASTIC_SIZE, ELASTIC_SUPERVISED
from muster.strategies.registry import STRATEGIES

Rule = dict[str, str]
SPEC: tuple[str, ...] = ()
_ALWAYS_THERE = frozenset(
    info.alias or name for name, info in TrainingJobSpec.model_fields.items() if info.get_default(call_default_factory=True) is not None
)
"""Fields of the spec that must be written, or that the API server fills in."""
_ENDED = [phase.value for phase in Phase if phase.final]
_IDLE = [Phase.SUSPENDED.value, *_ENDED]
"""Phases in which no replica trains, of jobs that were started once."""


def job_rules() -> list[Rule]:
    """Rules of the whole object: of its name, and of what may change, which the status says."""
    name = f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && self.metadata.name.matches({_text(f'^{SERVICE_NAME}$')})"
    message = f"metadata.name: must be at most {MAX_NAME_LENGTH} lower-case letters, digits and '-', beginning with a letter"
    return [_rule(name, message), *_change_rules()]


def spec_rules() -> dict[tuple[str, ...], list[Rule]]:
    """Rules by the path of the part of the spec that they stand at; `*` is the items of a list."""
    rules = {
        SPEC: [*_role_rules(), *_option_rules(), *_communication_rules(), *_elastic_rules()],
        ("trainer",): list(_trainer_rules()),
        ("trainer", "image"): [_rule(f"self.matches({_text(f'^{IMAGE}$')})", f"trainer.image: {IMAGE_MESSAGE}")],
        ("trainer", "module"): [_rule(f"self.matches({_text(f'^{MODULE}$')})", f"trainer.module: {MODULE_MESSAGE}")],
        ("checkpoint", "storage"): list(_storage_rules()),
        ("managedBy",): [_rule(f"self.matches({_text(f'^{MANAGER}$')})", "managedBy: must be domain/name, such as muster.dev/operator")],
    }
    for name in NEVER:
        rules.setdefault((name,), []).append(_rule("self == oldSelf", f"{name}: cannot be changed: delete the job and apply it anew"))
    for role in RoleName:
        pod = ("roles", role.value, "template", "spec")
        rules[pod] = [_rule(f"!has(self.{field})", f"{field}: may not be set: {reason}") for field, reason in OURS.items()]
        for containers in CONTAINER_LISTS:
            rules[(*pod, containers, "*")] = [_command_rule()]
            rules[(*pod, containers, "*", "env", "*", "name")] = [_env_rule()]
    return rules


def _role_rules() -> Iterator[Rule]:
    for role in RoleName:
        here = f"self.roles.{role.value}"
        having = [strategy for strategy in STRATEGIES.values() if role in strategy.roles]
        if len(having) < len(STRATEGIES):
            names = _names(having)
            yield _rule(f"!has({here}) || self.strategy in {_list(names)}", f"roles.{role.value}: only {_words(names)} have it; remove it")
        limited = [strategy for strategy in having if strategy.roles[role].maximum == 1]
        if limited:
            names = _names(limited)
            rule = f"!(self.strategy in {_list(names)}) || !has({here}) || {here}.replicas == 1"
            yield _rule(rule, f"roles.{role.value}.replicas: {_words(names)} take exactly 1 {role.value}; write 1")
        tensorflow = _names(strategy for strategy in having if strategy.framework is Framework.TENSORFLOW)
        single = f"!has({here}) || !has({here}.processesPerReplica) || {here}.processesPerReplica == 1"
        rule = f"!(self.strategy in {_list(tensorflow)}) || {single}"
        yield _rule(rule, f"roles.{role.value}.processesPerReplica: TensorFlow runs one process for all devices; write 1, or leave it out")


def _option_rules() -> Iterator[Rule]:
    for name, info in Options.model_fields.items():
        names = _names(strategy for strategy in STRATEGIES.values() if name in strategy.options)
        default, wire = info.get_default(), info.alias or name
        unset = f"!has(self.options.{wire})" if default is None else f"self.options.{wire} == {_text(default)}"
        yield _rule(f"{unset} || self.strategy in {_list(names)}", f"options.{wire}: only for {_words(names)}; remove it")


def _communication_rules() -> Iterator[Rule]:
    for value in Communication:
        if value is not Communication.AUTO:
            names = _names(strategy for strategy in STRATEGIES.values() if value in strategy.communications)
            rule = f"self.communication != {_text(value.value)} || self.strategy in {_list(names)}"
            yield _rule(rule, f"communication: {value.value} is only for {_words(names)}; write Auto")
    limits = "self.roles.worker.resources.limits"
    trainers = f"self.roles.worker.template.spec.containers.filter(c, c.name == {_text(TRAINER_CONTAINER)}"
    asked = f"has({limits}) && {limits}.exists(name, name in {_list(GPUS)})"
    laid_over = (
        "has(self.roles.worker.template) && has(self.roles.worker.template.spec) && has(self.roles.worker.template.spec.containers) && "
        f"{trainers} && has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(name, name in {_list(GPUS)})).size() > 0"
    )
    message = f"communication: NCCL connects GPUs, and the workers ask for none; write Auto, or {GPUS[0]} in roles.worker.resources.limits"
    yield _rule(f"self.communication != 'NCCL' || ({asked}) || ({laid_over})", message)


def _elastic_rules() -> Iterator[Rule]:
    names = _names(strategy for strategy in STRATEGIES.values() if strategy.elastic)
    absent = "!has(self.elastic)"
    yield _rule(
        f"{absent} || self.strategy in {_list(names)}", f"elastic: only {_words(names)} can change their number of workers; remove it"
    )
    yield _rule(
        f"{absent} || self.elastic.minReplicas <= self.elastic.maxReplicas", "elastic.minReplicas: must not be more than maxReplicas"
    )
    between = "self.elastic.minReplicas <= self.roles.worker.replicas && self.roles.worker.replicas <= self.elastic.maxReplicas"
    yield _rule(f"{absent} || ({between})", "roles.worker.replicas: must lie between elastic.minReplicas and elastic.maxReplicas")
    yield _rule(f"{absent} || self.trainer.supervisor != 'Disabled'", f"elastic: {ELASTIC_SUPERVISED}")
    yield _rule(f"{absent} || has(self.batch.globalSize)", f"batch.globalSize: {ELASTIC_SIZE}")
    yield _rule(f"{absent} || self.batch.learningRateScaling == 'None'", f"batch.learningRateScaling: {ELASTIC_RATE}")


def _change_rules() -> Iterator[Rule]:
    """What runs was made from the spec. Before anything was started, and while nothing is, a mistake in it is corrected where it stands."""
    held = dict(_held())
    phase = "oldSelf.status.phase"
    known = f"has(oldSelf.status) && has({phase})"
    idle = f"!has(oldSelf.status) || !has(oldSelf.status.admittedTime) || (has({phase}) && {phase} in {_list(_IDLE)})"
    for field, same in held.items():
        message = f"{field}: cannot be changed while the job runs: set suspend: true first, or in the same change"
        message += ", or write elastic" if field == "roles.worker.replicas" else ""
        yield _rule(f"{same} || self.spec.suspend || oldSelf.spec.suspend || {idle}", message, at=f".spec.{field}")
    message = "spec: cannot be changed, for the job has ended: delete it and apply it anew, or apply it under another name"
    yield _rule(f"!({known} && {phase} in {_list(_ENDED)}) || ({' && '.join(held.values())})", message, at=".spec")


def _held() -> Iterator[tuple[str, str]]:
    """The fields that are fixed unless nothing runs, each with the condition that it is as it was."""
    for field in WHILE_RUNNING:
        yield field, _same(field)
    for role in RoleName:
        here = f"roles.{role.value}"
        if role is RoleName.WORKER:
            for field in ("resources", "processesPerReplica", "template"):
                yield f"{here}.{field}", _same(f"{here}.{field}")
            yield f"{here}.replicas", f"(has(self.spec.elastic) || {_same(f'{here}.replicas')})"
        else:
            yield here, _same(here)


def _trainer_rules() -> Iterator[Rule]:
    given = ", ".join(f"has(self.{name})" for name in PROGRAMS)
    yield _rule(
        f"[{given}].filter(given, given).size() == 1", f"trainer: needs exactly one of {', '.join(PROGRAMS[:-1])} and {PROGRAMS[-1]}"
    )
    yield _rule("self.supervisor != 'Disabled' || has(self.command)", f"trainer.supervisor: {DISABLED_NEEDS_COMMAND}")
    yield _rule("!has(self.args) || has(self.script) || has(self.command)", f"trainer.args: {ARGS_MESSAGE}")


def _storage_rules() -> Iterator[Rule]:
    yield _rule(
        "has(self.persistentVolumeClaim) != has(self.uri)", "checkpoint.storage: needs exactly one of persistentVolumeClaim and uri"
    )
    uri = f"!has(self.uri) || self.uri.matches({_text(f'^({STORAGE_URI})$')})"
    yield _rule(uri, "checkpoint.storage.uri: must be file:///path or s3://bucket/prefix")
    secret = "!has(self.secretRef) || has(self.uri)"
    yield _rule(secret, "checkpoint.storage.secretRef: is for a uri, such as s3://bucket/prefix: leave it out")


def _command_rule() -> Rule:
    absent = " && ".join(f"!has(self.{field})" for field in TRAINER_OURS)
    message = f"{' and '.join(TRAINER_OURS)} may not be set for the trainer: write spec.trainer.command"
    return _rule(f"self.name != {_text(TRAINER_CONTAINER)} || ({absent})", message)


def _env_rule() -> Rule:
    prefixes = " || ".join(f"self.startsWith({_text(prefix)})" for prefix in RESERVED_ENV_PREFIXES)
    reserved = f"{prefixes} || self in {_list(sorted(RESERVED_ENV_NAMES))}"
    return _rule(f"!({reserved})", "env: this name may not be set: Muster sets it; choose another name")


def _same(field: str) -> str:
    """That a field of the spec is as it was, be it there or not.

    Optional types (`self.?field`) say it shorter, but nobody can estimate their cost.
    """
    here, before = f"self.spec.{field}", f"oldSelf.spec.{field}"
    same = f"{here} == {before}"
    return same if field in _ALWAYS_THERE else f"(has({here}) == has({before}) && (!has({here}) || {same}))"


def _rule(rule: str, message: str, *, at: str = "") -> Rule:
    """`at`: the field that the API server names, where that is not the one that the rule stands at."""
    return {"rule": rule, "message": message, **({"fieldPath": at} if at else {})}


def _names(strategies: Iterable[Strategy]) -> list[str]:
    return [strategy.name.value for strategy in strategies]


def _words(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _list(values: Iterable[str]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
