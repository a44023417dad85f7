"""The signals by which a node announces that it goes, or that it takes no new pods.

The table has what clouds, autoscalers and Kubernetes itself set on nodes. An administrator adds further signals in the chart
(`nodeNotices.signals`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from muster.api.status import DELETION, LONGEST_SIGNAL, Meaning, NodeNotice
from muster.api.times import milliseconds
from muster.kubernetes.objects import Object

_HIGHEST_TIME = 253402300799
"""9999-12-31, in Unix seconds."""


_UNITS = {"s": 1, "m": 60, "h": 3600}
_PART = re.compile(r"([0-9]{1,12})([smh])")
_DURATION = re.compile(rf"({_PART.pattern}){{1,9}}")


class Kind(StrEnum):
    """The part of a node that carries the signal."""

    TAINT = "taint"
    LABEL = "label"
    CONDITION = "condition"


@dataclass(frozen=True)
class NodeSignal:
    """A taint, label or condition of a node.

    `values`: the values of the taint or label, or the reasons of the condition, that count; empty means any. A condition counts while it
    is True. `seconds`: how long after the signal the node goes; None if that is unknown. `is_time`: whether the value is the time at which
    the node goes, in Unix seconds.
    """

    kind: Kind
    name: str
    meaning: Meaning = Meaning.GOES
    values: frozenset[str] = frozenset()
    seconds: int | None = None
    is_time: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def _taint(name: str, meaning: Meaning = Meaning.GOES, *, seconds: int | None = None, values: Iterable[str] = ()) -> NodeSignal:
    return NodeSignal(Kind.TAINT, name, meaning, frozenset(values), seconds)


KNOWN: tuple[NodeSignal, ...] = (
    # Karpenter: https://karpenter.sh/docs/concepts/disruption/
    _taint("karpenter.sh/disrupted"),
    _taint("karpenter.sh/disruption", values=("disrupting",)),
    # AWS: https://github.com/aws/aws-node-termination-handler (taintNode); a spot instance is reclaimed two minutes after its notice
    _taint("aws-node-termination-handler/spot-itn", seconds=120),
    _taint("aws-node-termination-handler/scheduled-maintenance"),
    _taint("aws-node-termination-handler/asg-lifecycle-termination"),
    _taint("aws-node-termination-handler/rebalance-recommendation"),
    # GKE: https://cloud.google.com/kubernetes-engine/docs/how-to/handle-disruption-gpu-tpu
    _taint("cloud.google.com/impending-node-termination", seconds=30),
    NodeSignal(Kind.LABEL, "cloud.google.com/active-node-maintenance", values=frozenset({"ONGOING"})),
    NodeSignal(Kind.LABEL, "cloud.google.com/scheduled-maintenance-time", is_time=True),
    # AKS: https://learn.microsoft.com/en-us/azure/aks/node-problem-detector; a frozen machine comes back, the others do not
    NodeSignal(
        Kind.CONDITION,
        "VMEventScheduled",
        values=frozenset({"PreemptScheduled", "TerminateScheduled", "RebootScheduled", "RedeployScheduled"}),
    ),
    # cluster-autoscaler: https://github.com/kubernetes/autoscaler (utils/taints)
    _taint("ToBeDeletedByClusterAutoscaler"),
    _taint("DeletionCandidateOfClusterAutoscaler", Meaning.TAKES_NO_PODS),
    # Kubernetes: https://kubernetes.io/docs/reference/labels-annotations-taints/
    _taint("node.kubernetes.io/out-of-service"),
    _taint("node.cloudprovider.kubernetes.io/shutdown"),
    # KubeVirt: https://kubevirt.io/user-guide/cluster_admin/node_maintenance/
    _taint("kubevirt.io/drain"),
    # Cluster API: https://cluster-api.sigs.k8s.io/reference/api/labels-and-annotations
    _taint("node.cluster.x-k8s.io/outdated-revision", Meaning.TAKES_NO_PODS),
    # node-problem-detector: https://github.com/kubernetes/node-problem-detector
    NodeSignal(Kind.CONDITION, "KernelDeadlock"),
    NodeSignal(Kind.CONDITION, "ReadonlyFilesystem"),
)


def notice_of(node: Object, signals: Sequence[NodeSignal], now: datetime) -> NodeNotice | None:
    """The notice that the node gives now. Of several, one that says when the node goes comes first, then one that says that it goes."""
    name, now = str(node["metadata"]["name"]), milliseconds(now)
    found = [*_found(node, signals, now), *_of_the_node_itself(node)]
    if not found:
        return None
    signal, meaning, time = min(found, key=lambda each: (each[1] is not Meaning.GOES, each[2] is None, each[2] or now))
    return NodeNotice(node=name, signal=signal[:LONGEST_SIGNAL], meaning=meaning, since=now, goes_time=time)


def expiry_of(claim: Object) -> datetime | None:
    """When Karpenter begins to drain the node of a NodeClaim because of its `spec.expireAfter`. None if it does not.

    Only this time is read from NodeClaims, because nodes show all else: Karpenter taints a node before it disrupts it, and deletes the node
    together with the NodeClaim (https://github.com/kubernetes-sigs/karpenter, disruption and node/termination).
    """
    after = str((claim.get("spec") or {}).get("expireAfter") or "")
    if not _DURATION.fullmatch(after):
        return None
    seconds = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(after))
    created = datetime.fromisoformat(claim["metadata"]["creationTimestamp"])
    return created + timedelta(seconds=seconds) if created.timestamp() + seconds <= _HIGHEST_TIME else None


Found = tuple[str, Meaning, datetime | None]


def _of_the_node_itself(node: Object) -> Iterator[Found]:
    if node["metadata"].get("deletionTimestamp"):
        yield DELETION, Meaning.GOES, None
    if (node.get("spec") or {}).get("unschedulable") is True:
        yield "cordoned", Meaning.TAKES_NO_PODS, None


def _found(node: Object, signals: Sequence[NodeSignal], now: datetime) -> Iterator[Found]:
    carried = {
        Kind.TAINT: {str(each.get("key")): str(each.get("value") or "") for each in _maps((node.get("spec") or {}).get("taints"))},
        Kind.LABEL: {str(name): str(value) for name, value in (node["metadata"].get("labels") or {}).items()},
        Kind.CONDITION: {
            str(each.get("type")): str(each.get("reason") or "")
            for each in _maps((node.get("status") or {}).get("conditions"))
            if each.get("status") == "True"
        },
    }
    for signal in signals:
        value = carried[signal.kind].get(signal.name)
        if value is None or (signal.values and value not in signal.values):
            continue
        time = _time(value) if signal.is_time else None
        if signal.is_time and time is None:
            continue
        if signal.seconds is not None:
            time = now + timedelta(seconds=signal.seconds)
        yield f"{signal}={value}" if signal.is_time else str(signal), signal.meaning, time


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _time(value: str) -> datetime | None:
    return datetime.fromtimestamp(int(value), UTC) if value.isascii() and value.isdecimal() and int(value) <= _HIGHEST_TIME else None
