"""Problems of a job that only its pods show. The operator, `muster validate` and `muster render` all use this check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.admission.capacity import class_names
from muster.admission.sentences import not_one_of
from muster.api.capacity import Classes
from muster.api.constants import TRAINER_CONTAINER
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import Role, RoleName, TrainingJobSpec
from muster.api.unchecked import items, mapping, mappings
from muster.render.addresses import ClusterAddresses
from muster.render.capacity import known_classes
from muster.render.defaults import JobDefaults
from muster.render.images import Images
from muster.render.manifests import Manifest, render_replica
from muster.render.strategy_objects import render_objects
from muster.strategies.registry import strategy_of

_CONTAINER_LISTS = ("containers", "initContainers")
_NAMED_LISTS = (*_CONTAINER_LISTS, "volumes", "resourceClaims")
_SHARED = (
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "securityContext",
    "shareProcessNamespace",
)
"""Fields of a pod that change what each container is, sees, or reaches."""
_ACCOUNT = ("serviceAccountName", "serviceAccount")


def pod_problems(job: TrainingJob, written: TrainingJobSpec, *, defaults: Sequence[JobDefaults], images: Images) -> list[Problem]:
    """Templates that cannot be merged, functions of the strategy that fail, mounts without a volume, and parts of a preset that the job
    would use or change. `written` is the spec without its defaults. The world in the status has no influence: it may lack the first
    replica of a role."""
    job = job.with_status(replace(job.status, world=None))
    strategy = strategy_of(job.spec.strategy)
    plan = strategy.plan(job.spec)
    addresses = ClusterAddresses(job.metadata.name, job.metadata.namespace)
    errors: list[Problem] = []

    def pod_of(of: TrainingJob, role: RoleName) -> Manifest:
        return render_replica(of, role, index=0, attempt=0, addresses=addresses, images=images, defaults=defaults)

    if errors := _class_problems(job.spec, known_classes(defaults)):
        return errors
    try:
        for role in dict.fromkeys(replica.role for replica in plan.replicas):
            pod, field = pod_of(job, role), f"spec.roles.{role}.template.spec"
            errors += _unknown_volumes(pod["spec"], field)
            for preset in (each for each in defaults if each.preset):
                own, given = _spec_of(written, role), _preset_spec(preset, role)
                plain = pod_of(_without_template(job, role), role)
                errors += _changed_parts(preset.preset, own, given, pod["spec"], plain=plain["spec"], field=field)
                errors += _used_parts(preset.preset, own, given, pod["spec"], plain=plain["spec"], field=field)
        render_objects(job, plan, addresses)
        strategy.is_synchronous(job.spec)
    except InvalidJobError as error:
        return error.problems
    return list(dict.fromkeys(errors))


def _class_problems(spec: TrainingJobSpec, classes: Classes | None) -> list[Problem]:
    """Capacity classes that the installation does not have."""
    capacity = spec.scheduling.capacity
    if capacity is None or classes is None:
        return []
    if not classes:
        return [Problem("spec.scheduling.capacity", "this installation has no capacity classes (capacity in its chart); leave it out")]
    return [Problem(path, not_one_of(sorted(classes), name)) for path, name in class_names(capacity) if name not in classes]


def _unknown_volumes(spec: Mapping[str, Any], field: str) -> Iterator[Problem]:
    """Mounts without a volume. Without this check the job would be admitted, and the API server would refuse each pod."""
    volumes = {volume.get("name") for _, volume in mappings(spec.get("volumes"))}
    for kind, container in _containers(spec):
        for _, mount in mappings(container.get("volumeMounts")):
            if (name := mount.get("name")) not in volumes:
                message = f"{container.get('name')} mounts {name}, which is not a volume of the pod; add it to {field}.volumes"
                yield Problem(f"{field}.{kind}", message)


def _changed_parts(
    preset: str, own: Mapping[str, Any], given: Mapping[str, Any], pod: Mapping[str, Any], *, plain: Mapping[str, Any], field: str
) -> Iterator[Problem]:
    """Containers, volumes and claims of the preset that the job would change or remove. They may have rights that the author of the job
    lacks. A side-car with another image would use these rights. `plain` is the pod without the job's template."""
    for kind in _NAMED_LISTS:
        names = _names(given, kind)
        for name in sorted((names & _names(own, kind)) | (names & _names(plain, kind) - _names(pod, kind))):
            message = f"{name} is one of preset {preset}, which a job may not change or remove; write another name"
            yield Problem(f"{field}.{kind}", message)
    if any(each.get("image") for _, each in _containers(given) if each.get("name") != TRAINER_CONTAINER):
        for name in _SHARED:
            if name in own:
                message = f"may not be set, because it would change the containers of preset {preset} too; leave it out"
                yield Problem(f"{field}.{name}", message)


