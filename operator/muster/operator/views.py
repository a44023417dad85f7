"""Converts a pod, as JSON, to the view that the lifecycle core uses. Pure.

Text from containers (termination messages) and about them is escaped here, before it reaches the status, Events and logs.

Only the trainer container counts, because side-cars may outlive it or never end. Sources: the Pod API reference, and "Pod Lifecycle" and
"Disruptions" of the Kubernetes documentation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from muster.api.capacity import MAX_CLASSES
from muster.api.constants import (
    ATTEMPT_LABEL,
    CAPACITY_CLASSES_ANNOTATION,
    EXCLUDED_NODES_ANNOTATION,
    INDEX_LABEL,
    JOB_NAME_LABEL,
    ROLE_LABEL,
    STANDBY_LABEL,
    SUPERVISOR_CONTAINER,
    TRAINER_CONTAINER,
)
from muster.api.spec import ROLE_NAME, RoleName
from muster.api.status import Reason
from muster.api.times import parse_time
from muster.control.cluster import Child
from muster.explain.brief import brief, is_only_of_gang
from muster.explain.evidence import Source
from muster.kubernetes.objects import Object, owner_of
from muster.lifecycle.facts.devices import DEVICE_TAINT
from muster.lifecycle.observed import CLAIM, POD, ClaimView, ReplicaPhase, ReplicaView
from muster.render.pods import MOST_EXCLUDED
from muster.render.template_hash import template_hash_in
from muster.strategies.accelerators import ACCELERATORS, whole
from muster.strategies.base import host_name
from muster_contract.inputs import FETCHER
from muster_contract.reports import MAX_TERMINATION_MESSAGE, TerminationMessage
from muster_contract.text import printable
from muster_contract.wire import WireError, parse

LONGEST_MESSAGE = 1024
_LONGEST_REASON = 128
_LONGEST_EXCLUDED = MOST_EXCLUDED * 254
"""Characters of so many names of nodes, which have at most 253."""
_LONGEST_CLASSES = MAX_CLASSES * 64
"""Characters of all classes that a pod may use."""
_LAST_LINES = 3
_DEVICES_NAMED = 4
_LONGEST_DEVICE = 200
_CLAIM_PREFIX = "claim:"
"""The resource name of a device from a ResourceClaim begins with this. Its identifier is then driver/pool/device."""
_MOST_DIGITS = 9
_EVERYDAY = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons that every waiting container has once. If Muster showed them, the status would flicker."""


