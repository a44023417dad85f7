"""Conditions on a part of a job, each in three forms: CEL for the API server, a function for Muster itself, and JSON schema for editors.

A part is plain data as on the wire, with its defaults. A path is a text such as `elastic.minReplicas`. It starts at the part, and is empty
for the part itself. Put `has` of an optional part before a path through it, because CEL reports an error for a missing field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_ROLE = r"roles\.(\w+)"
RESERVED_WORDS = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"),
        *("package", "namespace", "return", "var", "void", "while"),
    }
)
"""Words that CEL reserves. A rule writes a field of such a name with two underscores on both sides, as in `self.options.__loop__`.
https://kubernetes.io/docs/reference/using-api/cel/#escaping"""

Schema = dict[str, Any]
ToSchema = Callable[[Schema], Schema | None]


@dataclass(frozen=True)
class Condition:
    """A condition that can be combined with `|`, `&` and `~`."""

    cel: Callable[[str], str]
    """The CEL expression. Its argument is the expression of the part, such as `self`."""
    holds: Callable[[Any], bool]
    """Whether the condition holds for a part."""
    schema: ToSchema
    """A JSON schema that a part matches if the condition holds for it with its defaults. None if JSON schema cannot express the condition.
    The argument is the schema of the part, which has the defaults."""

    def __or__(self, other: Condition) -> Condition:
        return Condition(
            lambda it: f"({self.cel(it)} || {other.cel(it)})",
            lambda part: self.holds(part) or other.holds(part),
            lambda part: _combined("anyOf", self.schema(part), other.schema(part)),
        )

    def __and__(self, other: Condition) -> Condition:
        return Condition(
            lambda it: f"({self.cel(it)} && {other.cel(it)})",
            lambda part: self.holds(part) and other.holds(part),
            lambda part: _combined("allOf", self.schema(part), other.schema(part)),
        )

    def __invert__(self) -> Condition:
        return Condition(
            lambda it: f"!({self.cel(it)})",
            lambda part: not self.holds(part),
            lambda part: negated(self.schema(part)),
        )


def has(path: str) -> Condition:
    """The field or the role is present."""
    role = re.fullmatch(_ROLE, path)
    return Condition(
        lambda it: f"{literal(role[1])} in {it}.roles" if role else f"has({_cel(it, path)})",
        lambda part: value_at(part, path) is not None,
        lambda part: _at(part, path, {}, absent=default_at(part, path) is not None),
    )


def exactly_one(*names: str) -> Condition:
    """One of these fields is present, and no other."""
    return Condition(
        lambda it: f"[{', '.join(f'has({_cel(it, name)})' for name in names)}].filter(given, given).size() == 1",
        lambda part: sum(value_at(part, name) is not None for name in names) == 1,
        lambda part: {"oneOf": [{"required": [name]} for name in names]},
    )


def equals(path: str, value: str | int) -> Condition:
    return Condition(
        lambda it: f"{_cel(it, path)} == {literal(value)}",
        lambda part: bool(value_at(part, path) == value),
        lambda part: _at(part, path, {"const": value}, absent=default_at(part, path) == value),
    )


def at_most(path: str, limit: str | int) -> Condition:
    """The number at `path` is not more than a number, or than the number at another path."""

    def limit_of(part: Any) -> Any:
        return limit if isinstance(limit, int) else value_at(part, limit)

    def schema(part: Schema) -> Schema | None:
        """JSON schema cannot compare two fields."""
        if not isinstance(limit, int):
            return None
        default = default_at(part, path)
        return _at(part, path, {"maximum": limit}, absent=default is not None and default <= limit)

    return Condition(
        lambda it: f"{_cel(it, path)} <= {limit if isinstance(limit, int) else _cel(it, limit)}",
        lambda part: bool(value_at(part, path) <= limit_of(part)),
        schema,
    )


def matches(pattern: str, path: str = "") -> Condition:
    """The text matches the whole pattern, which has the syntax that Python and RE2 share."""
    return Condition(
        lambda it: f"{_cel(it, path)}.matches({literal(f'^({pattern})$')})",
        lambda part: isinstance(text := value_at(part, path), str) and re.fullmatch(pattern, text) is not None,
        lambda part: _at(part, path, {"pattern": f"^({_ecma(pattern)})$"}, absent=False),
    )


def starts_with(prefix: str) -> Condition:
    return Condition(
        lambda it: f"{it}.startsWith({literal(prefix)})",
        lambda part: isinstance(part, str) and part.startswith(prefix),
        lambda _: {"pattern": f"^{re.escape(prefix)}"},
    )


