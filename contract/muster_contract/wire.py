"""Documents that cross a process boundary: one way to declare, check, decode and encode them.

A document is a JSON object, and a frozen dataclass declares it:

    @document
    class Pace:
        rank: Annotated[int, Limits(minimum=0)]
        own_seconds: float | None = wire_field(default=None, minimum=0, doc="Seconds of a step without waiting.")

`decode` checks a JSON value against the class while it builds the instance. The fields of its result have the declared types and are within
the limits. `encode` is the inverse. Fields are snake_case in Python and camelCase on the wire. `None` is an absent field. Unknown fields
are ignored, because a newer peer may send them.

Types: str, int, float, bool, Literal, enums, Path, datetime (UTC, whole seconds), `X | None`, `tuple[T, ...]`,
`Mapping[str, T]`, documents, and Any.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import reprlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from muster_contract.text import printable

LARGEST_INT = 2**53
"""Every JSON reader represents integers up to this one exactly."""
MAX_LENGTH = 1 << 16
"""Characters of a text whose field sets no limit."""
MAX_ITEMS = 4096
"""Items of a list or mapping whose field sets no limit."""
MAX_DEPTH = 64
"""Levels of an Any."""
MAX_VALUES = 1 << 16
"""Objects, lists, texts and numbers of an Any."""
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


class WireError(ValueError):
    """A document that does not fit its class. The message starts with the path of the field."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a value besides its type. For a list or mapping, all of them but `max_items` apply to each of its items.

    A text longer than `max_length` is refused. A text longer than `cut` is cut. A text with `cut` or `printable` is made printable, except
    for the characters of `keep`. `convert` changes the JSON value before the check.
    """

    minimum: float | None = None
    maximum: float | None = None
    min_length: int = 0
    max_length: int = MAX_LENGTH
    max_items: int = MAX_ITEMS
    min_items: int = 0
    cut: int | None = None
    printable: bool = False
    keep: str = ""
    convert: Callable[[Any], object] | None = None


def wire_field(
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    name: str | None = None,
    formerly: str | None = None,
    doc: str = "",
    **limits: Any,
) -> Any:
    """A field with a sentence for the docs, a `name` on the wire if camelCase of its own name does not fit, and `Limits`.
    `formerly` is a name on the wire that is read, too: documents of older releases have it."""
    metadata = {"name": name, "formerly": formerly, "doc": doc, "limits": Limits(**limits)}
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(wire_field, dataclasses.field))
def document(cls: type[_T]) -> type[_T]:
    """Class decorator: a frozen dataclass that type checkers understand with `wire_field`."""
    return dataclass(frozen=True)(cls)


@dataclass(frozen=True)
class FieldPlan:
    """One field of a document, compiled for `decode`, `encode` and the docs."""

    name: str
    wire_name: str
    former_name: str | None
    hint: Any
    limits: Limits
    required: bool
    default: Any
    doc: str
    decode: Callable[[Any], Any]


def fields_of(cls: type) -> tuple[FieldPlan, ...]:
    """The fields of a document class, in their order."""
    return _fields_of(cls)


@cache
def _fields_of(cls: Any) -> tuple[FieldPlan, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_plan(field, hints[field.name]) for field in dataclasses.fields(cls))


def decode(cls: type[_T], value: object, where: str = "") -> _T:
    """The document in a JSON value. `where` names the value in errors. Raises WireError."""
    try:
        decoded: _T = _document(cls)(value)
    except WireError as error:
        error.path = (where + error.path).removeprefix(".")
        raise
    return decoded


def parse(cls: type[_T], text: str | bytes, where: str = "") -> _T:
    """The document in a JSON text. Raises WireError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{where} is not JSON: {error}".lstrip()) from None
    return decode(cls, value, where)


def encode(instance: object) -> dict[str, Any]:
    """The JSON object of a document. Omits None, and other empty values that are the default of `decode`."""
    pairs = ((field, getattr(instance, field.name)) for field in fields_of(type(instance)))
    return {field.wire_name: _plain(value) for field, value in pairs if value is not None and (value or value != field.default)}


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case str() | bool() | int() | float() | None:
            return value
        case tuple() | list():
            return [_plain(item) for item in value]
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case Path():
            return str(value)
        case datetime():
            return value.astimezone(UTC).strftime(TIME_FORMAT)
    return encode(value)


