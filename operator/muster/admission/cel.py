"""The CEL rules of the CRD. The API server evaluates them when a job is applied.

They are made from `rules.py`, for the built-in strategies. A strategy of another package passes them, and the operator checks it.

The API server also evaluates all rules when a status is written, mostly for reading fields. So each rule begins with the condition that
needs the fewest fields, and the rules for changes are in a policy (`change_policy.py`).
"""

from __future__ import annotations

from muster.admission.change_policy import ENDED, HAS_ENDED, while_it_runs
from muster.admission.changes import NEVER, REPLICAS
from muster.admission.conditions import literal, literals
from muster.admission.rules import SPEC, Part, Rule, rules_for, rules_for_all
from muster.api.status import Phase
from muster.strategies.registry import BUILT_IN, RESERVED_BUILT_IN

Validation = dict[str, str]
"""An entry of `x-kubernetes-validations`."""


def validations() -> dict[Part, list[Validation]]:
    """The CEL rules by the path of the part of the job that has them. `*` means each entry of a mapping or list."""
    by_part: dict[Part, list[Validation]] = {}
    for rule in rules_for_all(RESERVED_BUILT_IN):
        by_part.setdefault(rule.part, []).append(_validation(rule, rule.condition.cel("self")))
    for rule, names in _by_strategies().values():
        condition = rule.condition.cel("self")
        if len(names) < len(BUILT_IN):
            condition = f"{condition} || !(self.strategy in {literals(names)})"
        by_part.setdefault(rule.part, []).append(_validation(rule, condition))
    for name in NEVER:
        message = f"{name}: cannot be changed; delete the job and apply it again"
        by_part.setdefault((*SPEC, name), []).append({"rule": "self == oldSelf", "message": message})
    by_part[()].append(_scaling())
    return by_part


def _by_strategies() -> dict[tuple[str, str, str], tuple[Rule, list[str]]]:
    """Each rule of a strategy once, with the names of the strategies that have it."""
    entries: dict[tuple[str, str, str], tuple[Rule, list[str]]] = {}
    for strategy in BUILT_IN:
        for rule in rules_for(strategy, BUILT_IN):
            key = (rule.field, rule.condition.cel("self"), rule.message)
            entries.setdefault(key, (rule, []))[1].append(strategy.name)
    return entries


def _validation(rule: Rule, condition: str) -> Validation:
    """The message names the field from the spec, or for a part of a template, whose path the API server adds, from the last list or
    mapping on it. The schema of containers and initContainers is one object, so their messages must be equal."""
    stars = [index for index, name in enumerate(rule.part) if name == "*"]
    path = rule.part[stars[-1] + 1 :] if stars else rule.part
    names = [name for name in (*path, *rule.field.split(".")) if name and name != "*"]
    label = ".".join(names[1:] if names[0] == "spec" and "*" not in rule.part else names)
    # Without a field, the API server calls that of the whole object `<nil>`.
    place = {} if rule.part else {"fieldPath": f".{rule.field}"}
    return {"rule": condition, "message": f"{label}: {rule.message}", **place}


def _scaling() -> Validation:
    """The rule for the replicas of a role. `kubectl scale` changes them without the change policy, which cannot see the job then.

    A write of the status leaves them as they are, so the API server evaluates only the first part.
    """
    unchanged = "self.spec.roles[name].replicas == oldSelf.spec.roles[name].replicas"
    same = f"self.spec.roles.all(name, !(name in oldSelf.spec.roles) || {unchanged})"
    phase = "oldSelf.status.phase"
    has_phase = f"has(oldSelf.status) && has({phase})"
    ended = f"{has_phase} && {phase} in {literals(ENDED)}"
    idle = f"!has(oldSelf.status) || !has(oldSelf.status.admittedTime) || (has({phase}) && {phase} == {literal(Phase.SUSPENDED.value)})"
    may_change = f"!({ended}) && (self.spec.suspend || oldSelf.spec.suspend || {idle})"
    message = f"{REPLICAS}: {while_it_runs(REPLICAS)}"
    return {
        "rule": f"{same} || has(self.spec.elastic) || ({may_change})",
        "message": message,
        "messageExpression": f"({ended}) ? {literal(f'spec: {HAS_ENDED}')} : {literal(message)}",
        "fieldPath": ".spec.roles",
    }
