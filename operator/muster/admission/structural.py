"""Converts the JSON schema of a pydantic type to the structural schema of a CustomResourceDefinition.

Structural (Kubernetes documentation, "Specifying a structural schema"): every level has a type; no `$ref`, no `title`, no
`additionalProperties: false` (unknown fields are pruned, or refused by strict clients); `anyOf` may only constrain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

Schema = dict[str, Any]

OPEN_ENUMS = frozenset({"Reason", "ConditionType"})
"""Enums of the status that stay plain text: a newer operator may write values that an older CRD does not list."""

_COPIED = (
    "description",
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "maxProperties",
    "x-kubernetes-int-or-string",
)


def structural_schema(model: type[Any], *, defaults: bool) -> Schema:
    """The schema of a type with all references written out.

    `defaults`: whether the schema has constant defaults. A part whose fields all have defaults gets the default `{}`, so that the
    server fills in its fields. Absent optional fields stay absent.
    """
    whole = TypeAdapter(model).json_schema(by_alias=True)
    return _converted(whole, whole.get("$defs", {}), defaults=defaults)


def part_of(schema: Schema, path: Iterable[str]) -> Schema:
    """The part of a schema at a path, in which `*` stands for each entry of a mapping or list."""
    for name in path:
        schema = schema["properties"][name] if name != "*" else schema["items" if "items" in schema else "additionalProperties"]
    return schema


def _converted(node: Mapping[str, Any], definitions: Mapping[str, Any], *, defaults: bool) -> Schema:
    node = _resolved(node, definitions)
    schema: Schema = {key: node[key] for key in _COPIED if key in node}
    if "const" in node:
        schema["enum"] = [node["const"]]
    if defaults and node.get("default") is not None:
        schema["default"] = node["default"]
    if "items" in node:
        schema["items"] = _converted(node["items"], definitions, defaults=defaults)
    if "properties" in node:
        schema["properties"] = {
            name: _property(each, definitions, optional=name not in node.get("required", []), defaults=defaults)
            for name, each in node["properties"].items()
        }
        if node.get("required"):
            schema["required"] = list(node["required"])
        return schema
    extra = node.get("additionalProperties") or next(iter(node.get("patternProperties", {}).values()), None)
    if extra is True:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    elif isinstance(extra, dict):
        schema["additionalProperties"] = _converted(extra, definitions, defaults=defaults)
    return schema


def _property(node: Mapping[str, Any], definitions: Mapping[str, Any], *, optional: bool, defaults: bool) -> Schema:
    schema = _converted(node, definitions, defaults=defaults)
    nullable = any(each.get("type") == "null" for each in node.get("anyOf", ()))
    if defaults and optional and not nullable and "properties" in schema and not schema.get("required"):
        schema["default"] = {}
    return schema


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The node with `X | None` as an optional X, and with `$ref` replaced by its target. Keys of the node override those of the target."""
    merged = dict(node)
    for choice in merged.pop("anyOf", ()):
        if choice.get("type") != "null":
            merged = {**choice, **merged}
    reference = merged.pop("$ref", None)
    if reference is None:
        return merged
    name = reference.rpartition("/")[2]
    target = _resolved(definitions[name], definitions)
    if name in OPEN_ENUMS:
        target = {"type": "string", "maxLength": 1024}
    return {**target, **merged}
