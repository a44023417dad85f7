"""Capacity classes: kinds of nodes by what they cost and how long they stay, such as spot and on-demand.

Muster guesses nothing about clouds. An administrator says by labels which nodes are of a class (`capacity.classes` of the chart).
`DEFAULT_CLASSES` has the labels that autoscalers and clouds set.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from muster.api.base import ApiModel

CLASS_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
MAX_CLASSES = 16
ClassName = Annotated[str, StringConstraints(max_length=63, pattern=f"^{CLASS_NAME}$")]
Text = Annotated[str, StringConstraints(max_length=317)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class NodeRequirement(ApiModel):
    """A requirement on a label or field of a node (NodeSelectorRequirement of Kubernetes)."""

    key: str = Field(min_length=1, max_length=317, description="Name of the label, or metadata.name for a field.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(description="How the value and `values` compare.")
    values: list[Text] = Field(default_factory=list, max_length=100, description="Values. None for Exists and DoesNotExist.")

    @model_validator(mode="after")
    def _has_the_values_of_its_operator(self) -> Self:
        match self.operator:
            case "In" | "NotIn" if not self.values:
                raise ValueError(f"{self.key}: operator {self.operator} needs values")
            case "Exists" | "DoesNotExist" if self.values:
                raise ValueError(f"{self.key}: operator {self.operator} takes no values")
            case "Gt" | "Lt" if len(self.values) != 1 or _whole(self.values[0]) is None:
                raise ValueError(f"{self.key}: operator {self.operator} needs one whole number as its value")
        return self

    def holds(self, present: Mapping[str, str]) -> bool:
        """Whether the labels, or the fields, meet the requirement, as the scheduler of Kubernetes decides it."""
        value = present.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        number, limit = _whole(value or ""), _whole(self.values[0])
        if number is None or limit is None:
            return False
        return number > limit if self.operator == "Gt" else number < limit


class NodeSelectorTerm(ApiModel):
    """Requirements that a node meets all (NodeSelectorTerm of Kubernetes)."""

    match_expressions: list[NodeRequirement] = Field(default_factory=list, max_length=32, description="Requirements on labels.")
    match_fields: list[NodeRequirement] = Field(default_factory=list, max_length=8, description="Requirements on metadata.name.")

    @model_validator(mode="after")
    def _has_a_requirement(self) -> Self:
        if not self.match_expressions and not self.match_fields:
            raise ValueError("is empty, and matches no node; write matchExpressions")
        for each in self.match_fields:
            if each.key != "metadata.name" or each.operator not in ("In", "NotIn") or len(each.values) != 1:
                raise ValueError("matchFields allows only metadata.name with In or NotIn and one value")
        return self

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        fields = {"metadata.name": name}
        return all(each.holds(labels) for each in self.match_expressions) and all(each.holds(fields) for each in self.match_fields)


class Toleration(ApiModel):
    """A toleration of pods (Toleration of Kubernetes)."""

    key: str | None = Field(default=None, max_length=317, description="Key of the taint. Absent: all keys.")
    operator: Literal["Exists", "Equal"] | None = Field(default=None, description="Equal (the default) compares the value.")
    value: str | None = Field(default=None, max_length=63, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(default=None, description="Effect. Absent: all.")
    toleration_seconds: int | None = Field(default=None, description="How long a NoExecute taint is tolerated, in seconds.")


class CapacityClass(ApiModel):
    """A class of nodes. A node that fits several classes counts as the first one by name."""

    node_selector_terms: list[NodeSelectorTerm] = Field(
        min_length=1, max_length=16, description="A node is of the class if it meets all requirements of one of these terms."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=16, description="Tolerations that pods get if they may use the class."
    )
    price_per_node_hour: Price | None = Field(
        default=None, description="Price of one whole node of the class for one hour, whatever part of it a pod uses."
    )
    price_per_device_hour: Price | None = Field(
        default=None, description="Price of one accelerator of the class, such as a GPU, for one hour, with its share of the node."
    )

    @property
    def has_price(self) -> bool:
        return self.price_per_node_hour is not None or self.price_per_device_hour is not None

    def has(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node of this name and with these labels is of the class."""
        return any(term.holds(name, labels) for term in self.node_selector_terms)


Classes = Mapping[str, CapacityClass]


def _whole(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None


def _in(key: str, *values: str) -> dict[str, object]:
    return {"key": key, "operator": "In", "values": list(values)}


def _not_in(key: str, *values: str) -> dict[str, object]:
    return {"key": key, "operator": "NotIn", "values": list(values)}


def _has(key: str) -> dict[str, object]:
    return {"key": key, "operator": "Exists"}


def _of(*terms: list[dict[str, object]], tolerates: Mapping[str, str] | None = None) -> CapacityClass:
    tolerations = [{"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"} for key, value in (tolerates or {}).items()]
    return CapacityClass.model_validate(
        {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms], "tolerations": tolerations}, by_alias=True, by_name=False
    )


# Karpenter: https://karpenter.sh/docs/concepts/nodepools/#capacity-type
_KARPENTER = "karpenter.sh/capacity-type"
# EKS, managed node groups: https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html
_EKS = "eks.amazonaws.com/capacityType"
# GKE: https://cloud.google.com/kubernetes-engine/docs/how-to/spot-vms and .../preemptible-vms; each node has its pool as a label
_GKE_SPOT, _GKE_PREEMPTIBLE, _GKE = "cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible", "cloud.google.com/gke-nodepool"
# AKS: https://learn.microsoft.com/azure/aks/spot-node-pool and .../use-labels
_AKS_PRIORITY, _AKS = "kubernetes.azure.com/scalesetpriority", "kubernetes.azure.com/cluster"

DEFAULT_CLASSES: Classes = MappingProxyType(
    {
        "on-demand": _of(
            [_in(_KARPENTER, "on-demand")],
            [_in(_EKS, "ON_DEMAND")],
            [_has(_GKE), _not_in(_GKE_SPOT, "true"), _not_in(_GKE_PREEMPTIBLE, "true")],
            [_has(_AKS), _not_in(_AKS_PRIORITY, "spot"), _not_in(_KARPENTER, "spot", "reserved")],
        ),
        "reserved": _of([_in(_KARPENTER, "reserved")], [_in(_EKS, "CAPACITY_BLOCK")]),
        "spot": _of(
            [_in(_KARPENTER, "spot")],
            [_in(_EKS, "SPOT")],
            [_in(_GKE_SPOT, "true")],
            [_in(_AKS_PRIORITY, "spot")],
            tolerates={_GKE_SPOT: "true", _AKS_PRIORITY: "spot"},
        ),
    }
)
"""The classes of an installation that names none. They have no prices. The chart has the same."""
