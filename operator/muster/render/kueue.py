"""Kueue: the Workload with which a job requests quota of its queue, and the changes to pods that follow from Kueue's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.api.constants import CREATED_ANNOTATION, INDEX_LABEL, MULTIKUEUE, PREBUILT_WORKLOAD_LABEL, TEMPLATE_HASH_LABEL
from muster.api.job import TrainingJob
from muster.api.spec import RoleName
from muster.api.status import TrainingJobStatus
from muster.render.addresses import ClusterAddresses
from muster.render.defaults import JobDefaults
from muster.render.gang import priority_class_of
from muster.render.images import Images
from muster.render.kueue_versions import GROUP, api_version, with_priority_class, without_version
from muster.render.manifests import render_replica
from muster.render.pods import labels_of, owner_of
from muster.render.template_hash import digest_of
from muster.strategies.registry import strategy_of

PODS_READY = "PodsReady"
_WAITS_FOR_START, _STARTED = "WaitForStart", "Started"
_WAITS_FOR_RECOVERY, _RECOVERED = "WaitForRecovery", "Recovered"
"""Reasons of the condition PodsReady, as Kueue's own controllers write them."""
_REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
"""Reasons of an eviction after which Kueue's own controllers queue a Workload again. After all others, Kueue decides when it may."""
_READ_BY_KUEUE = ("nodeSelector", "tolerations", "runtimeClassName", "overhead", "resources", "resourceClaims")
"""The fields of a pod, besides its containers, that decide which flavors fit the pod and which resources and devices it needs."""
_TOPOLOGY = {
    "required": "required-topology",
    "preferred": "preferred-topology",
    "unconstrained": "unconstrained-topology",
    "podSetSliceRequiredTopology": "slice-required-topology",
    "podSetSliceSize": "slice-size",
    "podSetGroupName": "group-name",
}
"""The fields of a pod set's topology request, each with the end of the annotation of its pods that says the same."""


@dataclass(frozen=True)
class Placement:
    """What Kueue adds to the pods of one role, so that they run where their quota is."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels and annotations by which Kueue finds pods that it places itself. Empty if it leaves that to the scheduler."""


def identity(job: TrainingJob, version: str) -> dict[str, Any]:
    """The Workload of the job, without its contents."""
    return {
        "apiVersion": api_version(version),
        "kind": "Workload",
        "metadata": {"name": job.metadata.name, "namespace": job.metadata.namespace},
    }


def flavor(name: str, version: str) -> dict[str, Any]:
    """A ResourceFlavor, without its contents."""
    return {"apiVersion": api_version(version), "kind": "ResourceFlavor", "metadata": {"name": name}}


def priority_class(name: str) -> dict[str, Any]:
    """A PriorityClass, without its contents."""
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}


def is_copied(job: TrainingJob) -> bool:
    """Whether MultiKueue copies the job to another cluster, where it runs."""
    return job.spec.managed_by == MULTIKUEUE


def is_prebuilt(job: TrainingJob) -> bool:
    """Whether the job is such a copy. Its Workload is not created or deleted in this cluster."""
    return job.metadata.labels.get(PREBUILT_WORKLOAD_LABEL) == job.metadata.name


def owned(existing: dict[str, Any], job: TrainingJob) -> dict[str, Any]:
    """The Workload with the job as its owner."""
    owner = owner_of(job)
    return {**existing, "metadata": {**existing["metadata"], "ownerReferences": [owner] if owner else []}}


def workload(job: TrainingJob, images: Images, defaults: Sequence[JobDefaults], version: str) -> dict[str, Any]:
    """The Workload of the job in this version of Kueue's API: one pod set per role. Kueue may admit an elastic job with fewer workers.

    The value of its priority class is missing, because only the cluster has it (`with_priority`).
    """
    job = job.with_status(TrainingJobStatus())
    plan, strategy, elastic = strategy_of(job.spec.strategy).requested(job.spec), strategy_of(job.spec.strategy), job.spec.elastic
    pod_sets = []
    for role in dict.fromkeys(replica.role for replica in plan.replicas):
        counts = {"count": len(plan.of(role))}
        if elastic is not None and role == strategy.worker_role and elastic.min_replicas < counts["count"]:
            counts["minCount"] = elastic.min_replicas
        pod = render_replica(
            job,
            role,
            index=plan.of(role)[0].index,
            attempt=0,
            addresses=ClusterAddresses(job.metadata.name, job.metadata.namespace),
            images=images,
            defaults=defaults,
        )
        topology = _topology_request(pod["metadata"].get("annotations") or {})
        pod_sets.append({"name": pod_set_of(role), **counts, **topology, "template": {"spec": _requirements(pod["spec"])}})
    spec: dict[str, Any] = {"queueName": job.spec.scheduling.queue, "podSets": pod_sets}
    spec = with_priority_class(spec, priority_class_of(job, defaults), version)
    labels = {**labels_of(job), TEMPLATE_HASH_LABEL: digest_of(without_version(spec))}
    owner, base = owner_of(job), identity(job, version)
    metadata = {**base["metadata"], "labels": labels, **({"ownerReferences": [owner]} if owner else {})}
    return {**base, "metadata": metadata, "spec": spec}


