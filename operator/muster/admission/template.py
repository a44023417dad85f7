"""Checks of a user's pod template. `pod_fields.py` checks its fields against the types of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from muster.admission.paths import step
from muster.admission.pod_fields import field_findings
from muster.admission.resources import resource_problems
from muster.admission.rules import CONTAINER_LISTS, DNS_SUBDOMAIN, IMAGE_MESSAGE, POD_FIELDS, TRAINER_FIELDS
from muster.admission.sentences import not_text
from muster.api.constants import GROUP, IMAGE, TRAINER_CONTAINER
from muster.api.problems import Problem
from muster.api.quantity import MAX_QUANTITY_LENGTH, amount_of
from muster.api.spec import MAX_ENV, RoleName
from muster.api.unchecked import mappings

MAX_CONTAINERS = 16
MAX_LIMITS = 16

TEMPLATE_FIELDS = ("metadata", "spec")
NO_LIMITS: Mapping[str, Any] = {}
LONGEST_GRACE_SECONDS = 7 * 24 * 3600
"""Seconds. A pod with a longer grace period would hold its node for ever, and the time of its deletion would be out of range."""

_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
"""The API server turns such an annotation into a part of the container's security context."""
_CONTAINER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def template_problems(role: RoleName, template: Mapping[str, Any], limits: Mapping[str, Any] = NO_LIMITS) -> list[Problem]:
    """The problems of a role's template. `limits` are those that the trainer container has from elsewhere."""
    base = f"spec.roles.{role}.template"
    problems = list(_own_problems(base, template, limits))
    reported = {problem.field for problem in problems}
    spec = template.get("spec")
    fields = field_findings(spec, f"{base}.spec").problems if isinstance(spec, dict) else []
    return [*problems, *(problem for problem in fields if problem.field not in reported)]


def template_remarks(role: RoleName, template: Mapping[str, Any]) -> list[Problem]:
    """What may be wrong with a role's template."""
    spec = template.get("spec")
    return field_findings(spec, f"spec.roles.{role}.template.spec").remarks if isinstance(spec, dict) else []


def env_problems(env: Sequence[Mapping[str, Any]], path: str) -> list[Problem]:
    """The problems of the environment variables of all roles."""
    return [*_env_problems(env, path), *field_findings(env, path, kind="[EnvVar]").problems]


def _own_problems(base: str, template: Mapping[str, Any], limits: Mapping[str, Any]) -> Iterable[Problem]:
    """The problems that the types of Kubernetes do not show."""
    for key in template:
        if key not in TEMPLATE_FIELDS:
            yield Problem(step(base, key), f"is not a field of a pod template: write {' or '.join(TEMPLATE_FIELDS)}")
    yield from _metadata_problems(template.get("metadata", {}), f"{base}.metadata")
    spec = template.get("spec", {})
    if not isinstance(spec, dict):
        yield Problem(f"{base}.spec", "must be a mapping: the spec of a pod")
        return
    for key in CONTAINER_LISTS:
        yield from _containers_problems(spec.get(key, []), f"{base}.spec.{key}", limits)
    yield from _named_list_problems(spec.get("volumes", []), f"{base}.spec.volumes")
    priority = spec.get("priorityClassName") or ""
    if not isinstance(priority, str) or not re.fullmatch(f"|{DNS_SUBDOMAIN}", priority):
        yield Problem(f"{base}.spec.priorityClassName", f"must be the name of a PriorityClass, not {priority!r:.80}")
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if not isinstance(grace, int) or isinstance(grace, bool) or not 0 <= grace <= LONGEST_GRACE_SECONDS:
        message = f"must be a whole number of seconds from 0 to {LONGEST_GRACE_SECONDS}, a week"
        yield Problem(f"{base}.spec.terminationGracePeriodSeconds", message)


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
                yield Problem(step(f"{path}.{kind}", key), not_text(value))
            if key.startswith(_APPARMOR):
                message = "may not be set: write securityContext.appArmorProfile of the container instead"
                yield Problem(step(f"{path}.{kind}", key), message)
            if key.startswith(f"{GROUP}/"):
                yield Problem(
                    step(f"{path}.{kind}", key), f"may not be set: only Muster sets names that begin with {GROUP}/; choose another name"
                )


def _containers_problems(containers: Any, path: str, limits: Mapping[str, Any]) -> Iterable[Problem]:
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
        below = limits if name == TRAINER_CONTAINER else NO_LIMITS
        yield from _resources_problems(container.get("resources", {}), f"{here}.resources", below)


def _env_problems(env: Any, path: str) -> Iterable[Problem]:
    yield from _named_list_problems(env, path, most=MAX_ENV)
    for index, variable in mappings(env):
        name = variable.get("name")
        if not isinstance(name, str):
            continue
        here = step(path, index)
        if "=" in name:
            yield Problem(f"{here}.name", f"must not contain '=', as {name!r} does")


def _resources_problems(resources: Any, path: str, below: Mapping[str, Any]) -> Iterable[Problem]:
    if not isinstance(resources, dict):
        yield Problem(path, "must be a mapping with limits and requests")
        return
    parts = {part: {} if resources.get(part) is None else resources[part] for part in ("limits", "requests")}
    for part, amounts in parts.items():
        if not isinstance(amounts, dict):
            example = "{nvidia.com/gpu: 1}" if part == "limits" else "{cpu: 4}"
            yield Problem(f"{path}.{part}", f"must be a mapping, such as {example}")
            return
        if len(amounts) > MAX_LIMITS:
            yield Problem(f"{path}.{part}", f"must have at most {MAX_LIMITS} entries, not {len(amounts)}")
            return
        for key, value in amounts.items():
            if isinstance(value, bool) or not isinstance(value, str | int):
                yield Problem(step(f"{path}.{part}", key), "must be a whole number or text, such as 4, 500m or 16Gi: put it in quotes")
            elif amount_of(value) is None:
                yield Problem(step(f"{path}.{part}", key), f"must be a quantity, such as 4, 500m or 16Gi, not {value!r:.80}")
    yield from resource_problems(parts["limits"], parts["requests"], path, below=below)


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
        if isinstance(name, bool | int | float):
            yield Problem(f"{step(path, index)}.name", not_text(name))
        elif not isinstance(name, str) or not name:
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
