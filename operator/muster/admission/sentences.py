"""Turns pydantic's errors into sentences that name what to write instead."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from muster.admission.foreign_names import instead_of
from muster.admission.paths import spelled
from muster.api.base import ApiModel
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.spec import ROLE_NAME_MESSAGE, Variable

MAX_LISTED = 12
MAX_PROBLEMS = 100
"""A file or template with more problems is read no further."""


def problem_of(error: ErrorDetails, root: type[ApiModel] = TrainingJob) -> Problem:
    """One of `ValidationError.errors()` about a `root` as a problem."""
    location = error["loc"]
    kind = error["type"]
    if kind == "extra_forbidden":
        return Problem(spelled(location), _unknown_field(location, root))
    if location[-1:] == ("[key]",):
        return Problem(spelled(location[:-1]), f"is not a valid name of a role: write {ROLE_NAME_MESSAGE}")
    if kind == "missing":
        return Problem(spelled(location), _missing_field(location, root))
    return Problem(
        spelled(location), _sentence(kind, error["input"], context=error.get("ctx", {}), field=_field_at(location, root)) or error["msg"]
    )


def _sentence(kind: str, value: Any, *, context: dict[str, Any], field: FieldInfo | None) -> str | None:
    given = f", not {shown(value)}"
    match kind:
        case "greater_than_equal" | "less_than_equal" if isinstance(next(iter(context.values()), None), float):
            return f"must be a number{_bound(kind, context, field)}{given}"
        case "int_type" | "int_from_float" | "int_parsing" | "greater_than_equal" | "less_than_equal":
            return not_a_number(value, _bound(kind, context, field))
        case "int_parsing_size":
            return "must be a smaller number"
        case "float_type" | "float_parsing":
            return f"must be a number{given}{_number_hint(value)}"
        case "bool_type" | "bool_parsing":
            return f"must be true or false{given}"
        case "string_type":
            return not_text(value)
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, not {len(value)}"
        case "string_pattern_mismatch":
            return f"must have this form{given}: {_lower_first(_description(field))}"
        case "enum" | "literal_error":
            return not_one_of(context["expected"].replace("' or '", "', '").strip("'").split("', '"), value)
        case "list_type" if isinstance(value, dict) and field and _model_of(field.annotation) is Variable:
            return f"must be a list, as in a pod: write {_as_variables(value)}"
        case "list_type":
            return f"must be a list, such as [a, b]{given}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"must be a mapping (name: value){given}"
        case "too_short":
            if value:
                return f"must have at least {context['min_length']} entries"
            return "must not be empty" if field and field.is_required() else "must not be empty: leave the field out"
        case "too_long":
            return f"must have at most {context['max_length']} entries, not {len(value)}"
        case "value_error":
            return str(context["error"])
    return None


def _as_variables(values: dict[str, Any]) -> str:
    """Variables of a mapping as the list that a pod has. The first ones only."""
    variables = [f"{{name: {name}, value: {shown(str(value))}}}" for name, value in values.items() if isinstance(value, str | int | float)]
    return f"[{', '.join(variables[:3] or ['{name: NAME, value: text}'])}{', ...' if len(variables) > 3 else ''}]"


def shown(value: Any) -> str:
    """A value as a message quotes it: short, and as YAML writes it."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f'{text[:56]}..."'


def not_text(value: Any) -> str:
    """The sentence about a value that must be text. YAML makes truth values of some words, which may be why it is none."""
    hint = ": put it in quotes" if isinstance(value, bool | int | float) else ""
    if isinstance(value, bool):
        words = "y, Y, yes, on and true" if value else "n, N, no, off and false"
        hint = f": YAML reads {words} as {str(value).lower()}, so put the word in quotes"
    return f"must be text, not {shown(value)}{hint}"


def not_a_number(value: Any, bound: str = "") -> str:
    """The sentence about a value that must be a whole number."""
    return f"must be a whole number{bound}, not {shown(value)}{_number_hint(value)}"


def nearest(name: str, names: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    """The most similar one of `names`, regardless of case and underscores. None if no name has the similarity `cutoff`, from 0 to 1."""
    plain = {each.lower(): each for each in names}
    matches = difflib.get_close_matches(name[:100].lower().replace("_", ""), list(plain), n=1, cutoff=cutoff)
    return plain[matches[0]] if matches else None


def _unknown_field(location: tuple[str | int, ...], root: type[ApiModel]) -> str:
    name = str(location[-1])
    parent = _model_at(location[:-1], root)
    names = _field_names(parent) if parent else []
    if root is TrainingJob and (other := instead_of(location)):
        return f"is not a field of {spelled(location[:-1]) or 'a job'}: write {other}"
    suggestion = nearest(name, names)
    where = spelled(location[:-1]) or ("a job" if root is TrainingJob else "this file")
    hint = f"; did you mean {suggestion}?" if suggestion else ""
    listed = f"{' It' if hint else '; it'} has {', '.join(names)}" if len(names) <= MAX_LISTED else ""
    return f"is not a field of {where}{hint}{listed}"


def _missing_field(location: tuple[str | int, ...], root: type[ApiModel]) -> str:
    field = _field_at(location, root)
    description = _description(field)
    values = _enum_values(field)
    expected = f"one of {', '.join(values)}" if values else _lower_first(description)
    return f"is required: {expected}" if expected else "is required"


def not_one_of(names: Sequence[str], value: Any) -> str:
    """The sentence about a value that is not one of the `names`."""
    suggestion = nearest(value, names) if isinstance(value, str) else None
    if len(names) == 1:
        return f"must be {names[0]}, not {shown(value)}"
    hint = f"; did you mean {suggestion}?" if suggestion else ""
    return f"must be one of {', '.join(names)}, not {shown(value)}{hint}"


def _bound(kind: str, context: dict[str, Any], field: FieldInfo | None) -> str:
    if kind == "less_than_equal":
        return f" of at most {context['le']}"
    least = context.get("ge", next((rule.ge for rule in field.metadata if hasattr(rule, "ge")), None) if field else None)
    return "" if least is None else f" of at least {least}"


def _number_hint(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return f": write {int(value)}"
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return ": take the quotes away"
    return ""


def _description(field: FieldInfo | None) -> str:
    return (field.description or "").rstrip(".") if field else ""


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _enum_values(field: FieldInfo | None) -> list[str]:
    return [str(value) for value in getattr(field.annotation, "__members__", {}).values()] if field else []


def _field_names(model: type[ApiModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _field_at(location: tuple[str | int, ...], root: type[ApiModel]) -> FieldInfo | None:
    parent = _model_at(location[:-1], root)
    if parent is None:
        return None
    return next((field for name, field in parent.model_fields.items() if (field.alias or name) == location[-1]), None)


def _model_at(location: tuple[str | int, ...], root: type[ApiModel]) -> type[ApiModel] | None:
    """The type of the part at a path below `root`. None inside free mappings and lists of values."""
    model: type[ApiModel] | None = root
    in_mapping = False
    for key in location:
        if isinstance(key, int) or in_mapping:
            in_mapping = False
            continue
        fields = {field.alias or name: field for name, field in model.model_fields.items()} if model else {}
        model = _model_of(fields[key].annotation) if key in fields else None
        in_mapping = model is not None and get_origin(fields[key].annotation) is dict
    return None if in_mapping else model


def _model_of(annotation: Any) -> type[ApiModel] | None:
    """X of `X`, `X | None`, `list[X]`, `list[X] | None` and `dict[str, X]`, where X is a type of the API."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    return next((model for each in get_args(annotation) if (model := _model_of(each))), None)
