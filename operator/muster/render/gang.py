"""Gang schedulers: how the pods of a job become one PodGroup, of which the scheduler places all pods or none.

Each scheduler is one description. The rest of Muster does not depend on the choice. docs/scheduling.md describes the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from muster.api.constants import TEMPLATE_HASH_LABEL
from muster.api.job import TrainingJob
from muster.api.spec import GangMode
from muster.render.defaults import JobDefaults
from muster.render.pods import labels_of, owner_of
from muster.render.template_hash import digest_of
from muster.strategies.registry import strategy_of

PLURAL = "podgroups"


@dataclass(frozen=True)
class GangScheduler:
    """A scheduler with PodGroups.

    Attributes:
        group: API group of its PodGroup. It identifies the scheduler, in the configuration and in the status of a job.
        version: API version of its PodGroup.
        minimum: path, in the spec of the PodGroup, of the number of pods that it places together or not at all.
        spec: the rest of the spec of a job's PodGroup, whose priority class is the second argument.
        label: label with which a pod names its PodGroup.
        annotation: annotation with which a pod names its PodGroup.
        field: path, in the spec of a pod, of the name of its PodGroup.
        scheduler_name: `schedulerName` of pods whose template names none. Empty: the cluster's default scheduler.
        has_queues: whether its PodGroups wait in queues.
        same_priority: whether it places no pod whose priority class is not that of its PodGroup.
    """

    group: str
    version: str
    minimum: tuple[str, ...]
    spec: Callable[[TrainingJob, str], dict[str, Any]]
    label: str = ""
    annotation: str = ""
    field: tuple[str, ...] = ()
    scheduler_name: str = ""
    same_priority: bool = False
    has_queues: bool = False


def _native(job: TrainingJob, priority_class: str) -> dict[str, Any]:
    """The fields of the PodGroup of Kubernetes. An elastic job goes on without a preempted pod, so pods may be preempted one by one. Other
    jobs restart, so the preemption of only a part would free too little."""
    mode = "single" if job.spec.elastic else "all"
    return {"disruptionMode": {mode: {}}, **_priority(priority_class)}


def _volcano(job: TrainingJob, priority_class: str) -> dict[str, Any]:
    queue = job.spec.scheduling.queue
    return {**({"queue": queue} if queue else {}), **_priority(priority_class)}


def _priority(priority_class: str) -> dict[str, Any]:
    return {"priorityClassName": priority_class} if priority_class else {}


_SCHEDULERS = (
    GangScheduler(
        group="scheduling.k8s.io",
        version="v1beta1",
        minimum=("schedulingPolicy", "gang", "minCount"),
        spec=_native,
        field=("schedulingGroup", "podGroupName"),
        same_priority=True,
    ),
    GangScheduler(
        group="scheduling.x-k8s.io",
        version="v1alpha1",
        minimum=("minMember",),
        spec=lambda job, priority_class: {},
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
        has_queues=True,
    ),
)
SCHEDULERS = {each.group: each for each in _SCHEDULERS}
"""All gang schedulers that Muster can use, by API group."""


def chosen(mode: GangMode, served: Sequence[str]) -> GangScheduler | None:
    """The scheduler that a job with this mode uses. `served` are the API groups that the cluster serves, the preferred one first."""
    return SCHEDULERS[served[0]] if served and mode is not GangMode.NEVER else None


def priority_class_of(job: TrainingJob, defaults: Sequence[JobDefaults]) -> str:
    """The priority class of the job's PodGroup: that of the job, or else that of its first replica's template. Empty stands for the
    cluster's default. Templates of other replicas may have another class, but a PodGroup has one priority."""
    if job.spec.scheduling.priority_class_name:
        return job.spec.scheduling.priority_class_name
    strategy = strategy_of(job.spec.strategy)
    name = next(replica.role for replica in strategy.plan(job.spec).replicas if strategy.is_in_world(replica.role))
    role = job.spec.roles.get(name)
    templates = [*(template for each in defaults for _, template in each.templates_of(name)), role.template if role else {}]
    specs = [template.get("spec") or {} for template in templates]
    return next((str(spec["priorityClassName"] or "") for spec in reversed(specs) if "priorityClassName" in spec), "")


def identity(job: TrainingJob, scheduler: GangScheduler) -> dict[str, Any]:
    """The PodGroup of the job, without its contents."""
    metadata = {"name": job.metadata.name, "namespace": job.metadata.namespace}
    return {"apiVersion": f"{scheduler.group}/{scheduler.version}", "kind": "PodGroup", "metadata": metadata}


def pod_group(job: TrainingJob, scheduler: GangScheduler, *, count: int, priority_class: str) -> dict[str, Any]:
    """The manifest of the job's PodGroup. The scheduler places `count` pods at once or none."""
    owner, spec = owner_of(job), scheduler.spec(job, priority_class)
    labels = {**labels_of(job), TEMPLATE_HASH_LABEL: digest_of(spec)}
    base = identity(job, scheduler)
    metadata = {**base["metadata"], "labels": labels, **({"ownerReferences": [owner]} if owner else {})}
    return {**base, "metadata": metadata, "spec": _merged(spec, scheduler.minimum, count)}


def with_count(group: dict[str, Any], scheduler: GangScheduler, count: int) -> dict[str, Any]:
    """The PodGroup with another count. The API server has added fields to its spec, some of which cannot change."""
    return {**group, "spec": _merged(group.get("spec") or {}, scheduler.minimum, count)}


def joined(pod: dict[str, Any], scheduler: GangScheduler, name: str, *, priority_class: str) -> dict[str, Any]:
    """The pod as a member of the PodGroup `name`, which has this priority class. Does not change the `schedulerName` of its template."""
    metadata, spec = pod["metadata"], pod["spec"]
    if scheduler.label:
        metadata = {**metadata, "labels": {**metadata["labels"], scheduler.label: name}}
    if scheduler.annotation:
        metadata = {**metadata, "annotations": {**(metadata.get("annotations") or {}), scheduler.annotation: name}}
    if scheduler.field:
        spec = _merged(spec, scheduler.field, name)
    if scheduler.scheduler_name:
        spec = {"schedulerName": scheduler.scheduler_name, **spec}
    if scheduler.same_priority:
        others = {key: value for key, value in spec.items() if key != "priorityClassName"}
        spec = {**others, **_priority(priority_class)}
    return {**pod, "metadata": metadata, "spec": spec}


def _merged(document: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The document with this value at this path."""
    name, *rest = path
    return {**document, name: _merged(document.get(name) or {}, rest, value) if rest else value}
