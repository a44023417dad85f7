"""Turns a snapshot into evidence: each text that may explain why a job does not run, with its source. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from muster.api.constants import INDEX_LABEL, ROLE_LABEL, SUPERVISOR_CONTAINER, TRAINER_CONTAINER
from muster.api.status import FINAL_PHASES, Reason
from muster.api.times import parse_time
from muster.api.unchecked import mappings
from muster.explain.nodes import with_named_taints
from muster.explain.snapshot import Object, Snapshot
from muster_contract.inputs import FETCHER

_ENDS_OF_PROCESSES = ("ProcessKilled", "UserError")
_MOST_REASONS = 16
"""Warnings of this many reasons are read about one pod, because everyone who may create Events can make up reasons."""
_EVERYDAY = ("ContainerCreating", "PodInitializing", "Completed")


class Source(StrEnum):
    """The source of a text."""

    REFUSED = "refused"
    """The answer of the API server when it refuses to create a pod."""
    SCHEDULING = "scheduling"
    """The condition PodScheduled of a pod that has no node, and events of the scheduler."""
    STARTING = "starting"
    """Why a container waits, and events of the kubelet about a pod that does not run."""
    CONTAINER = "container"
    """How a container ended, or a pod."""
    CLAIM = "claim"
    """Events about a PersistentVolumeClaim."""
    ATTEMPT = "attempt"
    """How an attempt ended."""
    END = "end"
    """How the job ended."""
    CONDITION = "condition"
    """A condition of the job that shows a problem."""
    NOTICE = "notice"
    """A notice of the trainer."""
    STATE = "state"
    """The state of the job and of the objects around it (see `states`)."""


_AWAITED = {"Creation": Source.REFUSED, "Node": Source.SCHEDULING, "Container": Source.STARTING}
"""The source of a text in `status.awaited`."""


@dataclass(frozen=True)
class Evidence:
    """A text with its source."""

    source: Source
    reason: str
    """The reason in one word, such as ImagePullBackOff or OutOfMemory."""
    message: str
    subject: str = ""
    """The subject of the text, such as worker-1."""
    is_past: bool = False
    """Whether the job has gone on since this event."""
    end: str | int | None = None
    """The signal or exit code with which a process ended, if the reason does not explain more."""
    logs: str = ""
    """The command that shows the log of the subject. Empty for that of the whole job."""

    @property
    def text(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


def evidence_in(snapshot: Snapshot) -> list[Evidence]:
    """All evidence, the newest attempt first."""
    return [
        *_refused(snapshot.job),
        *_of_pods(snapshot),
        *_of_claims(snapshot),
        *_of_attempts(snapshot.job),
        *_of_end(snapshot.job),
        *_of_conditions(snapshot),
        *_of_notices(snapshot.job),
    ]


def status_of(job: Object) -> dict[str, Any]:
    return job.get("status") or {}


def phase_of(job: Object) -> str:
    return str(status_of(job).get("phase") or "Pending")


def condition_of(job: Object, kind: str) -> Mapping[str, Any]:
    """The condition of this type, or an empty one. It may be of another object with conditions too, such as a Workload."""
    return next((each for _, each in mappings(status_of(job).get("conditions")) if each.get("type") == kind), {})


def label_of(pod: Object) -> str:
    """Role and index, such as worker-1."""
    labels = pod["metadata"].get("labels") or {}
    role, index = labels.get(ROLE_LABEL), labels.get(INDEX_LABEL)
    return f"{role}-{index}" if role and index else str(pod["metadata"]["name"])


def is_running(pod: Object) -> bool:
    """Whether the trainer container runs."""
    return "running" in _trainer_state(pod)


def is_pending(pod: Object) -> bool:
    """Whether the trainer container has not started yet."""
    state = _trainer_state(pod)
    has_not_begun = (pod.get("status") or {}).get("phase") in (None, "Pending") and not state
    return has_not_begun or "waiting" in state


def time_of(text: str | None) -> datetime | None:
    """A time of the API server. None if it is absent or not valid."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def _refused(job: Object) -> Iterator[Evidence]:
    ready = condition_of(job, "Ready")
    if ready.get("reason") == "ReplicasRefused":
        yield Evidence(Source.REFUSED, "ReplicasRefused", str(ready.get("message") or ""))


def events_by_uid(snapshot: Snapshot) -> dict[str, list[Object]]:
    """The events about each object, by its uid."""
    events: dict[str, list[Object]] = defaultdict(list)
    for event in snapshot.events:
        events[str((event.get("involvedObject") or {}).get("uid"))].append(event)
    return events


