"""Responses of the API server: each becomes an object or a ClusterError."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.kubernetes.answers import DEPTH, LONGEST_RETRY_SECONDS, parsed, refusal, shallow
from muster.kubernetes.errors import ClusterError, NotFoundError, UnavailableError, UnreadableAnswerError

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(st.sampled_from('ab"\\[]{},:é\n'), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('ab"\\[]{}'), max_size=4), inner, max_size=3),
    max_leaves=30,
)


def emptied(value: Any, depth: int) -> Any:
    """The expected result of `shallow`."""
    if isinstance(value, dict):
        return {} if depth == 1 else {key: emptied(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [] if depth == 1 else [emptied(inner, depth - 1) for inner in value]
    return value


@given(anything, st.integers(1, 5), st.sampled_from([None, 1]), st.booleans())
def test_shallow_empties_only_values_below_the_level(value: Any, depth: int, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert json.loads(shallow(text, depth)) == emptied(value, depth)


@given(st.binary(max_size=200) | st.text(st.sampled_from('[]{}"\\,:a1'), max_size=60).map(str.encode))
def test_text_becomes_an_object_or_a_cluster_error(text: bytes) -> None:
    with suppress(ClusterError):
        assert isinstance(asyncio.run(parsed(text)), dict)


@pytest.mark.parametrize("levels", [1_000, 1_100, 10_000, 200_000])
def test_a_deeply_nested_object_keeps_its_metadata_and_does_not_hide_others(levels: int) -> None:
    deep = '{"metadata":{"name":"deep"},"spec":' + '{"a":' * levels + "1" + "}" * levels + ',"status":{"phase":"Pending"}}'
    text = f'{{"items":[{deep},{{"metadata":{{"name":"honest"}}}}],"metadata":{{"continue":"more"}}}}'
    answer = asyncio.run(parsed(text.encode()))
    assert [each["metadata"]["name"] for each in answer["items"]] == ["deep", "honest"]
    assert answer["items"][0]["status"] == {"phase": "Pending"}
    assert answer["metadata"] == {"continue": "more"}
    assert DEPTH > 32


@pytest.mark.parametrize("text", [b"", b"<html>", b"[1]", b"3", b'{"a":', b"[" * 5_000, b"[" * 5_000 + b"]" * 5_000])
def test_text_that_is_not_an_object_is_an_unreadable_answer(text: bytes) -> None:
    with pytest.raises(UnreadableAnswerError):
        asyncio.run(parsed(text))
    assert isinstance(asyncio.run(refusal(404, text)), NotFoundError)
    assert isinstance(asyncio.run(refusal(503, text)), UnavailableError)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("1", 1), (" 17 ", 17), ("999999999", LONGEST_RETRY_SECONDS), (None, 0), ("", 0), ("-1", 0), ("soon", 0), ("9" * 400, 0), ("1.5", 0)],
)
def test_an_error_has_the_bounded_seconds_of_retry_after(header: str | None, seconds: float) -> None:
    for text in (b'{"message": "too many requests"}', b"<html>"):
        assert asyncio.run(refusal(429, text, retry_after=header)).retry_seconds == seconds


@pytest.mark.parametrize("piece", [b'"\\', b'\\"', b'"', b'"a\\"', b"[", b'{"'])
def test_text_that_is_not_json_takes_linear_time(piece: bytes) -> None:
    begun = time.process_time()
    shallow(piece * ((1 << 20) // len(piece)), DEPTH)
    assert time.process_time() - begun < 10, "a quadratic search takes hours"