def child_of(pod: Object) -> Child | None:
    """The pod as a child of its job. None if its labels are not those of a replica."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    role, index, attempt = labels.get(ROLE_LABEL), labels.get(INDEX_LABEL, ""), labels.get(ATTEMPT_LABEL, "")
    numbered = _is_number(index) and _is_number(attempt)
    if role is None or not re.fullmatch(ROLE_NAME, role) or not numbered or not labels.get(JOB_NAME_LABEL):
        return None
    return Child(
        key=f"{metadata['namespace']}/{labels[JOB_NAME_LABEL]}",
        owner=owner_of(pod),
        version=int(metadata["resourceVersion"]),
        view=_view(pod, role=role, index=int(index), attempt=int(attempt)),
    )


def _is_number(label: str) -> bool:
    """Whether Muster may have written this label. The API server would refuse a status with an attempt of sixty digits."""
    return label.isdecimal() and len(label) <= _MOST_DIGITS


def claim_of(claim: Object) -> ClaimView:
    """The access modes of a claim, or the requested ones while it is not bound."""
    modes = (claim.get("status") or {}).get("accessModes") or claim["spec"].get("accessModes") or ()
    return ClaimView(tuple(modes))


def _view(pod: Object, *, role: RoleName, index: int, attempt: int) -> ReplicaView:
    metadata, status = pod["metadata"], pod.get("status") or {}
    state = _trainer_state(status)
    failed_fetch = _failed_fetch(status)
    ended: Mapping[str, Any] = state.get("terminated") or failed_fetch
    disruption = _condition(status, "DisruptionTarget", holds="True")
    termination = _termination_message(ended.get("message"))
    phase = _phase(status, state)
    reason, message = _reason_and_message(status, state=state, phase=phase)
    node = (pod.get("spec") or {}).get("nodeName") or ""
    return ReplicaView(
        name=metadata["name"],
        suffix=_suffix(pod, role=role, index=index),
        uid=metadata["uid"],
        role=role,
        index=index,
        attempt=attempt,
        phase=phase,
        created=parse_time(metadata["creationTimestamp"]),
        finished=parse_time(ended["finishedAt"]) if ended.get("finishedAt") else None,
        deleting=_deletion_time(metadata),
        released=_release_time(pod, status),
        devices=_devices_held(pod.get("spec") or {}),
        due=parse_time(metadata["deletionTimestamp"]) if metadata.get("deletionTimestamp") else None,
        exit_code=ended.get("exitCode"),
        termination=termination,
        fetch_failed=bool(failed_fetch),
        disruption=printable(disruption.get("reason") or "DisruptionTarget", most=_LONGEST_REASON) if disruption else None,
        reason=printable(reason, most=_LONGEST_REASON),
        message=printable(message or (_of_disruption(status, disruption) if disruption else ""), most=LONGEST_MESSAGE),
        waits_for=_cause_of_wait(reason, message, has_node=bool(node)) if phase is ReplicaPhase.PENDING else "",
        waits_for_gang=phase is ReplicaPhase.PENDING and not node and is_only_of_gang(reason, message),
        oom_killed=ended.get("reason") == "OOMKilled",
        unhealthy_devices=_unhealthy_devices(status),
        side_car_runs=_side_car_runs(pod, status, state),
        closing=_is_closing(pod, status),
        empty=_is_empty(pod, status),
        standby=STANDBY_LABEL in (metadata.get("labels") or {}),
        template_hash=template_hash_in(metadata),
        node=node,
        placed=_placement_time(status) if node else None,
        unschedulable=not node and _is_unschedulable(status),
        excluded_nodes=_excluded_nodes(metadata.get("annotations") or {}),
        capacity_classes=_capacity_classes(metadata.get("annotations") or {}),
    )


def _excluded_nodes(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes to which the pod may not go. The text is cut, because 250 KB of short names would take 5 MB in the cache of pods."""
    text = annotations.get(EXCLUDED_NODES_ANNOTATION, "")[:_LONGEST_EXCLUDED]
    return tuple(filter(None, text.split(",", MOST_EXCLUDED)[:MOST_EXCLUDED]))


def _capacity_classes(annotations: Mapping[str, str]) -> tuple[str, ...]:
    text = annotations.get(CAPACITY_CLASSES_ANNOTATION, "")[:_LONGEST_CLASSES]
    return tuple(filter(None, text.split(",")))


def _suffix(pod: Object, *, role: RoleName, index: int) -> int | None:
    """The number at the end of its host name, if it is not the first pod of its replica."""
    number = str((pod.get("spec") or {}).get("hostname") or "").removeprefix(f"{host_name(role, index)}-")
    return int(number) if _is_number(number) else None


def _phase(status: Mapping[str, Any], state: Mapping[str, Any]) -> ReplicaPhase:
    """The phase of the trainer container, or of the pod if the container never ran. An evicted pod may have no container states."""
    if state.get("terminated"):
        return ReplicaPhase.SUCCEEDED if state["terminated"].get("exitCode") == 0 else ReplicaPhase.FAILED
    if status.get("phase") == "Failed":
        return ReplicaPhase.FAILED
    return ReplicaPhase.RUNNING if state.get("running") else ReplicaPhase.PENDING


def _release_time(pod: Object, status: Mapping[str, Any]) -> datetime | None:
    """When the last container ended, if all have ended. The kubelet may end a pod without any state of its containers. Then the newest
    condition has the time."""
    if status.get("phase") not in ("Succeeded", "Failed") and not _is_empty(pod, status):
        return None
    fields = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    ended = [(state.get("terminated") or {}).get("finishedAt") for field in fields for state in _states(status, field)]
    changed = [each.get("lastTransitionTime") for each in status.get("conditions") or ()]
    times = list(filter(None, ended)) or list(filter(None, changed))
    return max(map(parse_time, times), default=None) or parse_time(pod["metadata"]["creationTimestamp"])


