"""Fills the templates. Nothing a user writes can break or inject YAML: no value ever goes through it.

Where a template prints a value, a mark is printed; the text with its marks is read as YAML, and the values then take the place of the
marks. The text depends on a job's shape alone, so that the pods of a world are read once: YAML costs ten times as much as the rest.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jinja2
import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MARKED = "marked values"
_MARK = "<value {}>"


@jinja2.pass_context
def _mark(context: jinja2.runtime.Context, value: Any) -> str:
    """Keeps the value, and prints which one it is."""
    kept: list[Any] = context[_MARKED]
    kept.append(value)
    return f'"{_MARK.format(len(kept) - 1)}"'


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
def _read(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def fill(template: str, **values: Any) -> dict[str, Any]:
    """The object that `templates/<template>` describes with these values, which must be ones that JSON can hold."""
    kept: list[Any] = []
    text = _environment().get_template(template).render(values, **{_MARKED: kept})
    marks = {_MARK.format(number): _plain(value) for number, value in enumerate(kept)}
    document: dict[str, Any] = _filled(_read(text), marks)
    return document


def _filled(part: Any, marks: dict[str, Any]) -> Any:
    """A copy with the values in the marks' places."""
    if isinstance(part, dict):
        return {key: _filled(value, marks) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, marks) for value in part]
    return marks.get(part, part) if isinstance(part, str) else part


def _plain(value: Any) -> Any:
    """What JSON makes of the value: a copy of plain dicts, lists and text. Raises ValueError for a number that JSON has not."""
    return value if type(value) in (str, int, bool) else json.loads(json.dumps(value, allow_nan=False))
