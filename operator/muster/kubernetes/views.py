"""From a pod, as JSON, to what the lifecycle core sees of it. Pure.

What a container wrote (its termination message) and what others wrote about it is escaped here, before the status, Events and logs get it.

Only the trainer container counts: side-cars may outlive it or never end. Sources: the Pod API reference, and "Pod Lifecycle" and
"Disruptions" of the Kubernetes documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from muster.api.constants import ATTEMPT_LABEL, FORM_LABEL, INDEX_LABEL, JOB_NAME_LABEL, ROLE_LABEL, STANDBY_LABEL, TRAINER_CONTAINER
from muster.api.reports import LastWords
from muster.api.spec import RoleName
from muster.api.text import printable
from muster.control.cluster import Child, Object, owner_of
from muster.lifecycle.observed import ClaimView, ReplicaPhase, ReplicaView

LONGEST_MESSAGE = 1024
_LINES_KEPT = 3
_MOST_DIGITS = 9
_EVERYDAY = frozenset({"ContainerCreating", "PodInitializing"})
"""What every container waits for once; naming it would only make the status flicker."""


def child_of(pod: Object) -> Child | None:
    """The pod as a child of its job; None where its labels make it no replica of one."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    role, index, attempt = labels.get(ROLE_LABEL), labels.get(INDEX_LABEL, ""), labels.get(ATTEMPT_LABEL, "")
    if role not in list(RoleName) or not _is_number(index) or not _is_number(attempt) or not labels.get(JOB_NAME_LABEL):
        return None
    return Child(
        key=f"{metadata['namespace']}/{labels[JOB_NAME_LABEL]}",
        owner=owner_of(pod),
        version=int(metadata["resourceVersion"]),
        view=_view(pod, role=RoleName(role), index=int(index), attempt=int(attempt)),
    )


def _is_number(label: str) -> bool:
    """Whether Muster may have written it: the API server would refuse a status with an attempt of sixty digits."""
    return label.isdecimal() and len(label) <= _MOST_DIGITS


def claim_of(claim: Object) -> ClaimView:
    """The access modes that it has, or asks for while it is not bound."""
    modes = (claim.get("status") or {}).get("accessModes") or claim["spec"].get("accessModes") or ()
    return ClaimView(tuple(modes))


def _view(pod: Object, *, role: RoleName, index: int, attempt: int) -> ReplicaView:
    metadata, status = pod["metadata"], pod.get("status") or {}
    state = _trainer_state(status)
    ended: Mapping[str, Any] = state.get("terminated") or {}
    disruption = _condition(status, "DisruptionTarget", holds="True")
    words = _last_words(ended.get("message"))
    phase = _phase(status, state)
    reason, message = _why(pod, status, state=state, phase=phase)
    return ReplicaView(
        name=metadata["name"],
        uid=metadata["uid"],
        role=role,
        index=index,
        attempt=attempt,
        phase=phase,
        created=_time(metadata["creationTimestamp"]),
        finished=_time(ended["finishedAt"]) if ended.get("finishedAt") else None,
        deleting=_asked(metadata),
        due=_time(metadata["deletionTimestamp"]) if metadata.get("deletionTimestamp") else None,
        exit_code=ended.get("exitCode"),
        last_words=words,
        disruption=disruption.get("reason") or "DisruptionTarget" if disruption else None,
        reason=printable(reason),
        message=printable(message or (disruption.get("message", "") if disruption else ""))[:LONGEST_MESSAGE],
        oom_killed=ended.get("reason") == "OOMKilled",
        lingers=_lingers(pod, status, state),
        empty=_is_empty(pod, status),
        standby=STANDBY_LABEL in (metadata.get("labels") or {}),
        form=(metadata.get("labels") or {}).get(FORM_LABEL, ""),
        node=(pod.get("spec") or {}).get("nodeName") or "",
    )