def is_one_of(values: Iterable[str], path: str = "") -> Condition:
    allowed = list(values)
    return Condition(
        lambda it: f"{_cel(it, path)} in {literals(allowed)}",
        lambda part: value_at(part, path) in allowed,
        lambda part: _at(part, path, {"enum": allowed}, absent=default_at(part, path) in allowed),
    )


def every(path: str, condition: Condition) -> Condition:
    """The condition holds for each key of a mapping, or for each item of a list."""
    return Condition(
        lambda it: f"{_cel(it, path)}.all({_variable(it)}, {condition.cel(_variable(it))})",
        lambda part: all(map(condition.holds, _entries(value_at(part, path)))),
        lambda part: _at(part, path, _each(schema_at(part, path), condition.schema), absent=True),
    )


def some(path: str, condition: Condition) -> Condition:
    """The condition holds for a key of a mapping, or for an item of a list."""
    return Condition(
        lambda it: f"{_cel(it, path)}.exists({_variable(it)}, {condition.cel(_variable(it))})",
        lambda part: any(map(condition.holds, _entries(value_at(part, path)))),
        lambda part: negated(_at(part, path, _each(schema_at(part, path), (~condition).schema), absent=True)),
    )


def value_at(part: Any, path: str) -> Any:
    """The value at a path. None if there is none."""
    for name in path.split(".") if path else ():
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def schema_at(schema: Schema, path: str) -> Schema:
    """The schema of the field at a path. Empty if the schema does not declare it."""
    for name in path.split(".") if path else ():
        schema = schema.get("properties", {}).get(name) or schema.get("additionalProperties") or {}
    return schema


def default_at(schema: Schema, path: str) -> Any:
    """The default of the field at a path. None if it has none."""
    return schema_at(schema, path).get("default")


def negated(schema: Schema | None) -> Schema | None:
    """A JSON schema for everything that does not match the schema."""
    if schema is None:
        return None
    return schema["not"] if schema.keys() == {"not"} else {"not": schema}


def literal(value: str | int) -> str:
    """A text or a number as CEL."""
    return str(value) if isinstance(value, int) else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literals(values: Iterable[str]) -> str:
    """A list of texts as CEL."""
    return "[" + ", ".join(map(literal, values)) + "]"


def escaped(path: str) -> str:
    """The path in CEL, with reserved words escaped."""
    return ".".join(f"__{name}__" if name in RESERVED_WORDS else name for name in path.split("."))


def _cel(it: str, path: str) -> str:
    """The CEL expression of the path. A role is an index, as in `roles['worker']`, because the cost of `roles.worker` cannot be
    estimated."""
    indexed = re.sub(_ROLE, r"roles['\1']", escaped(path))
    return f"{it}.{indexed}" if path else it


def _variable(it: str) -> str:
    """The variable of a macro over a field of `it`. A macro inside another one gets another variable."""
    return "inner" if it == "each" else "each"


def _entries(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Mapping | list) else ()


def _combined(keyword: str, one: Schema | None, other: Schema | None) -> Schema | None:
    """Both schemas under `anyOf` or `allOf`, in one list."""
    if one is None or other is None:
        return None
    parts = [part for each in (one, other) for part in (each[keyword] if each.keys() == {keyword} else [each])]
    return {keyword: parts}


def _at(schema: Schema, path: str, leaf: Schema | None, *, absent: bool) -> Schema | None:
    """The JSON schema of a part whose field at `path` fits `leaf`. `absent`: whether the field may be absent."""
    if leaf is None:
        return None
    for name in reversed(path.split(".") if path else ()):
        inner = {"properties": {name: leaf}} if leaf else {}
        leaf = inner if absent else {"required": [name], **inner}
    return leaf


def _each(schema: Schema, entry: ToSchema) -> Schema | None:
    """The JSON schema of a list or mapping whose entries (of a mapping, its keys) all fit `entry`."""
    if schema.get("type") == "array":
        each = entry(schema["items"])
        return None if each is None else {"items": each}
    each = entry({"type": "string"})
    return None if each is None else {"propertyNames": each}


def _ecma(pattern: str) -> str:
    """The pattern in the syntax of JSON schema (ECMA-262), which has no flag for upper and lower case."""
    text = pattern.removeprefix("(?i)")
    return text if text == pattern else re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", text)
