"""The changes between two statuses of a job as Kubernetes Events, for `kubectl describe`. Pure.

The name of an Event follows from its content, so that the same change makes one Event even if it is sent twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from muster.api.constants import API_VERSION, CONTROLLER, KIND
from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, ConditionType, Phase, Reason, TrainingJobStatus
from muster.api.times import format_time
from muster.control.cluster import Unreadable
from muster.kubernetes.objects import Object
from muster.lifecycle.changes import AttemptChange, attempt_changes, changed_condition, new_notices
from muster.lifecycle.present.message import after_failure, failure_sentence
from muster.lifecycle.recording.phases import recovery_sentence
from muster_contract.checkpoint_layout import parse_checkpoint_name

_LONGEST = 1000  # of the 1,024 bytes that the API server takes


@dataclass(frozen=True)
class JobEvent:
    """An Event to send. `mark` distinguishes it from others with the same reason in the life of one job."""

    reason: str
    message: str
    mark: str = ""
    warning: bool = False


_CONDITIONS = (
    (ConditionType.RESUME_REGRESSION, True, "ResumeRegression"),
    (ConditionType.STRAGGLING, True, "Straggling"),
    (ConditionType.STORAGE_SHARED, False, "StorageNotShared"),
    (ConditionType.GRACE_SUFFICIENT, False, "GraceTooShort"),
    (ConditionType.SPREAD_OVER_NODES, False, "WorldOnOneNode"),
    (ConditionType.NODES_STAY, False, "NodeNotice"),
    (ConditionType.STALLED, True, "Stalled"),
)
"""Conditions that get a warning: the value that needs one, and the reason of the Event."""


def events_between(old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[JobEvent]:
    """Events for everything that is in the new status and not in the old one."""
    yield from _validity(old, new)
    for change in attempt_changes(old, new):
        yield from _attempt(change, new)
    yield from _world(old, new)
    for notice in new_notices(old, new):
        yield JobEvent(notice.reason, notice.message, mark=notice.message, warning=notice.reason.is_warning)
    for kind, holds, reason in _CONDITIONS:
        condition = changed_condition(old, new, kind, holds=holds)
        if condition:
            yield JobEvent(reason, condition.message, mark=condition.message, warning=True)
    avoided = {node.name for node in old.avoided_nodes}
    for node in (node for node in new.avoided_nodes if node.name not in avoided):
        message = f"{_attempts(node.deaths)} failed on node {node.name}, so new pods avoid it until {node.until:%H:%M:%S} UTC"
        yield JobEvent("NodeAvoided", message, mark=f"{node.name} {node.until}", warning=True)
    before, ready = old.condition(ConditionType.READY), new.condition(ConditionType.READY)
    if ready and ready.reason is Reason.REPLICAS_REFUSED and (before is None or before.reason is not Reason.REPLICAS_REFUSED):
        yield JobEvent("ReplicasRefused", ready.message, mark=str(new.attempt), warning=True)
    yield from _phases(old, new)


def _attempts(count: int) -> str:
    return "an attempt" if count == 1 else f"{count} attempts"


def event_of(job: TrainingJob, event: JobEvent, now: datetime) -> Object:
    """The Event's manifest."""
    metadata = job.metadata
    subject = {"apiVersion": API_VERSION, "kind": KIND, "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
    return _event(subject, event, now)


def event_of_unreadable(unreadable: Unreadable, now: datetime) -> Object:
    """The manifest of an Event on an object that cannot be read."""
    version = {"TrainingJob": API_VERSION, "NetworkPolicy": "networking.k8s.io/v1"}.get(unreadable.kind, "v1")
    message = f"Muster cannot read this {unreadable.kind} and ignores it: {unreadable.reason}. Correct it, or delete it."
    subject = {
        "apiVersion": version,
        "kind": unreadable.kind,
        "namespace": unreadable.namespace,
        "name": unreadable.name,
        "uid": unreadable.uid,
    }
    return _event(subject, JobEvent("Unreadable", message, mark=unreadable.reason, warning=True), now)


def _event(subject: Object, event: JobEvent, now: datetime) -> Object:
    identity = f"{subject['uid']} {event.reason} {event.mark}"
    time = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{subject['name']}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}",
            "namespace": subject["namespace"],
        },
        "involvedObject": subject,
        "reason": event.reason,
        "message": event.message[:_LONGEST].encode()[:_LONGEST].decode(errors="ignore"),
        "type": "Warning" if event.warning else "Normal",
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": "muster"},
        "reportingComponent": CONTROLLER,
        "reportingInstance": "muster",
    }


