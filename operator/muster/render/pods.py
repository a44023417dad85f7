"""The pod of one replica: the filled template, with the user's template merged into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from muster.api import grace
from muster.api.chosen_classes import allowed
from muster.api.constants import (
    API_VERSION,
    ATTEMPT_LABEL,
    EXCLUDED_NODES_ANNOTATION,
    INDEX_LABEL,
    JOB_NAME_LABEL,
    JOB_UID_LABEL,
    KIND,
    ROLE_LABEL,
    STANDBY_LABEL,
    SUPERVISOR_CONTAINER,
    TEMPLATE_HASH_LABEL,
    TRAINER_CONTAINER,
)
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.quantity import with_more_mib
from muster.api.spec import PodLabels, Role, RoleName
from muster.api.status import Meaning
from muster.render.addresses import suffixes_of
from muster.render.capacity import with_classes
from muster.render.environment import (
    CLAIM_PATH,
    CODE_PATH,
    CODE_SOURCE_PATH,
    OBJECTS_PATH,
    STATE_PATH,
    TOKEN_PATH,
    Rendering,
    environment_of,
    uid_of,
)
from muster.render.filling import fill
from muster.render.images import Images
from muster.render.inputs import fetcher_of, with_fetcher
from muster.render.merge import MergeError, strategic_merge
from muster.render.pod_changes import HOSTNAME, annotated, apart, preferring, requiring
from muster.render.template_hash import template_hash_of
from muster.render.trainer import COPY_SUPERVISOR, SUPERVISOR_PATH, command_of, fetcher_image, image_of, memory_of
from muster.strategies.base import Placement, ReplicaPlan, Strategy, host_name
from muster.strategies.registry import is_reserved_env
from muster_contract.environment import MEMORY_REQUEST, NAMES
from muster_contract.inputs import FETCHER

_OUR_CONTAINERS = (SUPERVISOR_CONTAINER, FETCHER)
_NO_DEVICES = ("cpu", "memory", "ephemeral-storage")
MOST_EXCLUDED = 50
_FIXED_METADATA = ("name", "namespace", "ownerReferences")
_CONTAINER_LISTS = ("containers", "initContainers")
_WITHOUT_IMAGE = f"has no image; the training container is called {TRAINER_CONTAINER}, so write that name, or an image for another one"
_GRACE = "terminationGracePeriodSeconds"
_FIXED_SPEC = ("hostname", "subdomain", "restartPolicy")
_POD_IDENTITY = tuple(
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in ((NAMES["pod_name"], "metadata.name"), (NAMES["pod_uid"], "metadata.uid"))
)
_NODE = {"name": NAMES["node_name"], "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
_MEMORY_REQUEST = {"name": MEMORY_REQUEST, "valueFrom": {"resourceFieldRef": {"resource": "requests.memory"}}}


def pod_name(job: TrainingJob, role: RoleName, index: int, suffix: int | None = None) -> str:
    return f"{job.metadata.name}-{host_name(role, index, suffix)}"


def object_name(job: TrainingJob, name: str) -> str:
    """The name of a ConfigMap or Secret of the job's strategy."""
    return f"{job.metadata.name}-{name}"


def labels_of(job: TrainingJob) -> dict[str, str]:
    """The labels of every object of a job."""
    return {
        JOB_NAME_LABEL: job.metadata.name,
        JOB_UID_LABEL: uid_of(job),
        "app.kubernetes.io/name": "muster-training",
        "app.kubernetes.io/instance": job.metadata.name,
        "app.kubernetes.io/managed-by": "muster",
    }


def owner_of(job: TrainingJob) -> dict[str, Any] | None:
    """The owner reference to the job. None for a job that is not applied."""
    if not job.metadata.uid:
        return None
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": job.metadata.name, "uid": job.metadata.uid}
    return {**reference, "controller": True, "blockOwnerDeletion": True}


