"""Texts of jobs as the API server sends them, also of jobs whose spec is far out of bounds."""

from __future__ import annotations

import json
from typing import Any


def metadata(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7"}


def change_of(spec: dict[str, Any], *, status: bool) -> bytes:
    """A change as the API server sends it: with sorted fields and without spaces."""
    managed = [{"fieldsV1": {"f:spec": {f"f:{number}": {} for number in range(1000)}}, "manager": "kubectl"}]
    annotations = {"a": ',"spec":{ ],"name":" ,"status":{'}
    whole = {"metadata": {**metadata("large"), "annotations": annotations, "managedFields": managed}, "spec": spec}
    obj = {**whole, "status": {"attempt": 3, "phase": "Running"}} if status else whole
    return b'{"type":"MODIFIED","object":%s}' % json.dumps(obj, sort_keys=True, separators=(",", ":")).encode()