def _validity(old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[JobEvent]:
    before, after = old.condition(ConditionType.VALID), new.condition(ConditionType.VALID)
    if after is None or (before is not None and (before.status, before.message) == (after.status, after.message)):
        return
    if after.status == "False":
        yield JobEvent("Invalid", after.message, mark=after.message, warning=True)
    elif before is not None:
        yield JobEvent("Valid", "the job is valid now", mark=str(after.observed_generation))


def _attempt(change: AttemptChange, status: TrainingJobStatus) -> Iterator[JobEvent]:
    record, mark = change.record, str(change.record.attempt)
    if change.old is None:
        yield _start(record, change.previous)
    if change.old and change.is_corrected:
        message = f"{failure_sentence(record)}. This counts as {record.failure_class}, not {change.old.failure_class}"
        yield JobEvent("FailureCorrected", message, mark=f"{record.attempt} {record.failure_class}")
    if change.blames_a_device:
        where = f" on {record.node}" if record.node else ""
        yield JobEvent(str(record.reason), f"attempt {record.attempt}{where}: {record.message}", mark=mark, warning=True)
    if change.has_stacks:
        yield JobEvent("Hang", f"attempt {record.attempt}: {record.message}\n{record.stacks}", mark=mark, warning=True)
    if change.has_resumed and record.step_resumed:
        count = "1 step is" if record.steps_lost == 1 else f"{record.steps_lost} steps are"
        redone = f". {count} done again" if record.steps_lost else ""
        source = "" if record.attempt else _of_earlier_job(status)
        yield JobEvent("Resumed", f"attempt {record.attempt} resumes at step {record.step_resumed}{source}{redone}", mark=mark)
    if change.has_recovered and record.phases:
        yield JobEvent("Recovered", f"attempt {record.attempt} {recovery_sentence(record.phases)}", mark=mark)


def _of_earlier_job(status: TrainingJobStatus) -> str:
    """Whose commit the first attempt of a job resumes from. A job has no commit of its own then."""
    name = parse_checkpoint_name(status.checkpoint.path) if status.checkpoint else None
    created = f", which was created at {format_time(name[1].created)}" if name else ""
    return f", from a commit of an earlier job with the same checkpoint folder{created}"


def _start(record: AttemptRecord, previous: AttemptRecord | None) -> JobEvent:
    mark = str(record.attempt)
    if previous is not None and previous.failure_class is not None:
        message = f"{after_failure(previous)}Restarting as attempt {record.attempt} (failure class {previous.failure_class})"
        return JobEvent("Restarting", message, mark=mark, warning=True)
    after = f" ({previous.reason.value})" if previous is not None and previous.reason is not None else ""
    return JobEvent("AttemptStarted", f"attempt {record.attempt} begins{after}", mark=mark)


def _world(old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[JobEvent]:
    world = new.world
    if world and world.ready_time and not (old.world and old.world.attempt == world.attempt and old.world.ready_time):
        yield JobEvent("WorldReady", f"all {len(world.members)} replicas of attempt {world.attempt} run", mark=str(world.attempt))


def _phases(old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[JobEvent]:
    if new.phase is old.phase:
        return
    if new.phase is Phase.SUCCEEDED:
        complete = new.condition(ConditionType.COMPLETE)
        is_silent = complete is not None and complete.reason is Reason.COMPLETED_WITHOUT_REPORT
        yield JobEvent("Succeeded", new.message if is_silent else "the job has succeeded")
    elif new.phase is Phase.FAILED:
        yield JobEvent("Failed", new.message, warning=True)
    elif new.phase is Phase.SUSPENDED:
        yield JobEvent("Suspended", "the job is suspended, and its pods are gone", mark=str(new.attempt))
