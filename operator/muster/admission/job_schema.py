"""The JSON schema of a job file, for editors. It is made from the same types and rules as the CRD.

A rule that JSON schema can express has its sentence in `errorMessage`, which editors show. The schema has no comparisons of two fields,
and none of the checks of `validate.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.admission.conditions import Schema, negated
from muster.admission.definitions import schema as structural
from muster.admission.rules import SPEC, Part, Rule, rules_for, rules_for_all
from muster.admission.structural import part_of
from muster.api.constants import API_VERSION, DEPRECATED_API_VERSION, KIND
from muster.strategies.base import Strategy
from muster.strategies.registry import BUILT_IN, RESERVED_BUILT_IN

DEFAULT_FILE = Path("docs") / "schema" / "trainingjob.json"
DRAFT = "http://json-schema.org/draft-07/schema#"
"""The newest version that all editors read."""
_DROPPED = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations")


def job_schema(strategies: Sequence[Strategy] = BUILT_IN) -> Schema:
    """The JSON schema of a job file with one of these strategies."""
    whole: Schema = _converted(structural())
    properties = whole["properties"]
    properties["apiVersion"]["enum"] = [API_VERSION, DEPRECATED_API_VERSION]
    properties["kind"]["const"] = KIND
    properties["metadata"] = _metadata()
    properties["status"] = {
        "type": "object",
        "description": "The observed state. The operator writes it, and commands ignore it in a file.",
    }
    properties["spec"]["properties"]["strategy"]["enum"] = [strategy.name for strategy in strategies]
    for rule, names in _rules(strategies):
        _attach(whole, rule, names)
    return {"$schema": DRAFT, "title": KIND, **whole, "required": ["apiVersion", "kind", "metadata", "spec"]}


def text() -> str:
    """The published file: the schema for the built-in strategies."""
    return as_text(job_schema())


def as_text(schema: Schema) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _converted(node: Any) -> Any:
    """A structural schema as JSON schema. Fields that the API server prunes are refused."""
    schema = {key: value for key, value in node.items() if key not in _DROPPED}
    if schema.pop("x-kubernetes-int-or-string", False):
        schema["type"] = ["integer", "string"]
    is_open = schema.pop("x-kubernetes-preserve-unknown-fields", False)
    if "items" in schema:
        schema["items"] = _converted(schema["items"])
    if "properties" in schema:
        schema["properties"] = {name: _converted(each) for name, each in schema["properties"].items()}
        if not is_open:
            schema["additionalProperties"] = False
    elif "additionalProperties" in schema:
        schema["additionalProperties"] = _converted(schema["additionalProperties"])
    return schema


def _metadata() -> Schema:
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    return {
        "description": "Name and the rest of an object's metadata.",
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"description": "Name of the job.", "type": "string"},
            "namespace": {"description": "Namespace of the job.", "type": "string"},
            "labels": {"description": "Labels.", **texts},
            "annotations": {"description": "Annotations.", **texts},
        },
    }


def _rules(strategies: Sequence[Strategy]) -> list[tuple[Rule, list[str]]]:
    """Each rule with the names of the strategies that it is for. No names: it is for all."""
    entries: dict[tuple[Part, str, str, str], tuple[Rule, list[str]]] = {}
    for strategy in strategies:
        for rule in rules_for(strategy, strategies):
            key = (rule.part, rule.field, rule.condition.cel("self"), rule.message)
            entries.setdefault(key, (rule, []))[1].append(strategy.name)
    reserved = RESERVED_BUILT_IN.union(*(strategy.reserved_variables for strategy in strategies))
    return [
        *((rule, []) for rule in rules_for_all(reserved)),
        *((rule, names if len(names) < len(strategies) else []) for rule, names in entries.values()),
    ]


def _attach(whole: Schema, rule: Rule, strategies: Sequence[str]) -> None:
    """Adds the rule to the schema of its part, unless JSON schema cannot express it."""
    part = part_of(whole, rule.part)
    violation = negated(rule.condition.schema(part))
    if violation is None:
        return
    if strategies:
        assert rule.part == SPEC, rule.part
        violation = {"required": ["strategy"], "properties": {"strategy": {"enum": list(strategies)}}, "allOf": [violation]}
    label = f"{rule.field}: " if rule.field else ""
    # No part is null, so `const: null` is never fulfilled. Unlike with `not`, editors show its errorMessage.
    part.setdefault("allOf", []).append({"if": violation, "then": {"const": None, "errorMessage": f"{label}{rule.message}"}})
