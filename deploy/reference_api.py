"""The generated pages for users: the fields of a TrainingJob, the commands, and the Python client."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click

import muster
from muster.admission import definitions
from muster.cli.main import cli

DEEPEST = 6
CLIENT = ("job", "Client", "Job", "AsyncClient", "AsyncJob", "Progress")


def training_job() -> str:
    """The fields of spec and status, one table for each top-level field that has parts."""
    whole = definitions.schema()
    intro = (
        "Fields are named as in a job file, below the title of their section. `[]` stands for each item of a list, and `*` for each key "
        "of an object. A field is required where the object that contains it is written."
    )
    parts = [f"{filled(intro)}\n"]
    for name in ("spec", "status"):
        schema = whole["properties"][name]
        parts.append(f"\n## {name}\n{_fields({'properties': _flat(schema)}, required=schema.get('required', ()))}")
        for key, inner in schema["properties"].items():
            if _inner(inner):
                parts.append(f"\n## {name}.{key}\n{_fields(inner)}")
    return "".join(parts)


def _flat(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The top-level fields without their own fields, which are in sections of their own."""
    hidden = ("properties", "additionalProperties", "items")
    return {
        name: {key: value for key, value in each.items() if key not in hidden} | {"shown": _type(each)}
        for name, each in schema["properties"].items()
    }


def _fields(schema: Mapping[str, Any], required: Any = ()) -> str:
    rows = "".join(_rows(schema, "", set(required), 0))
    return f"| field | type | default | meaning |\n| --- | --- | --- | --- |\n{rows}"


def _rows(schema: Mapping[str, Any], path: str, required: set[str], depth: int) -> Iterator[str]:
    for suffix, inner in _inner(schema):
        needed = suffix.removeprefix(".") in required | set(schema.get("required", ()))
        default = "required" if needed else f"`{json.dumps(inner['default'])}`" if inner.get("default") not in (None, {}) else ""
        cells = (
            f"`{(path + suffix).removeprefix('.')}`",
            inner.get("shown") or _type(inner),
            default,
            " ".join(inner.get("description", "").split()),
        )
        yield "|" + "|".join(f" {_escaped(cell)} " if cell else " " for cell in cells) + "|\n"
        opaque = "PodTemplateSpec" in inner.get("description", "")  # Kubernetes documents its fields
        if depth < DEEPEST and not opaque:
            yield from _rows(inner, path + suffix, set(), depth + 1)


def _inner(schema: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The parts of a schema, each with its addition to the path."""
    if "properties" in schema:
        return [(f".{name}", each) for name, each in schema["properties"].items()]
    if isinstance(extra := schema.get("additionalProperties"), dict):
        return [(f".*{part}", each) for part, each in _inner(extra)]
    if isinstance(items := schema.get("items"), dict):
        return [(f"[]{part}", each) for part, each in _inner(items)]
    return []


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(extra := schema.get("additionalProperties"), dict):
        return f"object of {_type(extra)}"
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = (
        f", {low} to {high}" if None not in (low, high) else f" ≥ {low}" if low is not None else f" ≤ {high}" if high is not None else ""
    )
    return {"string": "text"}.get(kind, kind) + bounds


def commands() -> str:
    """The help of all commands."""
    parts = [filled("[Commands](../commands.md) shows how they are used. `kubectl muster` is the same program.") + "\n"]
    context = click.Context(cli, info_name="muster", terminal_width=100)
    parts.append(f"\n## muster\n```text\n{cli.get_help(context)}\n```\n")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        shown = command.get_help(click.Context(command, info_name=name, parent=context, terminal_width=100, max_content_width=100))
        parts.append(f"\n## muster {name}\n```text\n{shown}\n```\n")
    return "".join(parts)


def python_client() -> str:
    """The classes of the client, from their docstrings."""
    intro = "[The Python client](../client.md) shows how they are used. The types of a job are those of [TrainingJob](trainingjob.md)."
    parts = [f"{filled(intro)}\n"]
    for name in CLIENT:
        item = getattr(muster, name)
        parts.append(f"\n## muster.{name}\n```text\n{name}{_signature(item)}\n```\n{_prose(item)}\n")
        if inspect.isclass(item):
            parts += [_member(name, key, value) for key, value in vars(item).items() if not key.startswith("_")]
    errors = [getattr(muster, name) for name in dir(muster) if name.endswith("Error")]
    parts.append("\n## Errors\n| error | meaning |\n| --- | --- |\n")
    parts += [f"| `muster.{each.__name__}` | {_escaped(' '.join((each.__doc__ or '').split()))} |\n" for each in errors]
    return "".join(parts)


def _member(owner: str, name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"\n### {owner}.{name}\n{_prose(value)}\n"
    if inspect.isfunction(value):
        word = "await " if inspect.iscoroutinefunction(value) else ""
        return f"\n### {owner}.{name}\n```text\n{word}{name}{_signature(value)}\n```\n{_prose(value)}\n"
    return ""


def _signature(item: Any) -> str:
    """The arguments of a call, one to a line if there are many."""
    signature = inspect.signature(item)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    result = inspect.Signature.empty if inspect.isclass(item) else signature.return_annotation
    text = str(signature.replace(parameters=parameters, return_annotation=result))
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r"<(\w+)\.(\w+): '[^']*'>", r"\1.\2", text))
    if len(text) < 80:
        return text
    inside, _, after = text[1:].rpartition(")")
    return "(\n" + "".join(f"    {each},\n" for each in re.split(r", (?![^\[]*\])", inside)) + f"){after}"


def _prose(item: Any) -> str:
    text = inspect.getdoc(item) or ""
    return "\n\n".join(
        f"```python\n{textwrap.dedent(part)}\n```" if part.startswith("    ") else filled(part) for part in text.split("\n\n")
    )


def filled(text: str) -> str:
    """Prose in lines of at most a hundred characters."""
    return textwrap.fill(" ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
