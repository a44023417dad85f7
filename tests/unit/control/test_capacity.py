"""The capacity classes of nodes, by their labels."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from muster.api.capacity import DEFAULT_CLASSES, CapacityClass
from muster.control.capacity import NodeClasses, class_of

AKS = {"kubernetes.azure.com/cluster": "MC_a_b_c"}
GKE = {"cloud.google.com/gke-nodepool": "pool"}


def node(labels: Any = None, name: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


def with_requirements(*requirements: dict[str, Any], **fields: Any) -> CapacityClass:
    return CapacityClass.model_validate({"nodeSelectorTerms": [{"matchExpressions": list(requirements)}], **fields})


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"karpenter.sh/capacity-type": "on-demand"}, "on-demand"),
        ({"karpenter.sh/capacity-type": "reserved"}, "reserved"),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "on-demand"),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "reserved"),
        ({**GKE, "cloud.google.com/gke-spot": "true"}, "spot"),
        (GKE, "on-demand"),
        ({**GKE, "cloud.google.com/gke-preemptible": "true"}, None),
        ({**AKS, "kubernetes.azure.com/scalesetpriority": "spot"}, "spot"),
        (AKS, "on-demand"),
        ({**AKS, "karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"kubernetes.io/os": "linux"}, None),
        (None, None),
        ("spot", None),
    ],
)
def test_the_default_classes_know_the_labels_of_autoscalers_and_clouds(labels: Any, name: str | None) -> None:
    assert class_of(node(labels), DEFAULT_CLASSES) == name


@pytest.mark.parametrize(
    ("requirement", "labels", "holds"),
    [
        ({"key": "a", "operator": "In", "values": ["1", "2"]}, {"a": "2"}, True),
        ({"key": "a", "operator": "In", "values": ["1"]}, {}, False),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, {"a": "1"}, False),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, {}, True),
        ({"key": "a", "operator": "Exists"}, {"a": ""}, True),
        ({"key": "a", "operator": "DoesNotExist"}, {"a": ""}, False),
        ({"key": "a", "operator": "Gt", "values": ["-3"]}, {"a": "-2"}, True),
        ({"key": "a", "operator": "Lt", "values": ["5"]}, {"a": "5"}, False),
        ({"key": "a", "operator": "Lt", "values": ["5"]}, {"a": "many"}, False),
    ],
)
def test_a_requirement_holds_as_the_scheduler_decides_it(requirement: dict[str, Any], labels: dict[str, str], holds: bool) -> None:
    assert with_requirements(requirement).has("a", labels) is holds


def test_one_term_is_enough_and_each_of_its_requirements_must_hold() -> None:
    terms = [
        {"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
    ]
    own = CapacityClass.model_validate({"nodeSelectorTerms": terms})
    assert not own.has("m", {"a": ""})
    assert own.has("m", {"a": "", "b": ""})
    assert own.has("n", {})


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([], "at least 1"),
        ([{}], "matches no node"),
        ([{"matchExpressions": [{"key": "a", "operator": "In"}]}], "needs values"),
        ([{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["1"]}]}], "takes no values"),
        ([{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}], "whole number"),
        ([{"matchExpressions": [{"key": "a", "operator": "Like", "values": ["x"]}]}], "'In', 'NotIn'"),
        ([{"matchFields": [{"key": "spec.x", "operator": "In", "values": ["x"]}]}], "metadata.name"),
    ],
)
def test_terms_that_kubernetes_would_refuse_are_refused(terms: list[Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CapacityClass.model_validate({"nodeSelectorTerms": terms})


@pytest.mark.parametrize("price", [-1, "0.3", "cheap", True, float("nan"), float("inf")])
def test_a_price_is_a_number_that_is_not_negative(price: object) -> None:
    with pytest.raises(ValidationError, match="pricePerNodeHour"):
        with_requirements({"key": "a", "operator": "Exists"}, pricePerNodeHour=price)
    assert with_requirements({"key": "a", "operator": "Exists"}, pricePerNodeHour=0.3, pricePerDeviceHour=2).price_per_device_hour == 2


def test_jobs_look_only_when_the_class_of_a_node_changes() -> None:
    changed: list[str] = []
    classes = NodeClasses(DEFAULT_CLASSES, changed=changed.append)
    classes.node("ADDED", node({"karpenter.sh/capacity-type": "spot"}))
    classes.node("MODIFIED", node({"karpenter.sh/capacity-type": "spot"}))
    assert (classes.newest, changed) == ({"a": "spot"}, ["a"])
    classes.node("ADDED", node({}, name="b"))
    classes.node("DELETED", node({"karpenter.sh/capacity-type": "spot"}))
    assert (classes.newest, changed) == ({"a": "spot"}, ["a", "a"])
