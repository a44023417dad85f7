"""Limits of an installation for its jobs. Pure.

Pods are created by the operator, so the API server checks the operator's rights and not those of the job's author. A policy is how the
administrator limits what an author gets in this way. By default it limits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from muster.admission.paths import step
from muster.admission.rules import listed
from muster.api.base import ApiModel
from muster.api.problems import Problem
from muster.api.spec import TrainingJobSpec
from muster.api.unchecked import mapping, mappings
from muster.strategies.registry import STRATEGIES

ANY = "*"

POD_FIELDS = (
    "affinity",
    "containers",
    "imagePullSecrets",
    "initContainers",
    "nodeSelector",
    "priorityClassName",
    "resourceClaims",
    "serviceAccount",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "topologySpreadConstraints",
    "volumes",
)
"""Fields of a pod's spec that a restricted template may have. Security contexts, host namespaces, `nodeName`, tolerations, API tokens and
patch directives, which could remove what Muster sets, are not among them."""
CONTAINER_FIELDS = (
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "name",
    "ports",
    "resources",
    "restartPolicy",
    "volumeMounts",
    "workingDir",
)
PORT_FIELDS = ("containerPort", "name", "protocol")

_ENV_KINDS = {"secretRef": "secret", "configMapRef": "configMap", "secretKeyRef": "secret", "configMapKeyRef": "configMap"}
"""Sources of environment variables, and the kind of volume that gives the same data."""


class Templates(StrEnum):
    """How much of a pod a role's template may set."""

    FULL = "Full"
    RESTRICTED = "Restricted"
    NONE = "None"


class JobPolicy(ApiModel):
    """Limits for every job of an installation. A list with `*` allows every name, an empty list none; 0 is no limit."""

    service_accounts: list[str] = Field(default=[ANY], description="Service accounts that a template may name, or have a token of.")
    priority_classes: list[str] = Field(default=[ANY], description="Priority classes that a job or a template may name.")
    volumes: list[str] = Field(
        default=[ANY],
        description="Kinds of volumes that a job may use, as in a pod: persistentVolumeClaim, secret, ... Environment variables that come "
        "from a Secret or ConfigMap count as such a volume.",
    )
    templates: Templates = Field(default=Templates.FULL, description="What a template may set.")
    max_replicas_per_job: int = Field(default=0, ge=0, description="Replicas of all roles together.")
    max_device_hours_per_job: float = Field(
        default=0, ge=0, allow_inf_nan=False, description="Device-hours of a job. Each job must then have a limit of its own."
    )
    max_jobs_per_namespace: int = Field(default=0, ge=0, description="Jobs of a namespace that have started and not ended.")


UNLIMITED = JobPolicy()


def violations(policy: JobPolicy, spec: TrainingJobSpec) -> list[Problem]:
    """Violations of the policy by a spec that is otherwise valid."""
    errors = [*_replica_problems(policy, spec), *_spec_volume_problems(policy, spec), *_limit_problems(policy, spec)]
    priority_class = spec.scheduling.priority_class_name
    if priority_class:
        errors += _name_problems(policy.priority_classes, priority_class, "spec.scheduling.priorityClassName")
    for name, role in spec.roles.items():
        errors += _template_problems(policy, role.template, f"spec.roles.{name}.template")
    return errors


def _replica_problems(policy: JobPolicy, spec: TrainingJobSpec) -> Iterable[Problem]:
    most, count = policy.max_replicas_per_job, len(STRATEGIES[spec.strategy].requested(spec).replicas)
    if spec.elastic is not None:
        count = max(count, spec.elastic.max_replicas)  # an elastic job has one role
    if most and count > most:
        field = "spec.roles" if spec.elastic is None else "spec.elastic.maxReplicas"
        yield Problem(field, f"makes {count} replicas in total; this installation allows {most} for a job, so write fewer")


def _limit_problems(policy: JobPolicy, spec: TrainingJobSpec) -> Iterable[Problem]:
    most, limits = policy.max_device_hours_per_job, spec.usage_limits
    hours = limits.device_hours if limits is not None else None
    if most and hours is None:
        yield Problem(
            "spec.usageLimits.deviceHours", f"is required: this installation allows {most:g} device-hours for a job; write at most that"
        )
    elif most and hours is not None and hours > most:
        yield Problem("spec.usageLimits.deviceHours", f"must be at most {most:g}, as this installation allows, not {hours:g}")


def _spec_volume_problems(policy: JobPolicy, spec: TrainingJobSpec) -> Iterable[Problem]:
    storage = spec.checkpoint.storage
    if storage is not None and storage.persistent_volume_claim is not None:
        yield from _kind_problems(policy, "persistentVolumeClaim", "spec.checkpoint.storage.persistentVolumeClaim")
    if storage is not None and storage.secret_ref is not None:
        yield from _kind_problems(policy, "secret", "spec.checkpoint.storage.secretRef")
    for index, each in enumerate(spec.inputs):
        if each.secret_ref is not None:
            yield from _kind_problems(policy, "secret", f"spec.inputs[{index}].secretRef")
    for index, variable in enumerate(spec.trainer.env or ()):
        yield from _env_problems(policy, mapping(variable.value_from), f"spec.trainer.env[{index}].valueFrom")
    if spec.trainer.code is not None:
        yield from _kind_problems(policy, "configMap", "spec.trainer.code.configMap")


