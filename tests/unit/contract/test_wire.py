"""Documents are checked while they are decoded, and errors name the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from muster_contract import wire
from muster_contract.wire import Limits, WireError, decode, document, encode, fields_of, parse, wire_field

Step = Annotated[int, Limits(minimum=0, maximum=100)]
Word = Annotated[str, Limits(cut=5)]


class State(StrEnum):
    RUNNING = "Running"
    STOPPED = "Stopped"
    OTHER = "Other"

    @classmethod
    def _missing_(cls, value: object) -> State | None:
        return cls.OTHER if value == "Later" else None


@document
class Process:
    rank: Step
    state: State = State.RUNNING


@document
class Message:
    job: str = wire_field(min_length=1, max_length=10, doc="Namespace and name.")
    processes: tuple[Process, ...] = wire_field(default=(), max_items=2)
    mode: Literal["A", "B"] = "A"
    is_async: bool = wire_field(default=True, name="async")
    own_seconds: float | None = wire_field(default=None, minimum=0)
    steps: tuple[Step, ...] | None = None
    metrics: Mapping[Word, float] = wire_field(default_factory=dict, max_items=2)
    note: Word = ""
    stack: str = wire_field(default="", cut=8, keep="\n")
    folder: Path | None = None
    created: datetime | None = None
    config: Mapping[str, Any] = wire_field(default_factory=dict)
    devices: str = wire_field(default="", convert=lambda value: ", ".join(value) if isinstance(value, list) else value)


FULL = {
    "job": "a/b",
    "processes": [{"rank": 1, "state": "Stopped"}, {"rank": 2, "state": "Running"}],
    "mode": "B",
    "async": False,
    "ownSeconds": 1.5,
    "steps": [1, 2],
    "metrics": {"loss": 0.5},
    "note": "hello",
    "stack": "a\nb",
    "folder": "/a",
    "created": "2026-11-21T11:16:14Z",
    "config": {"a": [1, {"b": None}]},
    "devices": "gpu",
}


def test_a_document_is_the_same_after_decoding_and_encoding() -> None:
    message = decode(Message, FULL)
    assert message.processes == (Process(1, State.STOPPED), Process(2))
    assert message.folder == Path("/a")
    assert message.created == datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC)
    assert json.loads(json.dumps(encode(message))) == FULL


def test_absent_and_null_fields_get_defaults_and_none_is_not_encoded() -> None:
    message = decode(Message, {"job": "a", "mode": None, "own": 3})
    assert message == Message(job="a")
    assert "ownSeconds" not in encode(message)


def test_unknown_fields_are_ignored() -> None:
    assert decode(Message, {"job": "a", "later": {"x": [1]}}) == Message(job="a")


@pytest.mark.parametrize(
    ("change", "path", "problem"),
    [
        ({"job": None}, "M.job", "a text that is not empty is needed, found nothing"),
        ({"job": ""}, "M.job", "not empty"),
        ({"job": "x" * 11}, "M.job", "at most 10 characters are allowed, found 11"),
        ({"processes": {}}, "M.processes", "a list is needed"),
        ({"processes": [{"rank": 1}] * 3}, "M.processes", "at most 2 entries"),
        (
            {"processes": [{"rank": 1}, {"rank": 101}]},
            "M.processes[1].rank",
            "of at least 0 and at most 100 is needed, found 101",
        ),
        ({"processes": [{"rank": True}]}, "M.processes[0].rank", "found True"),
        ({"processes": [{"rank": 1.0}]}, "M.processes[0].rank", "found 1.0"),
        ({"processes": [{"rank": 1, "state": "Gone"}]}, "M.processes[0].state", "Running or Stopped or Other is needed, found 'Gone'"),
        ({"processes": [3]}, "M.processes[0]", "an object is needed, found 3"),
        ({"mode": "C"}, "M.mode", "A or B is needed"),
        ({"mode": []}, "M.mode", "A or B is needed"),
        ({"async": 1}, "M.async", "true or false is needed, found 1"),
        ({"ownSeconds": -1}, "M.ownSeconds", "a number that is not negative is needed"),
        ({"ownSeconds": True}, "M.ownSeconds", "found True"),
        ({"ownSeconds": float("nan")}, "M.ownSeconds", "found nan"),
        ({"ownSeconds": float("inf")}, "M.ownSeconds", "found inf"),
        ({"ownSeconds": 10**400}, "M.ownSeconds", "found 1000"),
        ({"steps": [-1]}, "M.steps[0]", "found -1"),
        ({"steps": ["1"]}, "M.steps[0]", "found '1'"),
        ({"metrics": {"a": "b"}}, "M.metrics.a", "a number is needed, found 'b'"),
        ({"metrics": {"a": 1, "b": 1, "c": 1}}, "M.metrics", "at most 2 entries"),
        ({"folder": ""}, "M.folder", "not empty"),
        ({"created": "today"}, "M.created", "RFC 3339"),
        ({"config": []}, "M.config", "an object is needed, found []"),
        ({"config": {"a": {"b": [float("inf")]}}}, "M.config.a", "a finite number"),
        ({"config": {"a": [0] * wire.MAX_VALUES}}, "M.config.a", "values are allowed"),
    ],
)
def test_an_error_names_the_field_and_the_required_value(change: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(WireError) as raised:
        decode(Message, {**FULL, **change}, "M")
    assert raised.value.path == path
    assert problem in raised.value.problem
    assert str(raised.value).startswith(f"{path}: ")
    assert len(str(raised.value)) < 300


def test_deep_values_are_refused() -> None:
    value: Any = 1
    for _ in range(wire.MAX_DEPTH):
        value = [value]
    with pytest.raises(WireError, match="levels"):
        decode(Message, {"job": "a", "config": {"a": value}})
    with pytest.raises(WireError, match="M is not JSON"):
        parse(Message, "[" * 200_000, "M")


def test_marked_text_is_cut_and_made_printable() -> None:
    message = decode(Message, {"job": "a", "note": "\x1b[31mred", "stack": "a\nb\x07cdefgh", "metrics": {"\n" * 9: 1}})
    assert message.note == "\\x1b["
    assert message.stack == "a\nb\\x07c"
    assert list(message.metrics) == ["\\n\\n\\"]


def test_an_enum_can_map_an_unknown_value_to_one_of_its_members() -> None:
    assert decode(Process, {"rank": 1, "state": "Later"}).state is State.OTHER


def test_a_value_can_be_converted_before_it_is_checked() -> None:
    assert decode(Message, {"job": "a", "devices": ["x", "y"]}).devices == "x, y"


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(WireError, match=r"^M is not JSON"):
        parse(Message, "{", "M")
    with pytest.raises(WireError, match=r"^M: an object is needed"):
        parse(Message, b"3", "M")


def test_fields_have_descriptions_for_the_docs() -> None:
    first, *_, last = fields_of(Message)
    assert (first.wire_name, first.required, first.doc, first.limits.max_length) == ("job", True, "Namespace and name.", 10)
    assert (last.wire_name, last.required, last.default) == ("devices", False, "")


def test_a_class_with_a_type_outside_json_is_refused() -> None:
    @document
    class Wrong:
        value: complex

    with pytest.raises(TypeError, match="complex"):
        decode(Wrong, {"value": 1})
