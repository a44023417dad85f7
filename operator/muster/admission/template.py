"""Checks of a user's pod template. All other fields pass unchecked, so the pod fields of any Kubernetes version work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from muster.admission.conditions import value_at
from muster.admission.paths import step
from muster.admission.rules import CONTAINER_LISTS, DNS_SUBDOMAIN, IMAGE_MESSAGE, POD_FIELDS, TRAINER_FIELDS
from muster.api.constants import GROUP, IMAGE
from muster.api.problems import Problem
from muster.api.quantity import MAX_QUANTITY_LENGTH, amount_of
from muster.api.spec import RoleName
from muster.api.unchecked import mappings

MAX_CONTAINERS = 16
MAX_ENV = 128
MAX_LIMITS = 16

TEMPLATE_FIELDS = ("metadata", "spec")
LONGEST_GRACE_SECONDS = 7 * 24 * 3600
"""Seconds. A pod with a longer grace period would hold its node for ever, and the time of its deletion would be out of range."""

_RULES = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_MAPPINGS = (
    "affinity",
    "affinity.nodeAffinity",
    f"affinity.nodeAffinity.{_RULES}",
    "affinity.podAffinity",
    "affinity.podAntiAffinity",
    "nodeSelector",
    "schedulingGroup",
)
_LISTS = (
    f"affinity.nodeAffinity.{_RULES}.nodeSelectorTerms",
    *(f"affinity.{kind}.{_PREFERRED}" for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")),
)
"""Fields of a pod's spec to which Muster adds something later, when a node has failed or a queue has chosen nodes. Another type would fail
only then, in each pass."""

_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
"""The API server turns such an annotation into a part of the container's security context."""
_CONTAINER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def template_problems(role: RoleName, template: Mapping[str, Any]) -> Iterable[Problem]:
    """The problems of a role's template."""
    base = f"spec.roles.{role}.template"
    for key in template:
        if key not in TEMPLATE_FIELDS:
            yield Problem(step(base, key), f"is not a field of a pod template: write {' or '.join(TEMPLATE_FIELDS)}")
    yield from _metadata_problems(template.get("metadata", {}), f"{base}.metadata")
    spec = template.get("spec", {})
    if not isinstance(spec, dict):
        yield Problem(f"{base}.spec", "must be a mapping: the spec of a pod")
        return
    for key in CONTAINER_LISTS:
        yield from _containers_problems(spec.get(key, []), f"{base}.spec.{key}")
    yield from _named_list_problems(spec.get("volumes", []), f"{base}.spec.volumes")
    yield from _shape_problems(spec, f"{base}.spec")
    priority = spec.get("priorityClassName") or ""
    if not isinstance(priority, str) or not re.fullmatch(f"|{DNS_SUBDOMAIN}", priority):
        yield Problem(f"{base}.spec.priorityClassName", f"must be the name of a PriorityClass, not {priority!r:.80}")
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if not isinstance(grace, int) or isinstance(grace, bool) or not 0 <= grace <= LONGEST_GRACE_SECONDS:
        message = f"must be a whole number of seconds from 0 to {LONGEST_GRACE_SECONDS}, a week"
        yield Problem(f"{base}.spec.terminationGracePeriodSeconds", message)


def _shape_problems(spec: Mapping[str, Any], path: str) -> Iterable[Problem]:
    for field in (*_MAPPINGS, *_LISTS):
        value = value_at(spec, field)
        if field in _MAPPINGS and not isinstance(value, dict | None):
            yield Problem(f"{path}.{field}", "must be a mapping, as in the spec of a pod")
        elif field in _LISTS and value is not None and not _is_list_of_mappings(value):
            yield Problem(f"{path}.{field}", "must be a list of mappings, as in the spec of a pod")
    for index, term in mappings(value_at(spec, _LISTS[0])):
        if not isinstance(term.get("matchFields"), list | None):
            yield Problem(f"{path}.{_LISTS[0]}[{index}].matchFields", "must be a list of mappings, as in the spec of a pod")


def _is_list_of_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _metadata_problems(metadata: Any, path: str) -> Iterable[Problem]:
    if not isinstance(metadata, dict):
        yield Problem(path, "must be a mapping with labels and annotations")
        return
    for key in metadata:
        if key not in ("labels", "annotations"):
            yield Problem(step(path, key), "may not be set: Muster sets all metadata but labels and annotations; leave it out")
    for kind in ("labels", "annotations"):
        values = metadata.get(kind, {})
        if not isinstance(values, dict):
            yield Problem(f"{path}.{kind}", "must be a mapping of names to text")
            continue
        for key, value in values.items():
            if not isinstance(value, str):
                yield Problem(step(f"{path}.{kind}", key), "must be text: put it in quotes")
            if key.startswith(_APPARMOR):
                message = "may not be set: write securityContext.appArmorProfile of the container instead"
                yield Problem(step(f"{path}.{kind}", key), message)
            if key.startswith(f"{GROUP}/"):
                yield Problem(
                    step(f"{path}.{kind}", key), f"may not be set: only Muster sets names that begin with {GROUP}/; choose another name"
                )