def _devices_held(spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """The accelerators of the pod by resource name, and its claims. Init containers run before the others, unless they are side-cars. A
    pod with neither counts as one device."""
    together: Counter[str] = Counter()
    before: Counter[str] = Counter()
    for each in spec.get("containers") or ():
        together += _accelerators(each)
    for each in spec.get("initContainers") or ():
        if each.get("restartPolicy") == "Always":
            together += _accelerators(each)
        else:
            before |= _accelerators(each)
    found = together | before
    found[CLAIM] = len(spec.get("resourceClaims") or ())
    return tuple(sorted((+found).items())) or ((POD, 1),)


def _accelerators(container: Mapping[str, Any]) -> Counter[str]:
    limits = (container.get("resources") or {}).get("limits") or {}
    return Counter({name: whole(limits[name]) or 0 for name in ACCELERATORS if name in limits})


def _unhealthy_devices(status: Mapping[str, Any]) -> tuple[str, ...]:
    """The first devices that the kubelet reports as unhealthy (KEP-4680). `Unknown` means that its plugin does not answer, so it is not
    counted."""
    devices = []
    for resource, each in _devices(status):
        if each.get("health") == "Unhealthy":
            cause = f" ({each['message']})" if each.get("message") else ""
            devices.append(printable(f"{resource} {each.get('resourceID', '')}{cause}", most=_LONGEST_DEVICE))
        if len(devices) == _DEVICES_NAMED:
            break
    return tuple(devices)


def _devices(status: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The devices of the trainer container, each with the name of its resource."""
    named = (each for each in status.get("containerStatuses") or () if each.get("name") == TRAINER_CONTAINER)
    for resource in next((each.get("allocatedResourcesStatus") or () for each in named), ()):
        yield from ((str(resource.get("name", "")), each) for each in resource.get("resources") or ())


def _of_disruption(status: Mapping[str, Any], disruption: Mapping[str, Any]) -> str:
    """The message of the condition. A device taint does not name its device there. So the devices come from the pod's
    status: the unhealthy ones, or all devices from claims, or else the claims."""
    message = str(disruption.get("message") or "")
    if disruption.get("reason") != DEVICE_TAINT:
        return message
    claimed = [str(each.get("resourceID")) for resource, each in _devices(status) if resource.startswith(_CLAIM_PREFIX)]
    claims = [f"claim {each['resourceClaimName']}" for each in status.get("resourceClaimStatuses") or () if each.get("resourceClaimName")]
    devices = (list(_unhealthy_devices(status)) or claimed or claims)[:_DEVICES_NAMED]
    among = "" if len(devices) < 2 else "one of "
    return f"{message} ({among}{', '.join(each[:_LONGEST_DEVICE] for each in devices)})" if devices else message


def _side_car_runs(pod: Object, status: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether a side-car among the containers outlives the trainer container. Side-cars among the init containers do not count, because the
    kubelet ends them when all others have ended (`_is_closing`)."""
    if not state.get("terminated") or status.get("phase") in ("Succeeded", "Failed"):
        return False
    containers = (pod.get("spec") or {}).get("containers") or ()
    return sum(bool(each.get("terminated")) for each in _states(status, "containerStatuses")) < len(containers)


def _is_closing(pod: Object, status: Mapping[str, Any]) -> bool:
    """Whether all containers have ended, and side-cars among the init containers still run."""
    return _have_all_ended(pod, status) and any(state.get("running") for state in _states(status, "initContainerStatuses"))


def _is_empty(pod: Object, status: Mapping[str, Any]) -> bool:
    """Whether nothing of the pod runs."""
    others = (*_states(status, "initContainerStatuses"), *_states(status, "ephemeralContainerStatuses"))
    return _have_all_ended(pod, status) and not any(state.get("running") for state in others)


def _have_all_ended(pod: Object, status: Mapping[str, Any]) -> bool:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return sum(bool(state.get("terminated")) for state in _states(status, "containerStatuses")) == len(containers) > 0


def _reason_and_message(status: Mapping[str, Any], *, state: Mapping[str, Any], phase: ReplicaPhase) -> tuple[str, str]:
    """The reason and message of the pod (Evicted, NodeLost, Shutdown, ...). For a pending pod, why it waits."""
    if phase is ReplicaPhase.PENDING:
        return _waits_for(status, state)
    termination = (state.get("terminated") or {}).get("message") or ""
    reason, message = (
        status.get("reason") or "",
        status.get("message") or (_end_of(termination) if _termination_message(termination) is None else ""),
    )
    init = _failed_init(status)
    if init and not reason and not state.get("terminated"):
        return init[0], (message or init[1]).strip()
    return reason, message.strip()


def _end_of(text: str) -> str:
    """The last lines of a log as one line. A command without a supervisor leaves the end of its log, which usually has the error."""
    return " | ".join([line.strip() for line in text[-MAX_TERMINATION_MESSAGE:].splitlines() if line.strip()][-_LAST_LINES:])


def _waits_for(status: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, str]:
    waiting = [state.get("waiting") or {}, *(each.get("waiting") or {} for each in _states(status, "initContainerStatuses"))]
    for each in waiting:
        if each.get("reason") and each["reason"] not in _EVERYDAY:
            return each["reason"], each.get("message", "")
    unscheduled = _condition(status, "PodScheduled", holds="False")
    if unscheduled:
        return unscheduled.get("reason", ""), unscheduled.get("message", "")
    return status.get("reason") or "", status.get("message") or ""


def _placement_time(status: Mapping[str, Any]) -> datetime | None:
    """When the API server bound the pod."""
    time = (_condition(status, "PodScheduled", holds="True") or {}).get("lastTransitionTime")
    return parse_time(time) if time else None


def _is_unschedulable(status: Mapping[str, Any]) -> bool:
    """Whether the scheduler found no node for the pod. A nominated node means that it has found one since, or makes room there."""
    unscheduled = _condition(status, "PodScheduled", holds="False") or {}
    return unscheduled.get("reason") == "Unschedulable" and not status.get("nominatedNodeName")


def _cause_of_wait(reason: str, message: str, *, has_node: bool) -> str:
    """Reason and cause, such as `Unschedulable: not enough nvidia.com/gpu is free`. Empty if the table of causes has none. A failed pull
    alternates with its back-off, so both have one reason here."""
    cause = brief(Source.STARTING if has_node else Source.SCHEDULING, reason, message) if reason else ""
    shown = "ImagePullBackOff" if reason == "ErrImagePull" else reason
    return printable(f"{shown}: {cause}") if cause else ""


def _failed_init(status: Mapping[str, Any]) -> tuple[Reason, str] | None:
    """Which init container failed, and how it ended."""
    for each in status.get("initContainerStatuses") or ():
        ended = (each.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            reason = Reason.SUPERVISOR_NOT_COPIED if each.get("name") == SUPERVISOR_CONTAINER else Reason.INIT_CONTAINER_FAILED
            return reason, f"container {each.get('name')} ended with {ended['exitCode']}: {ended.get('message') or ended.get('reason', '')}"
    return None


def _failed_fetch(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the fetcher of the inputs ended, if that has failed the pod. Else an empty mapping."""
    if status.get("phase") != "Failed":
        return {}
    named = (each for each in status.get("initContainerStatuses") or () if each.get("name") == FETCHER)
    ended: Mapping[str, Any] = next(((each.get("state") or {}).get("terminated") or {} for each in named), {})
    return ended if ended.get("exitCode") else {}


def _trainer_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    named = (each for each in status.get("containerStatuses") or () if each.get("name") == TRAINER_CONTAINER)
    state: Mapping[str, Any] = next((each.get("state") or {} for each in named), {})
    return state


def _states(status: Mapping[str, Any], field: str) -> Iterable[Mapping[str, Any]]:
    return (each.get("state") or {} for each in status.get(field) or ())


def _condition(status: Mapping[str, Any], kind: str, *, holds: str) -> Mapping[str, Any] | None:
    conditions = status.get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind and each.get("status") == holds), None)


def _termination_message(message: str | None) -> TerminationMessage | None:
    """The termination message, if the supervisor wrote it."""
    try:
        return parse(TerminationMessage, message) if message and len(message) <= MAX_TERMINATION_MESSAGE else None
    except WireError:
        return None


def _deletion_time(metadata: Mapping[str, Any]) -> datetime | None:
    """The time of the request to delete the pod. deletionTimestamp is that time plus the grace period."""
    due, created = metadata.get("deletionTimestamp"), parse_time(metadata["creationTimestamp"])
    if not due:
        return None
    try:
        return max(created, parse_time(due) - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0))
    except OverflowError:  # users may set a grace period of up to 2**63 seconds
        return created
