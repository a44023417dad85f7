"""Objects of the API server, as plain JSON. No model of them refuses fields that are newer than this program."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
"""An object of the API server, as JSON."""


def key_of(obj: Object) -> str:
    """namespace/name"""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def version_of(obj: Object) -> int:
    """The resourceVersion. Versions of one kind are ordered (Kubernetes documentation, "Resource versions")."""
    return int(obj["metadata"]["resourceVersion"])


def owner_of(obj: Object) -> str:
    """The uid of the object that controls this one. Empty if none does."""
    references = obj["metadata"].get("ownerReferences") or []
    return next((str(reference["uid"]) for reference in references if reference.get("controller")), "")
