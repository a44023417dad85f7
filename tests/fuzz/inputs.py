"""Hostile inputs: valid ones with a few changes, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

LONGEST = 1 << 17
"""Bytes of an input after its changes."""
_TOKENS = (
    *(b'null true false NaN Infinity -1 0 1e999 9223372036854775808 1.5 "" [] {} [[]] {"a":1}'.split()),
    *(b'{ } [ ] , : " \\ / .. ../ \n \r\n \x00 \xff \xed\xa0\x80 \xe2\x80\xae'.split(b" ")),
    *(b"\\ud800", b"9" * 400, b"[" * 3000, b"a" * 5000, b"&a [*a]", b"*a", b"!!python/object", b"<<: *a", b"---", b"$patch", b"%2e", b"Ki"),
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
plain: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=20
)


@st.composite
def changed(draw: st.DrawFn, seeds: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """A seed with up to twelve changes: a part is removed, repeated, or replaced by a token or word. Sometimes random bytes."""
    content = draw(st.sampled_from(seeds) | st.binary(max_size=64))
    for _ in range(draw(st.integers(0, 12))):
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.integers(0, 40)))
        part = draw(st.sampled_from((*_TOKENS, *words)) | st.binary(max_size=4) | st.just(content[begin:end] * draw(st.integers(0, 60))))
        content = (content[:begin] + part + content[end:])[:LONGEST]
    return content


def texts(seeds: Sequence[str]) -> st.SearchStrategy[str]:
    return changed([seed.encode() for seed in seeds]).map(lambda content: content.decode(errors="replace"))