def _phase(status: Mapping[str, Any], state: Mapping[str, Any]) -> ReplicaPhase:
    """Of the trainer container; where it never ran, of the pod (an evicted pod may have no container states at all)."""
    if state.get("terminated"):
        return ReplicaPhase.SUCCEEDED if state["terminated"].get("exitCode") == 0 else ReplicaPhase.FAILED
    if status.get("phase") == "Failed":
        return ReplicaPhase.FAILED
    return ReplicaPhase.RUNNING if state.get("running") else ReplicaPhase.PENDING


def _lingers(pod: Object, status: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether a side-car among its containers outlives the trainer container. One among its init containers does not count: its kubelet
    ends it when all others have ended."""
    if not state.get("terminated") or status.get("phase") in ("Succeeded", "Failed"):
        return False
    containers = (pod.get("spec") or {}).get("containers") or ()
    return sum(bool(each.get("terminated")) for each in _states(status, "containerStatuses")) < len(containers)


def _is_empty(pod: Object, status: Mapping[str, Any]) -> bool:
    """Whether each of its containers has ended for good; a side-car among its init containers may run on."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    ended = [state for state in _states(status, "containerStatuses") if state.get("terminated")]
    others = (*_states(status, "initContainerStatuses"), *_states(status, "ephemeralContainerStatuses"))
    return len(ended) == len(containers) > 0 and not any(state.get("running") for state in others)


def _why(pod: Object, status: Mapping[str, Any], *, state: Mapping[str, Any], phase: ReplicaPhase) -> tuple[str, str]:
    """Reason and message: the pod's own (Evicted, NodeLost, Shutdown, ...), or what a pod that does not run yet waits for."""
    if phase is ReplicaPhase.PENDING:
        return _waits_for(pod, status, state)
    said = (state.get("terminated") or {}).get("message") or ""
    told = status.get("message") or (_end_of(said) if _last_words(said) is None else "") or _failed_init(status)
    return status.get("reason") or "", told.strip()


def _end_of(text: str) -> str:
    """The last lines of the end of a log, as one line: a command without a supervisor leaves that behind, and the error is there."""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-_LINES_KEPT:])


def _waits_for(pod: Object, status: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, str]:
    waiting = [state.get("waiting") or {}, *(each.get("waiting") or {} for each in _states(status, "initContainerStatuses"))]
    for each in waiting:
        if each.get("reason") and each["reason"] not in _EVERYDAY:
            return each["reason"], each.get("message", "")
    unscheduled = _condition(status, "PodScheduled", holds="False")
    if unscheduled:
        return unscheduled.get("reason", ""), unscheduled.get("message", "")
    return status.get("reason") or "", status.get("message") or ""


def _failed_init(status: Mapping[str, Any]) -> str:
    for each in status.get("initContainerStatuses") or ():
        ended = (each.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return f"init container {each.get('name')} ended with {ended['exitCode']}: {ended.get('message') or ended.get('reason', '')}"
    return ""


def _trainer_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    named = (each for each in status.get("containerStatuses") or () if each.get("name") == TRAINER_CONTAINER)
    state: Mapping[str, Any] = next((each.get("state") or {} for each in named), {})
    return state


def _states(status: Mapping[str, Any], field: str) -> Iterable[Mapping[str, Any]]:
    return (each.get("state") or {} for each in status.get(field) or ())


def _condition(status: Mapping[str, Any], kind: str, *, holds: str) -> Mapping[str, Any] | None:
    conditions = status.get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind and each.get("status") == holds), None)


def _last_words(message: str | None) -> LastWords | None:
    """The supervisor's line of JSON; None where the container said nothing, or something of its own."""
    try:
        return LastWords.model_validate_json(message) if message else None
    except ValidationError:
        return None


def _asked(metadata: Mapping[str, Any]) -> datetime | None:
    """When the deletion was asked for: deletionTimestamp is when it is due."""
    due = metadata.get("deletionTimestamp")
    if not due:
        return None
    try:
        return _time(due) - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    except OverflowError:  # users choose the grace period, up to 2**63 seconds, and the API server's own sum overflows
        return _time(metadata["creationTimestamp"])


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
