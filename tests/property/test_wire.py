"""Any JSON value is a document within its limits, or the error is a WireError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from hypothesis import given
from hypothesis import strategies as st

from muster_contract.wire import Limits, WireError, decode, document, encode, wire_field

Step = Annotated[int, Limits(minimum=0, maximum=2**53)]
Word = Annotated[str, Limits(cut=8)]


@document
class Part:
    step: Step
    word: Word = ""
    seconds: float | None = None


@document
class Whole:
    name: str = wire_field(min_length=1, max_length=8)
    part: Part | None = None
    parts: tuple[Part, ...] = wire_field(default=(), max_items=3)
    figures: Mapping[Word, float] = wire_field(default_factory=dict, max_items=3)
    free: Mapping[str, Any] = wire_field(default_factory=dict)
    is_last: bool = False


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10)
_JSON = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4))
_FIELDS = ("name", "part", "parts", "figures", "free", "isLast", "step", "word", "seconds", "other")
_NEARLY = st.recursive(_JSON, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=8))

_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_WORDS = st.text(alphabet="abc é", max_size=8)
_PARTS = st.builds(Part, step=st.integers(0, 2**53), word=_WORDS, seconds=st.none() | _FINITE)
_WHOLE = st.builds(
    Whole,
    name=st.text(min_size=1, max_size=8),
    part=st.none() | _PARTS,
    parts=st.lists(_PARTS, max_size=3).map(tuple),
    figures=st.dictionaries(_WORDS, _FINITE, max_size=3),
    free=st.dictionaries(st.text(max_size=5), st.none() | st.integers() | _FINITE | st.text(max_size=5), max_size=4),
    is_last=st.booleans(),
)


@given(_WHOLE)
def test_an_encoded_document_decodes_to_an_equal_document(whole: Whole) -> None:
    assert decode(Whole, json.loads(json.dumps(encode(whole)))) == whole


@given(_NEARLY)
def test_any_value_is_a_document_within_its_limits_or_a_wire_error(value: Any) -> None:
    try:
        whole = decode(Whole, value, "W")
    except WireError as error:
        problem = str(error)
    else:
        problem = ""
        _check(whole)
    assert not problem or problem.startswith("W")


def _check(whole: Whole) -> None:
    assert 1 <= len(whole.name) <= 8
    assert len(whole.parts) <= 3
    for part in (*whole.parts, *([whole.part] if whole.part else ())):
        assert 0 <= part.step <= 2**53
        assert part.word.isprintable()
        assert len(part.word) <= 8
    assert decode(Whole, json.loads(json.dumps(encode(whole), allow_nan=False))) == whole
