"""The versions of Kueue's API, and the fields in which they differ. Kueue 0.20 no longer serves v1beta1, and 0.10 does not serve v1beta2.
All other fields that Muster reads and writes are the same in both."""

from __future__ import annotations

from typing import Any

GROUP, PLURAL = "kueue.x-k8s.io", "workloads"
VISIBILITY_GROUP = f"visibility.{GROUP}"
"""The API with the positions of Workloads in their queues."""
VERSIONS = ("v1beta2", "v1beta1")
"""The versions that Muster can use, in the order in which it prefers them."""
_OLDEST = VERSIONS[-1]
_PRIORITY_GROUP = "scheduling.k8s.io"


def api_version(version: str) -> str:
    return f"{GROUP}/{version}"


def with_priority_class(spec: dict[str, Any], name: str, version: str) -> dict[str, Any]:
    """The spec of a Workload with the PriorityClass of its pods. Unchanged if the name is empty."""
    if not name:
        return spec
    if version == _OLDEST:
        return {**spec, "priorityClassName": name, "priorityClassSource": f"{_PRIORITY_GROUP}/priorityclass"}
    return {**spec, "priorityClassRef": {"group": _PRIORITY_GROUP, "kind": "PriorityClass", "name": name}}


def priority_class_name(spec: dict[str, Any]) -> str:
    """The name of the PriorityClass in the spec of a Workload of any version. Empty if there is none."""
    return str((spec.get("priorityClassRef") or {}).get("name") or spec.get("priorityClassName") or "")


def without_version(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec as the oldest version has it. Its digest stays the same when a cluster begins to serve another version, so that jobs keep
    their places in their queues."""
    rest = {name: value for name, value in spec.items() if name != "priorityClassRef"}
    return with_priority_class(rest, priority_class_name(spec), _OLDEST)