def _template_problems(policy: JobPolicy, template: Mapping[str, Any], path: str) -> Iterable[Problem]:
    if not template:
        return
    if policy.templates is Templates.NONE:
        yield Problem(path, "may not be set: this installation allows no templates; leave it out")
        return
    restricted = policy.templates is Templates.RESTRICTED
    if restricted:
        yield from _directive_problems(template, path)
        yield from _field_problems(template, ("metadata", "spec"), path)
    spec, path = mapping(template.get("spec")), f"{path}.spec"
    if restricted:
        yield from _field_problems(spec, POD_FIELDS, path)
    for key in ("serviceAccountName", "serviceAccount"):
        if spec.get(key):
            yield from _name_problems(policy.service_accounts, spec[key], f"{path}.{key}")
    if not (spec.get("serviceAccountName") or spec.get("serviceAccount")):
        for token in _tokens(spec, path):
            yield from _name_problems(policy.service_accounts, "default", token)
    if spec.get("priorityClassName"):
        yield from _name_problems(policy.priority_classes, spec["priorityClassName"], f"{path}.priorityClassName")
    for here, volume in _items(spec, "volumes", path):
        yield from _volume_problems(policy, volume, here)
    for kind in ("containers", "initContainers"):
        for here, container in _items(spec, kind, path):
            yield from _container_problems(policy, container, here)


def _tokens(spec: Mapping[str, Any], path: str) -> Iterator[str]:
    """The fields that give a pod a token of its service account."""
    if spec.get("automountServiceAccountToken"):
        yield f"{path}.automountServiceAccountToken"
    for here, volume in _items(spec, "volumes", path):
        for source, each in _items(mapping(volume.get("projected")), "sources", f"{here}.projected"):
            if each.get("serviceAccountToken") is not None:
                yield f"{source}.serviceAccountToken"


def _volume_problems(policy: JobPolicy, volume: Mapping[str, Any], path: str) -> Iterable[Problem]:
    for kind, source in volume.items():
        if kind in ("name", "$patch") or source is None:
            continue
        if kind != "projected":
            yield from _kind_problems(policy, kind, step(path, kind))
            continue
        for here, each in _items(mapping(source), "sources", f"{path}.projected"):
            for inner in each:
                yield from _kind_problems(policy, inner, step(here, inner))


def _container_problems(policy: JobPolicy, container: Mapping[str, Any], path: str) -> Iterable[Problem]:
    if policy.templates is Templates.RESTRICTED:
        yield from _field_problems(container, CONTAINER_FIELDS, path)
        for here, port in _items(container, "ports", path):
            yield from _field_problems(port, PORT_FIELDS, here)
    for here, each in _items(container, "envFrom", path):
        yield from _env_problems(policy, each, here)
    for here, each in _items(container, "env", path):
        yield from _env_problems(policy, mapping(each.get("valueFrom")), f"{here}.valueFrom")


def _env_problems(policy: JobPolicy, source: Mapping[str, Any], path: str) -> Iterable[Problem]:
    for key, kind in _ENV_KINDS.items():
        if source.get(key) is not None:
            yield from _kind_problems(policy, kind, f"{path}.{key}")


def _directive_problems(value: Any, path: str) -> Iterable[Problem]:
    """Patch directives at any depth. They could remove what Muster or the installation sets."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key.startswith("$"):
                yield Problem(step(path, key), "may not be set: this installation allows no patch directive; leave it out")
            yield from _directive_problems(inner, step(path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _directive_problems(inner, step(path, index))


def _field_problems(value: Mapping[str, Any], allowed: Sequence[str], path: str) -> Iterable[Problem]:
    for key in value:
        if key not in allowed and not key.startswith("$"):
            yield Problem(step(path, key), f"may not be set: this installation allows {', '.join(allowed)} here")


def _kind_problems(policy: JobPolicy, kind: str, path: str) -> Iterable[Problem]:
    if not _allows(policy.volumes, kind):
        yield Problem(path, f"may not be used: this installation allows {_listed(policy.volumes, 'volumes')}, not {kind}")


def _name_problems(allowed: Sequence[str], name: Any, path: str) -> Iterable[Problem]:
    if not _allows(allowed, name):
        yield Problem(path, f"must be {_listed(allowed, 'one, so leave it out')}, as this installation allows, not {name!r:.80}")


def _allows(allowed: Sequence[str], name: Any) -> bool:
    return ANY in allowed or name in allowed


def _listed(allowed: Sequence[str], plural: str) -> str:
    return listed(allowed, "or") if allowed else f"no {plural}"


def _items(value: Mapping[str, Any], key: str, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The mappings in a list, each with its path. Other types are refused elsewhere."""
    return ((step(f"{path}.{key}", index), item) for index, item in mappings(value.get(key)))
