"""Fills the templates. Users cannot break or inject YAML, because no value passes through it.

A template prints a mark for each value. The text with its marks is parsed as YAML, and the values, as JSON, then replace the marks. The
text depends only on the shape of a job, so it is parsed once for all pods of a world. Parsing YAML costs ten times as much as the rest."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import jinja2
import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MARKED = "marked values"
_MARK = '"<value>"'
_encoder = json.JSONEncoder(allow_nan=False)


@jinja2.pass_context
def _mark(context: jinja2.runtime.Context, value: Any) -> str:
    """Collects the value, and prints a mark instead."""
    marked: list[Any] = context[_MARKED]
    marked.append(value)
    return _MARK


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        finalize=_mark,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )


@lru_cache(maxsize=256)
def _pieces(text: str) -> list[str]:
    """The document as JSON, split at the marks, which have the order of the text."""
    return json.dumps(yaml.load(text, Loader=_Loader)).split(_MARK)


def fill(template: str, **values: Any) -> dict[str, Any]:
    """The object that `templates/<template>` describes with these values. Raises ValueError for a value that JSON cannot represent."""
    marked: list[Any] = []
    pieces = _pieces(_environment().get_template(template).render(values, **{_MARKED: marked}))
    written = map(_encoder.encode, marked)
    document: dict[str, Any] = json.loads("".join(chain.from_iterable(zip_longest(pieces, written, fillvalue=""))))
    return document
