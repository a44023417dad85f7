"""Fills the templates. Nothing a user writes can break or inject YAML: no value ever goes through it.

Where a template prints a value, a mark is printed; the text with its marks is read as YAML, and the values, as JSON, then take the place of
the marks. The text depends on a job's shape alone, so that the pods of a world are read once: YAML costs ten times as much as the rest.
"""

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
    """Keeps the value, and prints a mark in its place."""
    kept: list[Any] = context[_MARKED]
    kept.append(value)
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
    """The document as JSON, cut at the marks, which are in it in the order of the text."""
    return json.dumps(yaml.load(text, Loader=_Loader)).split(_MARK)


def fill(template: str, **values: Any) -> dict[str, Any]:
    """The object that `templates/<template>` describes with these values, which must be ones that JSON can hold: ValueError for others."""
    kept: list[Any] = []
    pieces = _pieces(_environment().get_template(template).render(values, **{_MARKED: kept}))
    written = map(_encoder.encode, kept)
    document: dict[str, Any] = json.loads("".join(chain.from_iterable(zip_longest(pieces, written, fillvalue=""))))
    return document