def _topology_request(annotations: Mapping[str, str]) -> dict[str, Any]:
    """The topology request of a pod set, from the annotations of its pods. Empty if they have none."""
    written = {name: annotations.get(f"{GROUP}/podset-{end}") for name, end in _TOPOLOGY.items()}
    request: dict[str, Any] = {name: value for name, value in written.items() if value}
    if not request:
        return {}
    if "unconstrained" in request:
        request["unconstrained"] = request["unconstrained"] == "true"
    if request.get("podSetSliceSize", "").isdecimal():  # else the API server refuses the Workload, and says why
        request["podSetSliceSize"] = int(request["podSetSliceSize"])
    return {"topologyRequest": {**request, "podIndexLabel": INDEX_LABEL}}


def dated(manifest: dict[str, Any], now: str) -> dict[str, Any]:
    """The Workload with the time in its pod sets. MultiKueue deletes a copy whose Workload has other pod sets."""
    metadata = {"annotations": {CREATED_ANNOTATION: now}}
    pod_sets = [{**each, "template": {**each["template"], "metadata": metadata}} for each in manifest["spec"]["podSets"]]
    return {**manifest, "spec": {**manifest["spec"], "podSets": pod_sets}}


def pod_set_of(role: RoleName) -> str:
    """The name of the pod set of a role."""
    return str(role).lower()


def with_priority(manifest: dict[str, Any], value: int) -> dict[str, Any]:
    """The Workload with the value of its priority class."""
    return {**manifest, "spec": {**manifest["spec"], "priority": value}}


