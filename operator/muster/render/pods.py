"""The pod of one replica: the template filled in, then the user's template laid over it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from muster.api import grace
from muster.api.constants import (
    API_VERSION,
    ATTEMPT_LABEL,
    FORM_LABEL,
    INDEX_LABEL,
    JOB_NAME_LABEL,
    JOB_UID_LABEL,
    KIND,
    ROLE_LABEL,
    STANDBY_LABEL,
    TRAINER_CONTAINER,
    is_reserved_env,
)
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.spec import Role, RoleName
from muster.render.environment import (
    CLAIM_PATH,
    CODE_PATH,
    CODE_SOURCE_PATH,
    STATE_PATH,
    TOKEN_PATH,
    Coordinator,
    Plans,
    environment_of,
    uid_of,
)
from muster.render.filling import fill
from muster.render.form import form_of
from muster.render.images import Images
from muster.render.merge import MergeError, strategic_merge
from muster.render.trainer import COPY_SUPERVISOR, SUPERVISOR_PATH, command_of, image_of
from muster.strategies.base import Addresses, Placement, ReplicaPlan, Strategy

SECONDS_AFTER_GRACE = 15
"""From the end of the time to save until a pod is killed: for last words, and for side-cars to end."""

SUPERVISOR_CONTAINER = "muster-supervisor"
_NO_DEVICES = ("cpu", "memory", "ephemeral-storage")
_WISHES = "preferredDuringSchedulingIgnoredDuringExecution"
_FIXED_METADATA = ("name", "namespace", "ownerReferences")
_FIXED_SPEC = ("hostname", "subdomain", "restartPolicy")
_KNOWN_TO_THE_POD = tuple(
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in (("MUSTER_POD_NAME", "metadata.name"), ("MUSTER_POD_UID", "metadata.uid"))
)


def pod_name(job: TrainingJob, role: RoleName, index: int) -> str:
    return f"{job.metadata.name}-{role.value}-{index}"


def labels_of(job: TrainingJob) -> dict[str, str]:
    """On every object of a job."""
    return {
        JOB_NAME_LABEL: job.metadata.name,
        JOB_UID_LABEL: uid_of(job),
        "app.kubernetes.io/name": "muster-training",
        "app.kubernetes.io/instance": job.metadata.name,
        "app.kubernetes.io/managed-by": "muster",
    }


def owner_of(job: TrainingJob) -> dict[str, Any] | None:
    """The owner reference to the job; None for a job that no server has seen."""
    if not job.metadata.uid:
        return None
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": job.metadata.name, "uid": job.metadata.uid}
    return {**reference, "controller": True, "blockOwnerDeletion": True}


def pod_of(
    job: TrainingJob,
    replica: ReplicaPlan,
    *,
    strategy: Strategy,
    plans: Plans,
    attempt: int,
    addresses: Addresses,
    images: Images,
    coordinator: Coordinator | None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    standby: bool = False,
) -> dict[str, Any]:
    """The manifest of one replica's pod: over what is rendered the installation's template (`defaults`), and over that the user's.

    Raises InvalidJobError where a template cannot be laid over.
    """
    environment = environment_of(
        job, replica, strategy=strategy, plans=plans, attempt=attempt, addresses=addresses, coordinator=coordinator, standby=standby
    )
    role = job.spec.roles.named().get(replica.role) or Role()
    placement = strategy.placement(job.spec, replica.role)
    storage, code = job.spec.checkpoint.storage, job.spec.trainer.code
    pod = fill(
        "pod.yaml.j2",
        name=pod_name(job, replica.role, replica.index),
        namespace=job.metadata.namespace,
        labels={
            **labels_of(job),
            "app.kubernetes.io/component": replica.role.value,
            ROLE_LABEL: replica.role.value,
            INDEX_LABEL: str(replica.index),
            ATTEMPT_LABEL: str(attempt),
            FORM_LABEL: form_of(job.spec, defaults),
            **({STANDBY_LABEL: "true"} if standby else {}),
        },
        owner=owner_of(job),
        hostname=f"{replica.role.value}-{replica.index}",
        subdomain=job.metadata.name,
        termination_grace_seconds=grace.seconds(job.spec, job.status) + SECONDS_AFTER_GRACE,
        priority_class_name=job.spec.scheduling.priority_class_name,
        node_selector=dict(placement.node_selector),
        container=TRAINER_CONTAINER,
        image=image_of(job, images.trainers[strategy.framework]),
        supervised=job.spec.trainer.supervised,
        supervisor=_supervisor(job, images),
        command=command_of(job.spec.trainer),  # `$(NAME)` in a user's command is for the kubelet to expand
        environment=[*({"name": name, "value": _literal(value)} for name, value in environment.items()), *_KNOWN_TO_THE_POD],
        ports=[(name, addresses.port(replica.role, replica.index, name)) for name in replica.ports],
        resources=_resources(role, placement),
        state_path=STATE_PATH,
        claim_name=storage.persistent_volume_claim.claim_name if storage and storage.persistent_volume_claim else None,
        checkpoint_path=CLAIM_PATH,
        secret_name=storage.secret_ref.name if storage and storage.secret_ref else None,
        code_config_map=code.config_map.name if code else None,
        code_path=CODE_PATH,
        code_source_path=CODE_SOURCE_PATH,
        token_path=TOKEN_PATH if coordinator else None,
    )
    pod = _with_template(pod, defaults, "jobDefaults.template")
    pod = _with_template(pod, role.template, f"spec.roles.{replica.role.value}.template")
    return _avoiding(_with_like_resources(pod), [node.name for node in job.status.avoided_nodes])


def _supervisor(job: TrainingJob, images: Images) -> dict[str, Any] | None:
    """The init container that brings the supervisor; None if the image has one, or is to have none."""
    if job.spec.trainer.image is None or not job.spec.trainer.supervised:
        return None
    return {
        "name": SUPERVISOR_CONTAINER,
        "image": images.supervisor,
        "pull_policy": images.supervisor_pull_policy,
        "command": list(COPY_SUPERVISOR),
        "path": SUPERVISOR_PATH,
    }


def _with_like_resources(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with the trainer's resources for the init container as well, but for devices. So it needs no more than before, keeps its
    class of service, and fits a quota that it fitted."""
    ours = next((each for each in pod["spec"].get("initContainers", ()) if each["name"] == SUPERVISOR_CONTAINER), None)
    if ours is None or "resources" in ours:
        return pod
    trainer = next(each for each in pod["spec"]["containers"] if each["name"] == TRAINER_CONTAINER)
    parts = {part: (trainer.get("resources") or {}).get(part) or {} for part in ("limits", "requests")}
    alike = {part: {name: amount for name, amount in amounts.items() if name in _NO_DEVICES} for part, amounts in parts.items()}
    if any(alike.values()):
        ours["resources"] = {part: amounts for part, amounts in alike.items() if amounts}
    return pod