def _of_pods(snapshot: Snapshot) -> Iterator[Evidence]:
    events = events_by_uid(snapshot)
    for pod in snapshot.pods:
        if phase_of(snapshot.job) in FINAL_PHASES and is_running(pod):
            continue
        if is_pending(pod):
            yield from _of_pending(pod, snapshot)
            yield from _of_events(events.get(str(pod["metadata"].get("uid")), ()), pod)
        else:
            yield from _of_ended(pod)


def _of_pending(pod: Object, snapshot: Snapshot) -> Iterator[Evidence]:
    label, status = label_of(pod), pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = with_named_taints(str(condition.get("message") or ""), pod, snapshot.nodes)
            yield Evidence(Source.SCHEDULING, str(condition.get("reason") or ""), message, label)
    for container in _containers(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _EVERYDAY:
            last = ((container.get("lastState") or {}).get("terminated") or {}).get("message") or ""
            message = f"{waiting.get('message') or ''} {last}".strip()
            yield Evidence(Source.STARTING, waiting["reason"], message, label, logs=_log_of(pod, container))
    for container in status.get("initContainerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode") and container.get("name") != FETCHER:  # the record of the attempt has its error
            yield Evidence(Source.STARTING, _init_failure(container), _exit(container, ended), label, logs=_log_of(pod, container))


def _log_of(pod: Object, container: dict[str, Any]) -> str:
    return f"kubectl logs {pod['metadata']['name']} -c {container.get('name')}"


def _init_failure(container: dict[str, Any]) -> Reason:
    return Reason.SUPERVISOR_NOT_COPIED if container.get("name") == SUPERVISOR_CONTAINER else Reason.INIT_CONTAINER_FAILED


def _of_events(events: Iterable[Object], pod: Object) -> Iterator[Evidence]:
    """The newest warning of each reason among the events about the pod."""
    shown = {"FailedScheduling"} if _is_scheduling_over(pod) else set()
    for event in sorted(events, key=_event_time, reverse=True):
        reason = str(event.get("reason") or "")
        if event.get("type") == "Warning" and reason not in shown and len(shown) < _MOST_REASONS:
            shown.add(reason)
            source = Source.SCHEDULING if reason == "FailedScheduling" else Source.STARTING
            yield Evidence(source, reason, str(event.get("message") or ""), label_of(pod))


def _is_scheduling_over(pod: Object) -> bool:
    """Whether events of the scheduler are out of date, because the pod has a node, or because its condition has the newest message."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return bool(pod["spec"].get("nodeName")) or any(each.get("type") == "PodScheduled" for each in conditions)


def _of_ended(pod: Object) -> Iterator[Evidence]:
    label, status = label_of(pod), pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason"):
        yield Evidence(Source.CONTAINER, str(status["reason"]), str(status.get("message") or ""), label)
    for container in _containers(status):
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode") and container.get("name") not in (TRAINER_CONTAINER, FETCHER):
            reason = str(ended.get("reason") or "Error")
            yield Evidence(Source.CONTAINER, reason, _exit(container, ended), label, logs=_log_of(pod, container))


def _of_claims(snapshot: Snapshot) -> Iterator[Evidence]:
    names = claims_of(snapshot)
    for event in sorted(snapshot.events, key=_event_time, reverse=True):
        about = event.get("involvedObject") or {}
        waits = any(name == about.get("name") for name in names) and event.get("reason") != "WaitForFirstConsumer"
        if about.get("kind") == "PersistentVolumeClaim" and waits and not _is_bound(snapshot, str(about.get("name"))):
            yield Evidence(Source.CLAIM, str(event.get("reason") or ""), str(event.get("message") or ""), str(about.get("name")))


def claims_of(snapshot: Snapshot) -> list[str]:
    """Names of the claims that the job's pods mount."""
    volumes = [volume for pod in snapshot.pods for volume in (pod.get("spec") or {}).get("volumes") or ()]
    names = [(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes]
    storage = ((snapshot.job["spec"].get("checkpoint") or {}).get("storage") or {}).get("persistentVolumeClaim") or {}
    return list(dict.fromkeys(str(name) for name in (*names, storage.get("claimName")) if name))


def claim_named(snapshot: Snapshot, name: str) -> Object | None:
    return next((claim for claim in snapshot.claims or () if claim["metadata"]["name"] == name), None)


def _is_bound(snapshot: Snapshot, name: str) -> bool:
    claim = claim_named(snapshot, name)
    return claim is not None and (claim.get("status") or {}).get("phase") == "Bound"


def _of_attempts(job: Object) -> Iterator[Evidence]:
    """How attempts ended, newest first. The newest end counts as past only if a later attempt runs."""
    status = status_of(job)
    newest = True
    for record in reversed(status.get("attempts") or ()):
        if record.get("class"):
            is_past = not newest or phase_of(job) in ("Running", "Succeeded", "Suspended")
            newest = False
            reason, message = str(record.get("reason") or ""), str(record.get("message") or "")
            end = record.get("signal") or record.get("exitCode") if reason in _ENDS_OF_PROCESSES else None
            logs = f"muster logs {job['metadata'].get('name')} --attempt {record['attempt']}"
            yield Evidence(Source.ATTEMPT, reason, message, _where(record), is_past, end, logs)


def _where(record: dict[str, Any]) -> str:
    replica, node = record.get("replica"), record.get("node")
    subject = f"attempt {record['attempt']}" + (f", {replica}" if replica else "")
    return f"{subject} on {node}" if node else subject


def _of_end(job: Object) -> Iterator[Evidence]:
    failed = condition_of(job, "Failed")
    if failed.get("status") != "True":
        return
    reason, message = str(failed.get("reason") or ""), str(failed.get("message") or "")
    awaited = status_of(job).get("awaited") or ()
    for each in awaited:
        source = _AWAITED.get(str(each.get("kind")), Source.STARTING)
        yield Evidence(source, str(each.get("reason") or ""), str(each.get("message") or ""), str(each.get("replica") or ""))
    if awaited and reason == Reason.STARTUP_DEADLINE:
        message = _late_start(job, awaited)  # what the pods waited for is evidence of its own
    yield Evidence(Source.END, reason, _without_last_error(job, message))


def _late_start(job: Object, awaited: Iterable[dict[str, Any]]) -> str:
    seconds = job["spec"].get("startupDeadlineSeconds")
    names = ", ".join(str(each["replica"]) for each in awaited if each.get("replica"))
    return f"the job did not start{f' within {seconds} s' if seconds else ' in time'}{f': it waited for {names}' if names else ''}"


def _without_last_error(job: Object, message: str) -> str:
    """The message without the error of the last attempt, which is evidence of its own."""
    last: dict[str, Any] = next((each for each in reversed(status_of(job).get("attempts") or ()) if each.get("class")), {})
    error = ": ".join(str(last[name]) for name in ("replica", "message") if last.get(name))
    return message.removesuffix(error).rstrip(":;. ") if error and message != error else message


def _of_conditions(snapshot: Snapshot) -> Iterator[Evidence]:
    problems = {"Valid": "False", "ResumeRegression": "True", "StorageShared": "False", "Straggling": "True", "GraceSufficient": "False"}
    problems |= {"SpreadOverNodes": "False", "CapacityPreferred": "False"} if phase_of(snapshot.job) not in FINAL_PHASES else {}
    claims_exist = snapshot.claims is not None and all(claim_named(snapshot, name) for name in claims_of(snapshot))
    for condition in status_of(snapshot.job).get("conditions") or ():
        is_outdated = condition.get("reason") == "ClaimNotFound" and claims_exist
        if problems.get(condition.get("type")) == condition.get("status") and not is_outdated:
            yield Evidence(Source.CONDITION, str(condition.get("reason") or ""), str(condition.get("message") or ""))


def _of_notices(job: Object) -> Iterator[Evidence]:
    for notice in status_of(job).get("notices") or ():
        if isinstance(notice, dict):
            yield Evidence(Source.NOTICE, str(notice.get("reason") or ""), str(notice.get("message") or ""))


def _trainer_state(pod: Object) -> dict[str, Any]:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each.get("state") or {} for each in containers if each.get("name") == TRAINER_CONTAINER), {})


def _containers(status: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for field in ("containerStatuses", "initContainerStatuses"):
        yield from status.get(field) or ()


def _exit(container: dict[str, Any], ended: dict[str, Any]) -> str:
    return f"container {container.get('name')} ended with {ended['exitCode']}: {ended.get('message') or ended.get('reason') or ''}"


def _event_time(event: Object) -> str:
    times = (event.get("lastTimestamp"), (event.get("series") or {}).get("lastObservedTime"), event.get("eventTime"))
    return next((str(time) for time in times if time), "")
