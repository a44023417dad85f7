"""Fills the templates, so that nothing a user writes can break or inject YAML.

Every value that a template prints goes through `as_json`, and JSON strings are YAML scalars that end where they seem to.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# JSON lets these stand as they are in a string; YAML 1.1 takes some for line breaks and refuses the others.
_UNSAFE_IN_YAML = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def as_json(value: Any) -> str:
    """`value` as JSON that is YAML with the same meaning."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _UNSAFE_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        finalize=as_json,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def fill(template: str, **values: Any) -> dict[str, Any]:
    """The object that `templates/<template>` describes with these values."""
    document: dict[str, Any] = yaml.load(_environment().get_template(template).render(values), Loader=_Loader)
    return document