def _avoiding(pod: dict[str, Any], nodes: list[str]) -> dict[str, Any]:
    """The pod with the wish for other nodes, beside those of its template. No more than a wish: a job must not wait for want of a node
    that is merely suspect."""
    if not nodes:
        return pod
    affinity = pod["spec"].get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    others = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in nodes]}
    wishes = [*(node_affinity.get(_WISHES) or []), {"weight": 100, "preference": others}]
    return {**pod, "spec": {**pod["spec"], "affinity": {**affinity, "nodeAffinity": {**node_affinity, _WISHES: wishes}}}}


def _literal(text: str) -> str:
    """`text` so written that Kubernetes, which expands `$(NAME)` in variables and commands, leaves it as it is."""
    return text.replace("$", "$$")


def _resources(role: Role, placement: Placement) -> dict[str, dict[str, str]]:
    limits = {**{name: str(quantity) for name, quantity in role.resources.limits.items()}, **placement.limits}
    requests = {name: str(quantity) for name, quantity in role.resources.requests.items()}
    return {key: values for key, values in (("limits", limits), ("requests", requests)) if values}


def _with_template(pod: dict[str, Any], template: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The template over the pod, and over that again what makes it this replica of this world."""
    if not template:
        return pod
    patch: dict[str, Any] = {part: template[part] for part in ("metadata", "spec") if template.get(part) is not None}
    try:
        merged = strategic_merge(pod, patch)
    except MergeError as error:
        raise InvalidJobError([Problem(f"{field}.{error.path}" if error.path else field, error.message)]) from None
    return _fixed(merged, pod, field)


def _fixed(merged: dict[str, Any], pod: dict[str, Any], field: str) -> dict[str, Any]:
    spec, metadata = merged.get("spec", {}), merged.setdefault("metadata", {})
    trainers = [container for container in spec.get("containers", ()) if container["name"] == TRAINER_CONTAINER]
    if not trainers:
        message = f"takes the {TRAINER_CONTAINER} container away, and nothing would train; remove the $patch that does it"
        raise InvalidJobError([Problem(field, message)])
    metadata |= {key: pod["metadata"][key] for key in _FIXED_METADATA if key in pod["metadata"]}
    metadata["labels"] = {**metadata.get("labels", {}), **pod["metadata"]["labels"]}
    spec |= {key: pod["spec"][key] for key in _FIXED_SPEC}
    [rendered] = pod["spec"]["containers"]
    trainers[0]["env"] = _with_reserved(rendered["env"], trainers[0].get("env", []))
    return merged


def _with_reserved(rendered: list[dict[str, Any]], merged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    reserved = [variable for variable in rendered if is_reserved_env(variable["name"])]
    return reserved + [variable for variable in merged if not is_reserved_env(variable["name"])]