def _used_parts(
    preset: str, own: Mapping[str, Any], given: Mapping[str, Any], pod: Mapping[str, Any], *, plain: Mapping[str, Any], field: str
) -> Iterator[Problem]:
    """Volumes, claims, references and accounts of the preset that the job would use in another way than the preset does. `plain` is the pod
    without the job's template."""
    names = _names(given, "volumes") | _names(given, "resourceClaims")
    usual = {(kind, container.get("name")): _uses(container) for kind, container in _containers(plain)}
    for kind, container in _containers(pod):
        for use in _uses(container):
            if use.get("name") in names and use not in usual.get((kind, container.get("name")), []):
                message = f"{container.get('name')} uses {use['name']}, which only preset {preset} may mount; use one of the job"
                yield Problem(f"{field}.{kind}", message)
    for kind, name, variable in _extended_variables(own, given, pod):
        message = f"{name}: {variable} extends a reference of preset {preset}; write all of valueFrom, or another name"
        yield Problem(f"{field}.{kind}", message)
    if any(given.get(each) for each in _ACCOUNT) and not any(own.get(each) for each in _ACCOUNT):
        message = f"gives the job a token of the account of preset {preset}; leave it out, or name an account of the job"
        if pod.get("automountServiceAccountToken") and not plain.get("automountServiceAccountToken"):
            yield Problem(f"{field}.automountServiceAccountToken", message)
        if _has_token(own):
            yield Problem(f"{field}.volumes", f"serviceAccountToken {message}")


def _uses(container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The mounts and the claims of a container. Each has the name of the part of the pod."""
    lists = (container.get("volumeMounts"), container.get("volumeDevices"), mapping(container.get("resources")).get("claims"))
    return [each for values in lists for _, each in mappings(values)]


def _extended_variables(own: Mapping[str, Any], given: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Variables of the job that take a part of their reference from the preset, such as the name of a Secret for another key. They are
    merged by name."""
    references = _references(given)
    merged = _references(pod)
    for place, written in _references(own).items():
        if place in references and merged.get(place) not in (written, references[place]):
            yield place


def _references(spec: Mapping[str, Any]) -> dict[tuple[str, str, str], Any]:
    """The sources of variables, by list, container and variable."""
    return {
        (kind, str(container.get("name")), str(variable.get("name"))): variable["valueFrom"]
        for kind, container in _containers(spec)
        for _, variable in mappings(container.get("env"))
        if variable.get("valueFrom") is not None
    }


def _has_token(spec: Mapping[str, Any]) -> bool:
    sources = (mapping(volume.get("projected")).get("sources") for _, volume in mappings(spec.get("volumes")))
    return any("serviceAccountToken" in source for each in sources for source in items(each) if isinstance(source, Mapping))


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((kind, container) for kind in _CONTAINER_LISTS for _, container in mappings(spec.get(kind)))


def _names(spec: Mapping[str, Any], kind: str) -> set[str]:
    """The names in a list of a pod, except the trainer's."""
    return {str(each["name"]) for _, each in mappings(spec.get(kind)) if each.get("name") not in (None, TRAINER_CONTAINER)}


def _spec_of(spec: TrainingJobSpec, role: RoleName) -> Mapping[str, Any]:
    """The pod's spec in the template of a role, with the claims of the role and the variables of all roles."""
    given = spec.roles.get(role) or Role()
    own = mapping(given.template.get("spec"))
    claims = [*({"name": each.name} for each in given.resource_claims or ()), *items(own.get("resourceClaims"))]
    variables = {"name": TRAINER_CONTAINER, "env": [each.wire() for each in spec.trainer.env or ()]}
    return {**own, "resourceClaims": claims, "containers": [variables, *items(own.get("containers"))]}


def _preset_spec(defaults: JobDefaults, role: RoleName) -> dict[str, Any]:
    """What the templates of a preset have for a role: lists are joined, and the rest is of the last one."""
    joined: dict[str, Any] = {}
    for _, template in defaults.templates_of(role):
        for key, value in mapping(template.get("spec")).items():
            joined[key] = [*items(joined.get(key)), *value] if isinstance(value, list) else value
    return joined


def _without_template(job: TrainingJob, role: RoleName) -> TrainingJob:
    given = job.spec.roles.get(role)
    if given is None:
        return job
    plain = given.model_copy(update={"template": {}, "resource_claims": None})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"roles": {**job.spec.roles, role: plain}})})