def _plan(field: dataclasses.Field[Any], hint: Any) -> FieldPlan:
    limits = field.metadata.get("limits", Limits())
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return FieldPlan(
        name=field.name,
        wire_name=field.metadata.get("name") or re.sub("_+([a-z0-9])", lambda match: match[1].upper(), field.name),
        former_name=field.metadata.get("formerly"),
        hint=hint,
        limits=limits,
        required=default is MISSING,
        default=None if default is MISSING else default,
        doc=field.metadata.get("doc", ""),
        decode=_decoder(hint, limits),
    )


_Decoder = Callable[[Any], Any]


def _decoder(hint: Any, limits: Limits) -> _Decoder:
    """A function that turns a JSON value into a value of the type. It raises WireError with the path inside the value."""
    if limits.convert is not None:
        convert, inner = limits.convert, _decoder(hint, dataclasses.replace(limits, convert=None))
        return lambda value: inner(convert(value))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _decoder(arguments[0], next((each for each in arguments[1:] if isinstance(each, Limits)), limits))
    if origin in (Union, types.UnionType):
        return _optional(arguments, limits)
    if origin is Literal:
        return _choice({value: value for value in arguments}.__getitem__, arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return _list(_decoder(arguments[0], limits), limits)
    if origin in (Mapping, dict):
        return _mapping(_decoder(arguments[0], limits), _decoder(arguments[1], limits), limits)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice(hint, [member.value for member in hint])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _document(hint)
    simple = {bool: _flag, int: _integer, float: _number, str: _text, Path: _path, datetime: _time, Any: _anything}
    if hint not in simple:
        raise TypeError(f"a document cannot have a field of type {hint}")
    return simple[hint](limits)


def _document(cls: type) -> _Decoder:
    plans = fields_of(cls)
    decoders = {plan.former_name: (plan.name, plan.decode) for plan in plans if plan.former_name}
    decoders |= {plan.wire_name: (plan.name, plan.decode) for plan in plans}
    required = [plan for plan in plans if plan.required]
    defaults = {plan.name: plan.default for plan in plans}
    check = getattr(cls, "__post_init__", None)

    def decode_document(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch("an object", value)
        instance: Any = object.__new__(cls)
        values = instance.__dict__  # a frozen dataclass would set its fields one by one, at three times the cost
        values.update(defaults)
        wire_name = ""
        try:
            for wire_name, content in value.items():
                if content is not None and wire_name in decoders:
                    name, decoder = decoders[wire_name]
                    values[name] = decoder(content)
            for plan in required:
                if value.get(wire_name := plan.wire_name) is None:
                    values[plan.name] = plan.decode(None)
        except WireError as error:
            error.path = f".{wire_name}{error.path}"
            raise
        if check is not None:
            check(instance)
        return instance

    return decode_document


def _optional(arms: tuple[Any, ...], limits: Limits) -> _Decoder:
    hints = [arm for arm in arms if arm is not types.NoneType]
    if len(hints) != 1:
        raise TypeError(f"a document cannot have a field of several types: {arms}")
    inner = _decoder(hints[0], limits)
    return lambda value: None if value is None else inner(value)


def _list(item: _Decoder, limits: Limits) -> _Decoder:
    needed = "a list that is not empty" if limits.min_items else "a list"

    def decode_list(value: Any) -> Any:
        if not isinstance(value, list) or len(value) < limits.min_items:
            raise _mismatch(needed, value)
        _check_items(value, limits)
        items = []
        try:
            for each in value:
                items.append(item(each))
        except WireError as error:
            error.path = f"[{len(items)}]{error.path}"
            raise
        return tuple(items)

    return decode_list


def _mapping(key: _Decoder, item: _Decoder, limits: Limits) -> _Decoder:
    def decode_mapping(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch("an object", value)
        _check_items(value, limits)
        items = {}
        for name, each in value.items():
            try:
                items[key(name)] = item(each)
            except WireError as error:
                error.path = f".{printable(str(name)[:64])}{error.path}"
                raise
        return items

    return decode_mapping


def _check_items(value: list[Any] | dict[str, Any], limits: Limits) -> None:
    if len(value) > limits.max_items:
        raise WireError(f"at most {limits.max_items} entries are allowed, found {len(value)}")


def _choice(choose: Callable[[Any], Any], choices: Sequence[Any]) -> _Decoder:
    def decode_choice(value: Any) -> Any:
        if isinstance(value, str | int) and not isinstance(value, bool):
            with suppress(KeyError, ValueError):
                return choose(value)
        raise _mismatch(" or ".join(map(str, choices)), value)

    return decode_choice


def _flag(limits: Limits) -> _Decoder:
    def decode_flag(value: Any) -> Any:
        if value is True or value is False:
            return value
        raise _mismatch("true or false", value)

    return decode_flag


def _integer(limits: Limits) -> _Decoder:
    least = -LARGEST_INT if limits.minimum is None else limits.minimum
    most = LARGEST_INT if limits.maximum is None else limits.maximum

    def decode_integer(value: Any) -> Any:
        if type(value) is int and least <= value <= most:
            return value
        raise _mismatch(f"a whole number{_range(limits)}", value)

    return decode_integer


def _number(limits: Limits) -> _Decoder:
    least = -sys.float_info.max if limits.minimum is None else limits.minimum
    most = sys.float_info.max if limits.maximum is None else limits.maximum

    def decode_number(value: Any) -> Any:
        if (type(value) is float or type(value) is int) and least <= value <= most:  # not so for NaN and infinities
            return float(value)
        raise _mismatch("a number that is not negative" if limits.minimum == 0 else f"a number{_range(limits)}", value)

    return decode_number


def _range(limits: Limits) -> str:
    least = "" if limits.minimum is None else f" of at least {limits.minimum}"
    most = "" if limits.maximum is None else f"{' and' if least else ' of'} at most {limits.maximum}"
    return least + most


def _text(limits: Limits) -> _Decoder:
    show = limits.printable or limits.cut is not None
    cut = limits.cut or limits.max_length
    longest = limits.max_length if limits.cut is None else LARGEST_INT

    def decode_text(value: Any) -> Any:
        if not isinstance(value, str) or len(value) < limits.min_length:
            raise _mismatch("a text that is not empty" if limits.min_length else "a text", value)
        if len(value) > longest:
            raise WireError(f"at most {longest} characters are allowed, found {len(value)}")
        return printable(value, keep=limits.keep, most=cut) if show else value

    return decode_text


def _path(limits: Limits) -> _Decoder:
    text = _text(dataclasses.replace(limits, min_length=1))
    return lambda value: Path(text(value))


def _time(limits: Limits) -> _Decoder:
    def decode_time(value: Any) -> Any:
        try:
            return datetime.strptime(value, TIME_FORMAT).replace(tzinfo=UTC)
        except (TypeError, ValueError):
            raise _mismatch("an RFC 3339 time in UTC with seconds, such as 2026-11-21T11:16:14Z,", value) from None

    return decode_time


def _anything(limits: Limits) -> _Decoder:
    def decode_anything(value: Any) -> Any:
        level, values = [value], 1
        for _ in range(MAX_DEPTH):
            inside: list[Any] = []
            for each in level:
                if isinstance(each, float) and not math.isfinite(each):
                    raise _mismatch("a finite number", each)
                inside += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            values += len(inside)
            if not inside or values > MAX_VALUES:
                break
            level = inside
        else:
            raise WireError(f"at most {MAX_DEPTH} levels are allowed")
        if values > MAX_VALUES:
            raise WireError(f"at most {MAX_VALUES} values are allowed")
        return value

    return decode_anything


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


def _mismatch(expected: str, actual: object) -> WireError:
    shown = "nothing" if actual is None else _repr.repr(actual)[:80]
    return WireError(f"{expected} is needed, found {shown}")
