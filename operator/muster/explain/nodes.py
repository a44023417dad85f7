"""What nodes offer to a pod. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from muster.api.quantity import amount_of
from muster.explain.snapshot import Object

_CONTROL_PLANE = "node-role.kubernetes.io/"
_KEEPS_OUT = ("NoSchedule", "NoExecute")


def requests_of(pod: Object) -> dict[str, float]:
    """The sum of the requests of a pod's containers. A container without a request counts with its limit."""
    total: dict[str, float] = {}
    for container in pod["spec"].get("containers") or ():
        resources: dict[str, Any] = container.get("resources") or {}
        for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            total[name] = total.get(name, 0.0) + number_of(amount)
    return total


def offered_by(node: Object, resource: str) -> float:
    """The amount of the resource that pods may use on the node."""
    return number_of(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))


def number_of(quantity: object) -> float:
    """A Kubernetes quantity as a number, or 0 if it is none."""
    return float(amount_of(quantity) or 0)


def with_named_taints(message: str, pod: Object, nodes: Sequence[Object] | None) -> str:
    """The scheduler's message about the pod, with the taints named if these alone keep the pod from all nodes on which it could run.

    Kubernetes 1.37 does not name taints, and no message tells whether a tainted node is large enough and has the labels. Pods with a node
    affinity are left out, because the scheduler alone evaluates it.
    """
    if "untolerated taint" not in message or not nodes or _has_affinity(pod):
        return message
    fitting = [node for node in nodes if _fits(pod, node)]
    taints = [taint for node in fitting if (taint := _untolerated(pod, node))]
    if not fitting or len(taints) < len(fitting):
        return message
    counts = Counter(f"{taint.get('key')}: {taint.get('value') or ''}" for taint in taints)
    listed = ", ".join(f"{count} node(s) had untolerated taint {{{named}}}" for named, count in sorted(counts.items()))
    return f"0/{len(fitting)} nodes are available: {listed}."


def _fits(pod: Object, node: Object) -> bool:
    """Whether an empty node with these labels could run the pod. Control planes do not count: jobs do not belong there."""
    labels = node["metadata"].get("labels") or {}
    selector = pod["spec"].get("nodeSelector") or {}
    has_room = all(offered_by(node, resource) >= amount for resource, amount in requests_of(pod).items())
    is_open = not (node.get("spec") or {}).get("unschedulable")
    is_worker = not any(str(taint.get("key")).startswith(_CONTROL_PLANE) for taint in _taints(node))
    return is_open and is_worker and has_room and selector.items() <= labels.items()


def _has_affinity(pod: Object) -> bool:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return bool(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))


def _taints(node: Object) -> Iterator[dict[str, Any]]:
    yield from ((node.get("spec") or {}).get("taints")) or ()


def _untolerated(pod: Object, node: Object) -> dict[str, Any] | None:
    """The first taint of the node that keeps the pod out."""
    tolerations = pod["spec"].get("tolerations") or ()
    keeping_out = (taint for taint in _taints(node) if taint.get("effect") in _KEEPS_OUT)
    return next((taint for taint in keeping_out if not _is_tolerated(taint, tolerations)), None)


def _is_tolerated(taint: dict[str, Any], tolerations: Iterable[dict[str, Any]]) -> bool:
    """Source: "Taints and Tolerations" of the Kubernetes documentation."""
    return any(
        each.get("effect") in (None, "", taint.get("effect"))
        and each.get("key") in (None, "", taint.get("key"))
        and (each.get("operator") == "Exists" or (each.get("value") or "") == (taint.get("value") or ""))
        for each in tolerations
    )
