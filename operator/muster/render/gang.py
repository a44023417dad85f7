"""Gang schedulers: how the pods of a job become one PodGroup, of which the scheduler places all pods or none.

Each scheduler is one description. Nothing else in Muster depends on which one it is. docs/scheduling.md says which are used when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from muster.api.job import TrainingJob
from muster.api.spec import GangMode
from muster.render.pods import labels_of, owner_of

PLURAL = "podgroups"


@dataclass(frozen=True)
class GangScheduler:
    """A scheduler with PodGroups.

    Attributes:
        group: API group of its PodGroup. It identifies the scheduler, in the configuration and in the status of a job.
        version: API version of its PodGroup.
        minimum: path, in the spec of the PodGroup, of the number of pods that it places together or not at all.
        spec: the rest of the spec of a job's PodGroup.
        label: label with which a pod names its PodGroup.
        annotation: annotation with which a pod names its PodGroup.
        field: path, in the spec of a pod, of the name of its PodGroup.
        scheduler_name: `schedulerName` of pods whose template names none. Empty: the cluster's default scheduler.
    """

    group: str
    version: str
    minimum: tuple[str, ...]
    spec: Callable[[TrainingJob], dict[str, Any]]
    label: str = ""
    annotation: str = ""
    field: tuple[str, ...] = ()
    scheduler_name: str = ""


def _native(job: TrainingJob) -> dict[str, Any]:
    """An elastic job goes on without a pod that is preempted. Others restart, so preempting a part of them would free too little."""
    mode = "single" if job.spec.elastic else "all"
    return {"disruptionMode": {mode: {}}, **_priority(job)}


def _volcano(job: TrainingJob) -> dict[str, Any]:
    queue = job.spec.scheduling.queue
    return {**({"queue": queue} if queue else {}), **_priority(job)}


def _priority(job: TrainingJob) -> dict[str, Any]:
    name = job.spec.scheduling.priority_class_name
    return {"priorityClassName": name} if name else {}


_SCHEDULERS = (
    GangScheduler(
        group="scheduling.k8s.io",
        version="v1beta1",
        minimum=("schedulingPolicy", "gang", "minCount"),
        spec=_native,
        field=("schedulingGroup", "podGroupName"),
    ),
    GangScheduler(
        group="scheduling.x-k8s.io",
        version="v1alpha1",
        minimum=("minMember",),
        spec=lambda job: {},
        label="scheduling.x-k8s.io/pod-group",
        scheduler_name="scheduler-plugins-scheduler",
    ),
    GangScheduler(
        group="scheduling.volcano.sh",
        version="v1beta1",
        minimum=("minMember",),
        spec=_volcano,
        annotation="scheduling.k8s.io/group-name",
        scheduler_name="volcano",
    ),
)
SCHEDULERS = {each.group: each for each in _SCHEDULERS}
"""All gang schedulers that Muster can use, by API group."""


def chosen(mode: GangMode, served: Sequence[str]) -> GangScheduler | None:
    """The scheduler that a job with this mode uses. `served` are the API groups that the cluster serves, the preferred one first."""
    return SCHEDULERS[served[0]] if served and mode is not GangMode.NEVER else None


def pod_group(job: TrainingJob, scheduler: GangScheduler, count: int) -> dict[str, Any]:
    """The manifest of the job's PodGroup. The scheduler places `count` pods at once or none."""
    owner = owner_of(job)
    metadata = {"name": job.metadata.name, "namespace": job.metadata.namespace, "labels": labels_of(job)}
    return {
        "apiVersion": f"{scheduler.group}/{scheduler.version}",
        "kind": "PodGroup",
        "metadata": {**metadata, **({"ownerReferences": [owner]} if owner else {})},
        "spec": _merged(scheduler.spec(job), scheduler.minimum, count),
    }


def with_count(group: dict[str, Any], scheduler: GangScheduler, count: int) -> dict[str, Any]:
    """The PodGroup with another count. The API server has added fields to its spec, some of which cannot change."""
    return {**group, "spec": _merged(group.get("spec") or {}, scheduler.minimum, count)}


def joined(pod: dict[str, Any], scheduler: GangScheduler, name: str) -> dict[str, Any]:
    """The pod as a member of the PodGroup `name`. A `schedulerName` of its template stays."""
    metadata, spec = pod["metadata"], pod["spec"]
    if scheduler.label:
        metadata = {**metadata, "labels": {**metadata["labels"], scheduler.label: name}}
    if scheduler.annotation:
        metadata = {**metadata, "annotations": {**(metadata.get("annotations") or {}), scheduler.annotation: name}}
    if scheduler.field:
        spec = _merged(spec, scheduler.field, name)
    if scheduler.scheduler_name:
        spec = {"schedulerName": scheduler.scheduler_name, **spec}
    return {**pod, "metadata": metadata, "spec": spec}


def _merged(document: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The document with this value at this path."""
    name, *rest = path
    return {**document, name: _merged(document.get(name) or {}, rest, value) if rest else value}