def pod_of(of: Rendering, replica: ReplicaPlan, *, standby: bool = False, apart_from: Sequence[PodLabels] = ()) -> dict[str, Any]:
    """The manifest of one replica's pod, which does not run on nodes of the pods `apart_from`. Raises InvalidJobError if a template cannot
    be merged."""
    job, role = of.job, replica.role
    pod = _with_templates(_filled(of, replica, standby=standby), of, role)
    memory, topology = memory_of(job.spec, of.strategy), job.spec.scheduling.topology
    if memory and memory.size_mib:
        pod = _with_memory(pod, memory.size_mib)
    pod = with_classes(pod, allowed(job.spec, job.status, role, replica.index, standby=standby), of.defaults)
    node_cache = next((each.node_cache for each in of.defaults if each.node_cache), None)
    pod = with_fetcher(_with_like_resources(pod), job, role, node_cache=node_cache)
    going = [each for each in job.status.node_notices if each.meaning is Meaning.GOES]
    excluded = {each.node for each in going if standby and not each.is_of_karpenter}
    pod = _avoiding(pod, [*(node.name for node in job.status.avoided_nodes), *(each.node for each in going if each.node not in excluded)])
    silent = {each.node for each in job.status.orphaned if each.node}
    pod = _excluding(pod, sorted(silent | excluded)[:MOST_EXCLUDED])
    pod = _away(pod, job, apart_from[:MOST_EXCLUDED])
    if standby and job.spec.recovery.spares:
        pod = _apart(pod, job)
    return _packed(pod, job, topology.pack) if topology and of.strategy.is_in_world(role) else pod


def _filled(of: Rendering, replica: ReplicaPlan, *, standby: bool) -> dict[str, Any]:
    """The pod without the templates of the user and of the `defaults`."""
    job, strategy, addresses = of.job, of.strategy, of.addresses
    suffix = None if standby else suffixes_of(job).get((replica.role, replica.index))
    image = of.images.trainers[strategy.framework.name]
    role = job.spec.roles.get(replica.role) or Role()
    placement = strategy.placement(job.spec, replica.role)
    storage, code, memory = job.spec.checkpoint.storage, job.spec.trainer.code, memory_of(job.spec, strategy)
    return fill(
        "pod.yaml.j2",
        name=pod_name(job, replica.role, replica.index, suffix),
        namespace=job.metadata.namespace,
        labels={
            **labels_of(job),
            "app.kubernetes.io/component": replica.role,
            ROLE_LABEL: replica.role,
            INDEX_LABEL: str(replica.index),
            ATTEMPT_LABEL: str(of.attempt),
            TEMPLATE_HASH_LABEL: template_hash_of(job.spec, of.defaults),
            **({STANDBY_LABEL: "true"} if standby else {}),
        },
        owner=owner_of(job),
        hostname=host_name(replica.role, replica.index, suffix),
        subdomain=job.metadata.name,
        termination_grace_seconds=grace.pod_seconds(job.spec, job.status),
        priority_class_name=job.spec.scheduling.priority_class_name,
        node_selector=dict(placement.node_selector),
        container=TRAINER_CONTAINER,
        image=image_of(job, image),
        supervised=job.spec.trainer.supervised,
        supervisor=_supervisor(job, of.images),
        inputs=fetcher_of(job, replica.role, image=fetcher_image(job, image)),
        command=command_of(job.spec.trainer),  # `$(NAME)` in a user's command is for the kubelet to expand
        environment=[
            *({"name": name, "value": _literal(value)} for name, value in environment_of(of, replica, standby=standby).items()),
            *_POD_IDENTITY,
            *([_NODE] if memory else ()),
            *([_MEMORY_REQUEST] if memory and memory.size_mib is None else ()),
        ],
        ports=[(name, addresses.port(replica.role, replica.index, name)) for name in replica.ports],
        resources=_resources(role, placement),
        resource_claims=[claim.wire() for claim in role.resource_claims or ()],
        state_path=STATE_PATH,
        claim_name=storage.persistent_volume_claim.claim_name if storage and storage.persistent_volume_claim else None,
        checkpoint_path=CLAIM_PATH,
        secret_name=storage.secret_ref.name if storage and storage.secret_ref else None,
        code_config_map=code.config_map.name if code else None,
        code_path=CODE_PATH,
        code_source_path=CODE_SOURCE_PATH,
        token_path=TOKEN_PATH if of.coordinator else None,
        objects=[
            (f"object-{extra.name}", extra.kind, object_name(job, extra.name), f"{OBJECTS_PATH}/{extra.name}")
            for extra in (strategy.objects(job.spec, of.plans.whole, addresses) if strategy.objects else ())
            if extra.is_for(replica.role)
        ],
    )


