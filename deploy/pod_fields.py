"""Writes the fields of a pod's spec, as the Kubernetes client has them, for the checks of templates: `deploy/pod_fields.py [--check]`.

The command line checks templates without the Kubernetes client, so the fields are in a file of their own.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kubernetes.aio.client import models

FILE = Path(__file__).resolve().parents[1] / "operator" / "muster" / "admission" / "pod_fields.json"
ROOT = "V1PodSpec"
QUANTITIES = ("limits", "requests", "overhead", "sizeLimit", "divisor")
"""Fields that the client declares as text, and that take a number as well."""
_PLAIN = {"str": "text", "int": "number", "bool": "truth", "object": "any", "datetime": "text"}


def main(arguments: list[str]) -> int:
    text = generated()
    if "--check" not in arguments:
        FILE.write_text(text)
    elif not FILE.exists() or FILE.read_text() != text:
        print(f"stale: {FILE.name}; run `make reference`", file=sys.stderr)
        return 1
    return 0


def generated() -> str:
    types: dict[str, dict[str, str]] = {}
    _visit(ROOT, types)
    release = f"1.{version('kubernetes').partition('.')[0]}"
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(types.items()))
    note = json.dumps("Generated from the Kubernetes client by `make reference`; do not edit.")
    return f'{{"note": {note},\n"release": {json.dumps(release)},\n"types": {{\n{lines}\n}}}}\n'


def _visit(name: str, types: dict[str, dict[str, str]]) -> None:
    """Adds a type, and those of its fields. `[X]` is a list of X, `{X}` a mapping of names to X."""
    if _short(name) in types:
        return
    model: Any = getattr(models, name)
    fields = types[_short(name)] = {}
    for attribute, kind in sorted(model.openapi_types.items()):
        wire = model.attribute_map[attribute]
        fields[wire] = _spelled(kind, is_quantity=wire in QUANTITIES)
        for other in re.findall(r"\w*V1\w+", kind):
            _visit(other, types)


def _spelled(kind: str, *, is_quantity: bool) -> str:
    if items := re.fullmatch(r"List\[(.+)\]", kind):
        return f"[{_spelled(items[1], is_quantity=is_quantity)}]"
    if values := re.fullmatch(r"Dict\[str, (.+)\]", kind):
        return f"{{{_spelled(values[1], is_quantity=is_quantity)}}}"
    return "quantity" if is_quantity and kind == "str" else _PLAIN.get(kind) or _short(kind)


def _short(name: str) -> str:
    return name.replace("V1", "", 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