def conditions_of(existing: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The conditions of a Workload, by type."""
    return {each["type"]: each for each in (existing.get("status") or {}).get("conditions") or ()}


def is_true(existing: dict[str, Any], condition: str) -> bool:
    """Whether this condition of a Workload is True, such as QuotaReserved."""
    return bool(conditions_of(existing).get(condition, {}).get("status") == "True")


def with_pods_ready(existing: dict[str, Any], is_ready: bool, now: str) -> dict[str, Any]:
    """The Workload with the condition that all pods of the world run, or not. Kueue can limit the time for this (`waitForPodsReady`).

    Kueue measures the time of a recovery from this change only if the reason is that of a recovery, and else from the admission.
    """
    if is_true(existing, PODS_READY) == is_ready:
        return existing
    recovers = conditions_of(existing).get(PODS_READY, {}).get("reason") in (_WAITS_FOR_RECOVERY, _RECOVERED)
    reason = (_RECOVERED if recovers else _STARTED) if is_ready else _WAITS_FOR_RECOVERY
    message = "all pods of the world run" if is_ready else "not all pods of the world run"
    condition = {
        "type": PODS_READY,
        "status": "True" if is_ready else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
        "observedGeneration": existing["metadata"]["generation"],
    }
    others = [each for each in existing["status"]["conditions"] if each["type"] != PODS_READY]
    return {**existing, "status": {**existing["status"], "conditions": [*others, condition]}}


def admitted_count(existing: dict[str, Any], pod_set: str) -> int | None:
    """The number of pods of this pod set for which Kueue reserves quota that the job has not given back. None if Kueue does not report
    it."""
    total = next((each["count"] for each in existing["spec"]["podSets"] if each["name"] == pod_set), None)
    assignments = ((existing.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
    assigned = next((each.get("count", total) for each in assignments if each["name"] == pod_set), None)
    if total is None or assigned is None:
        return None
    return int(min(assigned, total - _reclaimable(existing).get(pod_set, 0)))


def with_given_back(existing: dict[str, Any], pod_set: str, needed: int) -> dict[str, Any]:
    """The Workload that reserves quota for only `needed` pods of this pod set. The job cannot get the rest back."""
    count = admitted_count(existing, pod_set)
    if count is None or needed >= count:
        return existing
    total = next(each["count"] for each in existing["spec"]["podSets"] if each["name"] == pod_set)
    reclaimable = {**_reclaimable(existing), pod_set: total - needed}
    entries = [{"name": name, "count": each} for name, each in reclaimable.items()]
    return {**existing, "status": {**existing["status"], "reclaimablePods": entries}}


def _reclaimable(existing: dict[str, Any]) -> dict[str, int]:
    """Pod set to the number of its pods whose quota the job has given back. Kueue subtracts it from the count in the spec."""
    return {each["name"]: each["count"] for each in (existing.get("status") or {}).get("reclaimablePods") or ()}


def released(existing: dict[str, Any], now: str) -> dict[str, Any]:
    """An evicted Workload that gives its quota back and waits in its queue again, as Kueue's own controllers leave it."""
    status = {name: value for name, value in existing["status"].items() if name not in ("admission", "reclaimablePods")}
    evicted = conditions_of(existing).get("Evicted", {})
    ends = {"QuotaReserved": "Pending", "Admitted": "NoReservation"}
    if PODS_READY in conditions_of(existing):
        ends[PODS_READY] = _WAITS_FOR_START
    message = evicted.get("message") or "the pods of the job have ended"
    others = [each for each in status["conditions"] if each["type"] not in (*ends, "Requeued")]
    base = {"message": message, "lastTransitionTime": now, "observedGeneration": existing["metadata"]["generation"]}
    conditions = [{**base, "type": kind, "status": "False", "reason": reason} for kind, reason in ends.items()]
    if evicted and not (evicted.get("reason") or "").startswith("Deactivated"):
        state = "True" if evicted.get("reason") in _REQUEUED_AT_ONCE else "False"
        conditions.append({**base, "type": "Requeued", "status": state, "reason": evicted["reason"]})
    return {**existing, "status": {**status, "conditions": [*others, *conditions]}}


def finished(existing: dict[str, Any], status: TrainingJobStatus, now: str) -> dict[str, Any]:
    """The Workload of a job that has ended."""
    condition = {
        "type": "Finished",
        "status": "True",
        "reason": str(status.phase),
        "message": status.message or f"the job has {status.phase.lower()}",
        "lastTransitionTime": now,
        "observedGeneration": existing["metadata"]["generation"],
    }
    others = [each for each in (existing.get("status") or {}).get("conditions") or () if each["type"] != "Finished"]
    return {**existing, "status": {**(existing.get("status") or {}), "conditions": [*others, condition]}}


def flavors_of(existing: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Pod set to the names of the flavors that Kueue has given it."""
    assignments = ((existing.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
    return {each["name"]: tuple(dict.fromkeys((each.get("flavors") or {}).values())) for each in assignments}


def placement_of(existing: dict[str, Any], pod_set: str, flavors: Sequence[dict[str, Any]]) -> Placement:
    """What these flavors and the admission checks of the Workload add to the pods of a pod set."""
    selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    for each in flavors:
        selector |= (each.get("spec") or {}).get("nodeLabels") or {}
        tolerations += (each.get("spec") or {}).get("tolerations") or []
    for check in (existing.get("status") or {}).get("admissionChecks") or ():
        for update in check.get("podSetUpdates") or ():
            if update["name"] == pod_set:
                selector |= update.get("nodeSelector") or {}
                tolerations += update.get("tolerations") or []
    return Placement(selector, tolerations, _mark_of(existing, pod_set))


def _mark_of(existing: dict[str, Any], pod_set: str) -> dict[str, dict[str, str]]:
    """`Placement.metadata` of the pods of a pod set."""
    assignments = ((existing.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
    if not any(each["name"] == pod_set and each.get("topologyAssignment") for each in assignments):
        return {}
    annotations = {f"{GROUP}/workload": existing["metadata"]["name"]}
    requests = next(each for each in existing["spec"]["podSets"] if each["name"] == pod_set).get("topologyRequest") or {}
    if not {"required", "preferred", "unconstrained"} & requests.keys():
        annotations[f"{GROUP}/podset-unconstrained-topology"] = "true"
    return {"labels": {f"{GROUP}/podset": pod_set}, "annotations": annotations}


def placed(pod: dict[str, Any], placement: Placement) -> dict[str, Any]:
    """The pod, changed to run where its quota is."""
    spec = dict(pod["spec"])
    if placement.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **placement.node_selector}
    if placement.tolerations:
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *placement.tolerations]
    if not placement.metadata:
        return {**pod, "spec": spec}
    spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": f"{GROUP}/topology"}]
    marked = {name: {**(pod["metadata"].get(name) or {}), **values} for name, values in placement.metadata.items()}
    return {**pod, "metadata": {**pod["metadata"], **marked}, "spec": spec}


def _requirements(spec: dict[str, Any]) -> dict[str, Any]:
    """The part of a pod's spec that Kueue reads. The rest may be large."""
    requirements = {name: spec[name] for name in _READ_BY_KUEUE if name in spec}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required:
        requirements["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    for field_name in ("initContainers", "containers"):
        containers = [
            {name: each[name] for name in ("name", "image", "resources", "restartPolicy") if name in each}
            for each in spec.get(field_name) or ()
        ]
        if containers:
            requirements[field_name] = containers
    return {**requirements, "restartPolicy": "Never"}