def _with_templates(pod: dict[str, Any], of: Rendering, role: RoleName) -> dict[str, Any]:
    """The pod with the templates of the `defaults` merged into it, and then the user's variables and template."""
    own = (of.job.spec.roles.get(role) or Role()).template
    env = [each.wire() for each in of.job.spec.trainer.env or ()]
    for_all_roles = {"spec": {"containers": [{"name": TRAINER_CONTAINER, "env": env}]}} if env else {}
    templates = [
        *((template, partial(_problem_below, each.problem, path)) for each in of.defaults for path, template in each.templates_of(role)),
        (for_all_roles, partial(_problem_below, Problem, "spec.trainer.env")),
        (own, partial(_problem_below, Problem, f"spec.roles.{role}.template")),
    ]
    rendered = pod
    for template, problem in templates:
        pod = _with_template(pod, template, problem, rendered=rendered, strategy=of.strategy)
    return pod


def _supervisor(job: TrainingJob, images: Images) -> dict[str, Any] | None:
    """The init container that copies the supervisor into the pod. None if the image has a supervisor, or the job runs without one."""
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
    """The pod with the trainer's resources, without devices, for its init containers too. So the pod needs no more resources, and its QoS
    class and quota stay the same."""
    containers = [each for each in pod["spec"].get("initContainers", ()) if each["name"] in _OUR_CONTAINERS and "resources" not in each]
    if not containers:
        return pod
    trainer = next(each for each in pod["spec"]["containers"] if each["name"] == TRAINER_CONTAINER)
    parts = {part: (trainer.get("resources") or {}).get(part) or {} for part in ("limits", "requests")}
    alike = {part: {name: amount for name, amount in amounts.items() if name in _NO_DEVICES} for part, amounts in parts.items()}
    for ours in containers if any(alike.values()) else ():
        ours["resources"] = {part: dict(amounts) for part, amounts in alike.items() if amounts}
    return pod


def _with_memory(pod: dict[str, Any], mib: int) -> dict[str, Any]:
    """The pod with more memory for its trainer, because the kernel counts the memory of snapshots to the container."""
    trainer = next(each for each in pod["spec"]["containers"] if each["name"] == TRAINER_CONTAINER)
    given = trainer.get("resources") or {}
    parts = {part: dict(given.get(part) or {}) for part in ("limits", "requests")}
    for amounts in parts.values():
        if "memory" in amounts:
            amounts["memory"] = with_more_mib(amounts["memory"], mib)
    if not any("memory" in amounts for amounts in parts.values()):
        parts["requests"]["memory"] = f"{mib}Mi"
    resources = {**given, **{part: amounts for part, amounts in parts.items() if amounts}}
    containers = [{**each, "resources": resources} if each is trainer else each for each in pod["spec"]["containers"]]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


def _avoiding(pod: dict[str, Any], nodes: list[str]) -> dict[str, Any]:
    """The pod with a preference for other nodes, added to those of its template. It is only a preference, because a job must not wait
    if all nodes are suspect."""
    if not nodes:
        return pod
    others = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in nodes]}
    return {**pod, "spec": preferring(pod["spec"], "nodeAffinity", {"weight": 100, "preference": others})}


def _excluding(pod: dict[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    """The pod with a rule against nodes that do not answer. It is more than a preference, because Kubernetes notices only after 40 s that a
    node is lost, and until then the node looks free. The rule is added to each alternative of its template."""
    pod = annotated(pod, EXCLUDED_NODES_ANNOTATION, nodes)
    if not nodes:
        return pod
    rule = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in nodes]
    return {**pod, "spec": requiring(pod["spec"], [{"matchFields": rule}])}


def _away(pod: dict[str, Any], job: TrainingJob, apart_from: Sequence[PodLabels]) -> dict[str, Any]:
    """The pod with a rule against the nodes of other pods of the job, which are about to go. Karpenter adds no node for a pod with a rule
    against the name of a node."""
    if not apart_from:
        return pod
    own = {JOB_UID_LABEL: uid_of(job)}
    others = [{**own, ROLE_LABEL: role, INDEX_LABEL: str(index), ATTEMPT_LABEL: str(attempt)} for role, index, attempt in apart_from]
    return {**pod, "spec": apart(pod["spec"], others)}


def _packed(pod: dict[str, Any], job: TrainingJob, label: str) -> dict[str, Any]:
    """The pod with a preference for nodes that have the same value of this label as the nodes of the job's other pods. A rule could prevent
    the start of the job, because a scheduler chooses the first pod's node before it has a place for all pods."""
    others = {"topologyKey": label, "labelSelector": {"matchLabels": {JOB_UID_LABEL: uid_of(job)}}}
    return {**pod, "spec": preferring(pod["spec"], "podAffinity", {"weight": 100, "podAffinityTerm": others})}


def _apart(pod: dict[str, Any], job: TrainingJob) -> dict[str, Any]:
    """The pod with a preference for a node without another pod of the job, so that the loss of a node does not take a spare with it."""
    others = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {JOB_UID_LABEL: uid_of(job)}}}
    return {**pod, "spec": preferring(pod["spec"], "podAntiAffinity", {"weight": 100, "podAffinityTerm": others})}