def _containers_problems(containers: Any, path: str) -> Iterable[Problem]:
    yield from _named_list_problems(containers, path, most=MAX_CONTAINERS)
    for index, container in mappings(containers):
        here = step(path, index)
        name = container.get("name")
        if isinstance(name, str) and not _CONTAINER_NAME.fullmatch(name):
            yield Problem(f"{here}.name", f"must be at most 63 lower-case letters, digits and '-', not {name!r}")
        image = container.get("image", "unnamed")
        if not isinstance(image, str) or not re.fullmatch(IMAGE, image):
            yield Problem(f"{here}.image", f"{IMAGE_MESSAGE}, not {image!r}")
        yield from _env_problems(container.get("env", []), f"{here}.env")
        yield from _resources_problems(container.get("resources", {}), f"{here}.resources")


def _env_problems(env: Any, path: str) -> Iterable[Problem]:
    yield from _named_list_problems(env, path, most=MAX_ENV)
    for index, variable in mappings(env):
        name = variable.get("name")
        if not isinstance(name, str):
            continue
        here = step(path, index)
        if "=" in name:
            yield Problem(f"{here}.name", f"must not contain '=', as {name!r} does")
        if "value" in variable and not isinstance(variable["value"], str):
            yield Problem(f"{here}.value", "must be text: put it in quotes")


def _resources_problems(resources: Any, path: str) -> Iterable[Problem]:
    if not isinstance(resources, dict):
        yield Problem(path, "must be a mapping with limits and requests")
        return
    limits = resources.get("limits", {})
    if not isinstance(limits, dict):
        yield Problem(f"{path}.limits", "must be a mapping, such as {nvidia.com/gpu: 1}")
        return
    if len(limits) > MAX_LIMITS:
        yield Problem(f"{path}.limits", f"must have at most {MAX_LIMITS} entries, not {len(limits)}")
    for key, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, str | int):
            yield Problem(step(f"{path}.limits", key), "must be a whole number or text, such as 4, 500m or 16Gi: put it in quotes")
        elif amount_of(value) is None:
            yield Problem(step(f"{path}.limits", key), f"must be a quantity, such as 4, 500m or 16Gi, not {value!r:.80}")
    requests = resources.get("requests")
    if not isinstance(requests, dict | None):
        yield Problem(f"{path}.requests", "must be a mapping, such as {cpu: 4}")
    elif requests and (memory := requests.get("memory")) is not None and amount_of(memory) is None:  # Muster may add to it
        yield Problem(f"{path}.requests.memory", f"must be a quantity, such as 16Gi, not {memory!r:.80}")


def _named_list_problems(items: Any, path: str, *, most: int | None = None) -> Iterable[Problem]:
    """Problems of a list of mappings with unique names, as strategic merge needs it."""
    if not isinstance(items, list):
        yield Problem(path, "must be a list of mappings, each with a name")
        return
    if most is not None and len(items) > most:
        yield Problem(path, f"must have at most {most} entries, not {len(items)}")
    seen: set[str] = set()
    for index, item in enumerate(items):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            yield Problem(step(path, index), "must be a mapping with a name, because items are merged by name")
        elif name in seen:
            yield Problem(f"{step(path, index)}.name", f"is not unique: an earlier entry is called {name} too; write another name")
        else:
            seen.add(name)


def template_schema(description: str) -> dict[str, Any]:
    """The fields of a pod template that the CRD declares. Its rules read them, and bounds keep the rules within the cost budget."""
    preserved = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    quantity = {"x-kubernetes-int-or-string": True, "maxLength": MAX_QUANTITY_LENGTH}
    by_name = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    limits = {"type": "object", "maxProperties": MAX_LIMITS, "additionalProperties": quantity}
    variable = {**preserved, "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 253}}}
    container = {
        **preserved,
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 63},
            "env": {"type": "array", "maxItems": MAX_ENV, "items": variable, **by_name},
            "resources": {**preserved, "properties": {"limits": limits}},
            **{name: {"type": "array", "items": {"type": "string"}} for name in TRAINER_FIELDS},
        },
    }
    containers = {"type": "array", "maxItems": MAX_CONTAINERS, "items": container, **by_name}
    fixed = {name: {"type": "string", "maxLength": 253} for name in POD_FIELDS}
    return {
        "description": description,
        "type": "object",
        "properties": {
            "metadata": dict(preserved),
            "spec": {**preserved, "properties": {**dict.fromkeys(CONTAINER_LISTS, containers), **fixed}},
        },
    }
