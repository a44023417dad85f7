"""Capacity classes in pods: affinities, tolerations, and the annotation from which the operator reads them."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.capacity import DEFAULT_CLASSES, CapacityClass
from muster.api.problems import InvalidJobError
from muster.api.status import TrainingJobStatus
from muster.render.addresses import ClusterAddresses
from muster.render.defaults import JobDefaults
from muster.render.manifests import render_replica
from tests.support.golden_jobs import IMAGES, job_of

SPOT = {"key": "example.com/spot", "operator": "In", "values": ["yes"]}
DEMAND = {"key": "example.com/spot", "operator": "DoesNotExist"}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
TOLERATION = {"key": "example.com/spot", "operator": "Exists"}
CLASSES = {
    "spot": CapacityClass.model_validate({"nodeSelectorTerms": [{"matchExpressions": [SPOT]}], "tolerations": [TOLERATION]}),
    "on-demand": CapacityClass.model_validate({"nodeSelectorTerms": [{"matchExpressions": [DEMAND]}]}),
}
MIX = {"roles": {"worker": ["spot", "on-demand"]}}
FELL_BACK = [{"role": "worker", "classes": ["spot", "on-demand"], "since": "2026-11-21T10:00:00.000Z"}]


def pod(capacity: Any, *, role: str = "worker", entries: Any = (), classes: Any = CLASSES, standby: bool = False, **spec: Any) -> Any:
    job = job_of({"strategy": "DDP", "trainer": {"task": "digits"}, "scheduling": {"capacity": capacity}, **spec})
    job = job.with_status(TrainingJobStatus.from_wire({"capacity": list(entries)}))
    addresses, defaults = ClusterAddresses(job.metadata.name, job.metadata.namespace), [JobDefaults(classes=classes)]
    index = 1 if standby else 0
    return render_replica(job, role, index=index, attempt=0, addresses=addresses, images=IMAGES, defaults=defaults, standby=standby)


def terms(manifest: Any) -> Any:
    return manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def preferences(manifest: Any) -> Any:
    return manifest["spec"]["affinity"]["nodeAffinity"].get("preferredDuringSchedulingIgnoredDuringExecution")


def classes_in(manifest: Any) -> Any:
    return (manifest["metadata"].get("annotations") or {}).get("muster.dev/capacity-classes")


def test_a_pod_asks_for_the_preferred_class_and_tolerates_its_taints() -> None:
    rendered = pod(MIX)
    assert (terms(rendered), preferences(rendered), classes_in(rendered)) == ([{"matchExpressions": [SPOT]}], None, "spot")
    assert TOLERATION in rendered["spec"]["tolerations"]


def test_after_a_fallback_it_may_use_both_and_prefers_the_first() -> None:
    rendered = pod(MIX, entries=FELL_BACK)
    assert terms(rendered) == [{"matchExpressions": [SPOT]}, {"matchExpressions": [DEMAND]}]
    assert preferences(rendered) == [{"weight": 100, "preference": {"matchExpressions": [SPOT]}}]
    assert classes_in(rendered) == "spot,on-demand"


def test_each_alternative_of_the_template_is_combined_with_each_class() -> None:
    rule = {
        "nodeSelectorTerms": [{"matchExpressions": [ZONE]}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    }
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rule}}
    worker = {"template": {"spec": {"affinity": affinity, "tolerations": [TOLERATION]}}}
    rendered = pod(MIX, entries=FELL_BACK, roles={"worker": worker})
    named = rule["nodeSelectorTerms"][1]
    assert terms(rendered) == [
        {"matchExpressions": [ZONE, SPOT]},
        {"matchExpressions": [ZONE, DEMAND]},
        {"matchExpressions": [SPOT], **named},
        {"matchExpressions": [DEMAND], **named},
    ]
    assert rendered["spec"]["tolerations"].count(TOLERATION) == 1


def test_spares_have_classes_of_their_own_and_roles_without_any_use_any_node() -> None:
    spares = {**MIX, "spares": ["on-demand"]}
    assert classes_in(pod(spares, standby=True, recovery={"spares": 1})) == "on-demand"
    assert classes_in(pod(MIX, standby=True, recovery={"spares": 1})) == "spot"
    other = pod({"roles": {"ps": ["spot"]}}, strategy="ParameterServer", roles={"worker": {}, "ps": {}, "chief": {}})
    assert (classes_in(other), "affinity" in other["spec"]) == (None, False)


def test_a_template_cannot_claim_a_class() -> None:
    worker = {"template": {"metadata": {"annotations": {"muster.dev/capacity-classes": "spot", "own": "1"}}}}
    assert pod(None, roles={"worker": worker})["metadata"]["annotations"] == {"own": "1"}


def test_the_installation_must_know_a_class_and_other_places_leave_it_out() -> None:
    with pytest.raises(InvalidJobError, match="lease is no class of this installation"):
        pod({"classes": ["lease"]})
    assert "affinity" not in pod({"classes": ["lease"]}, classes=None)["spec"]
    assert len(terms(pod({"classes": ["spot"]}, classes=None))) == len(DEFAULT_CLASSES["spot"].node_selector_terms)