def _literal(text: str) -> str:
    """`text`, escaped so that Kubernetes does not expand `$(NAME)` in it."""
    return text.replace("$", "$$")


def _resources(role: Role, placement: Placement) -> dict[str, Any]:
    limits = {**{name: str(quantity) for name, quantity in role.resources.limits.items()}, **placement.limits}
    requests = {name: str(quantity) for name, quantity in role.resources.requests.items()}
    claims = [{"name": claim.name} for claim in role.resource_claims or ()]
    return {key: values for key, values in (("limits", limits), ("requests", requests), ("claims", claims)) if values}


def _problem_below(problem: Callable[[str, str], Problem], field: str, path: str, message: str) -> Problem:
    return problem(f"{field}.{path}" if path else field, message)


def _with_template(
    pod: dict[str, Any],
    template: Mapping[str, Any],
    problem: Callable[[str, str], Problem],
    *,
    rendered: Mapping[str, Any],
    strategy: Strategy,
) -> dict[str, Any]:
    """The pod with the template merged into it, and with the fields restored that identify this replica, as they were rendered."""
    if not template:
        return pod
    patch: dict[str, Any] = {part: template[part] for part in ("metadata", "spec") if template.get(part) is not None}
    try:
        merged = strategic_merge(pod, patch)
    except MergeError as error:
        raise InvalidJobError([problem(error.path, error.message)]) from None
    return _fixed(merged, rendered, problem, strategy=strategy)


def _fixed(merged: dict[str, Any], pod: Mapping[str, Any], problem: Callable[[str, str], Problem], *, strategy: Strategy) -> dict[str, Any]:
    spec, metadata = merged.get("spec", {}), merged.setdefault("metadata", {})
    trainers = [container for container in spec.get("containers", ()) if container["name"] == TRAINER_CONTAINER]
    if not trainers:
        message = f"takes the {TRAINER_CONTAINER} container away, and nothing would train; remove the $patch that does it"
        raise InvalidJobError([problem("", message)])
    metadata |= {key: pod["metadata"][key] for key in _FIXED_METADATA if key in pod["metadata"]}
    metadata["labels"] = {**metadata.get("labels", {}), **pod["metadata"]["labels"]}
    for kind in _CONTAINER_LISTS:
        if kind in spec:  # a preset may change a container of Muster's that the pods of this job do not have
            spec[kind] = [each for each in spec[kind] if each.get("image") is not None or each["name"] not in _OUR_CONTAINERS]
        for container in spec.get(kind, ()):
            if container.get("image") is None:
                raise InvalidJobError([problem(f"spec.{kind}", f"{container['name']} {_WITHOUT_IMAGE}")])
    spec |= {key: pod["spec"][key] for key in _FIXED_SPEC}
    # A template may lengthen the grace period. The program gets its own in any case, and must not be killed in it.
    spec[_GRACE] = max(pod["spec"][_GRACE], spec.get(_GRACE) or 0)
    [rendered] = pod["spec"]["containers"]
    reserved = [variable for variable in rendered["env"] if is_reserved_env(variable["name"], strategy)]
    others = [variable for variable in trainers[0].get("env", []) if not is_reserved_env(variable["name"], strategy)]
    trainers[0]["env"] = [*reserved, *others]
    return merged
