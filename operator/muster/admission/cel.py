"""The CEL rules of the CRD. The API server evaluates them when a job is applied.

They are made from `rules.py` and `changes.py`, for the built-in strategies. A strategy of another package passes them, and the operator
checks it.

The API server also evaluates all rules when a status is written. They are a quarter of the cost of such a write, mostly for reading fields.
So each rule begins with the condition that needs the fewest fields.
"""

from __future__ import annotations

from muster.admission.changes import HELD, NEVER, REMEDY, REPLICAS, ROLE_NAMES
from muster.admission.conditions import escaped, literals
from muster.admission.rules import SPEC, Part, Rule, rules_for, rules_for_all
from muster.api.spec import TrainingJobSpec
from muster.api.status import Phase
from muster.strategies.registry import BUILT_IN, RESERVED_BUILT_IN

Validation = dict[str, str]
"""An entry of `x-kubernetes-validations`."""
_ALWAYS_THERE = frozenset(
    info.alias or name for name, info in TrainingJobSpec.model_fields.items() if info.get_default(call_default_factory=True) is not None
)
"""Fields of the spec that must be written, or that the API server fills in."""
_ENDED = [phase.value for phase in Phase if phase.final]
_IDLE = [Phase.SUSPENDED.value, *_ENDED]
"""Phases of a started job in which no replica trains."""


def validations() -> dict[Part, list[Validation]]:
    """The CEL rules by the path of the part of the job that has them. `*` means each entry of a mapping or list."""
    found: dict[Part, list[Validation]] = {}
    for rule in rules_for_all(RESERVED_BUILT_IN):
        found.setdefault(rule.part, []).append(_validation(rule, rule.condition.cel("self")))
    for rule, names in _by_strategies().values():
        condition = rule.condition.cel("self")
        if len(names) < len(BUILT_IN):
            condition = f"{condition} || !(self.strategy in {literals(names)})"
        found.setdefault(rule.part, []).append(_validation(rule, condition))
    for name in NEVER:
        message = f"{name}: cannot be changed; delete the job and apply it again"
        found.setdefault((*SPEC, name), []).append({"rule": "self == oldSelf", "message": message})
    found[()] += _changes()
    return found


def _by_strategies() -> dict[tuple[str, str, str], tuple[Rule, list[str]]]:
    """Each rule of a strategy once, with the names of the strategies that have it."""
    found: dict[tuple[str, str, str], tuple[Rule, list[str]]] = {}
    for strategy in BUILT_IN:
        for rule in rules_for(strategy, BUILT_IN):
            key = (rule.field, rule.condition.cel("self"), rule.message)
            found.setdefault(key, (rule, []))[1].append(strategy.name)
    return found


def _validation(rule: Rule, condition: str) -> Validation:
    """The message names the field from the spec, or for a part of a template, whose path the API server adds, from the last list or
    mapping on it. The schema of containers and initContainers is one object, so their messages must be equal."""
    stars = [index for index, name in enumerate(rule.part) if name == "*"]
    path = rule.part[stars[-1] + 1 :] if stars else rule.part
    names = [name for name in (*path, *rule.field.split(".")) if name and name != "*"]
    label = ".".join(names[1:] if names[0] == "spec" and "*" not in rule.part else names)
    return {"rule": condition, "message": f"{label}: {rule.message}"}


def _changes() -> list[Validation]:
    """Rules for changes. Running pods were rendered from the spec, so most fields can change only while no pod runs."""
    phase = "oldSelf.status.phase"
    has_phase = f"has(oldSelf.status) && has({phase})"
    idle = f"!has(oldSelf.status) || !has(oldSelf.status.admittedTime) || (has({phase}) && {phase} in {literals(_IDLE)})"
    held = {field: _same(field) for field in HELD}
    found = [
        {
            "rule": f"{same} || self.spec.suspend || oldSelf.spec.suspend || {idle}",
            "message": f"{field.removesuffix('.*')}: cannot be changed while the job runs: {REMEDY}{HELD[field]}",
            "fieldPath": f".spec.{field.partition('.*')[0]}",
        }
        for field, same in held.items()
    ]
    message = "spec: cannot be changed because the job has ended; delete it and apply it again, or apply it under another name"
    has_ended = f"{has_phase} && {phase} in {literals(_ENDED)}"
    return [*found, {"rule": f"!({has_ended}) || ({' && '.join(held.values())})", "message": message, "fieldPath": ".spec"}]


def _same(field: str) -> str:
    """The condition that a field of the spec is unchanged, whether it is present or not.

    Optional types (`self.?field`) are shorter, but their cost cannot be estimated.
    """
    if field == ROLE_NAMES:
        return "(self.spec.roles.all(name, name in oldSelf.spec.roles) && oldSelf.spec.roles.all(name, name in self.spec.roles))"
    path = escaped(field).replace(".*", "[name]")
    here, before = f"self.spec.{path}", f"oldSelf.spec.{path}"
    same = f"{here} == {before}"
    if field not in _ALWAYS_THERE:
        same = f"(has({here}) == has({before}) && (!has({here}) || {same}))"
    if "*" in field:
        same = f"self.spec.roles.all(name, !(name in oldSelf.spec.roles) || {same})"
    return f"(has(self.spec.elastic) || {same})" if field == REPLICAS else same
