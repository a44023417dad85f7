"""What happened to a job, for `kubectl describe`: the difference between two statuses as Kubernetes Events. Pure.

Each has a name that follows from what it tells, so that telling it twice makes one Event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from muster.api.constants import API_VERSION, CONTROLLER, KIND
from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, ConditionType, Phase, Reason, TrainingJobStatus
from muster.control.cluster import Object, Unreadable
from muster.lifecycle.phases import recovered

_LONGEST = 1000  # of the 1,024 bytes that the API server takes
_PASSED_OVER = "is passed over"


@dataclass(frozen=True)
class Happening:
    """Something to tell. `mark` tells it from others with the same reason in the life of one job."""

    reason: str
    message: str
    mark: str = ""
    warning: bool = False


def happenings(old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[Happening]:
    """What the new status says that the old one did not, in the order in which a reader wants it."""
    yield from _validity(old, new)
    yield from _attempts(old, new)
    for notice in (notice for notice in new.notices if notice not in old.notices):
        reason = "CheckpointDamaged" if _PASSED_OVER in notice else "Notice"
        yield Happening(reason, notice, mark=notice, warning=reason != "Notice")
    if _became(old, new, ConditionType.RESUME_REGRESSION):
        yield Happening("ResumeRegression", _message(new, ConditionType.RESUME_REGRESSION), mark=str(new.attempt), warning=True)
    if _became(old, new, ConditionType.STRAGGLING):
        told = _message(new, ConditionType.STRAGGLING)
        yield Happening("Straggling", told, mark=told, warning=True)
    avoided = {node.name for node in old.avoided_nodes}
    for node in (node for node in new.avoided_nodes if node.name not in avoided):
        told = f"node {node.name} is avoided until {node.until:%H:%M:%S} UTC: {node.deaths} attempts died on it"
        yield Happening("NodeAvoided", told, mark=f"{node.name} {node.until}", warning=True)
    for kind, reason in ((ConditionType.STORAGE_SHARED, "StorageNotShared"), (ConditionType.GRACE_SUFFICIENT, "GraceTooShort")):
        wanting = new.condition(kind)
        if wanting and wanting.status == "False" and wanting.message != _message(old, kind):
            yield Happening(reason, wanting.message, mark=wanting.message, warning=True)
    refused = new.condition(ConditionType.READY)
    known = old.condition(ConditionType.READY)
    if refused and refused.reason is Reason.REPLICAS_REFUSED and (known is None or known.reason is not Reason.REPLICAS_REFUSED):
        yield Happening("ReplicasRefused", refused.message, mark=str(new.attempt), warning=True)
    yield from _phases(old, new)


def event_of(job: TrainingJob, happening: Happening, now: datetime) -> Object:
    """The Event's manifest."""
    metadata = job.metadata
    subject = {"apiVersion": API_VERSION, "kind": KIND, "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
    return _event(subject, happening, now)


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
    return _event(subject, Happening("Unreadable", message, mark=unreadable.reason, warning=True), now)


def _event(subject: Object, happening: Happening, now: datetime) -> Object:
    told = f"{subject['uid']} {happening.reason} {happening.mark}"
    time = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{subject['name']}.{hashlib.sha256(told.encode()).hexdigest()[:16]}",
            "namespace": subject["namespace"],
        },
        "involvedObject": subject,
        "reason": happening.reason,
        "message": happening.message[:_LONGEST].encode()[:_LONGEST].decode(errors="ignore"),
        "type": "Warning" if happening.warning else "Normal",
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": "muster"},
        "reportingComponent": CONTROLLER,
        "reportingInstance": "muster",
    }


def _validity(old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[Happening]:
    before, after = old.condition(ConditionType.VALID), new.condition(ConditionType.VALID)
    if after is None or (before is not None and (before.status, before.message) == (after.status, after.message)):
        return
    if after.status == "False":
        yield Happening("Invalid", after.message, mark=after.message, warning=True)
    elif before is not None:
        yield Happening("Valid", "the job is valid now", mark=str(after.observed_generation))


def _attempts(old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[Happening]:
    known = {record.attempt: record for record in old.attempts}
    previous: AttemptRecord | None = None
    for record in new.attempts:
        before = known.get(record.attempt)
        if before is None:
            yield _began(record, previous)
        elif before.failure_class and record.failure_class and before.failure_class is not record.failure_class:
            told = f"attempt {record.attempt} broke by {record.failure_class} after all, not {before.failure_class}: {_why(record)}"
            yield Happening("FailureCorrected", told, mark=f"{record.attempt} {record.failure_class}")
        if record.stacks and not (before and before.stacks):
            yield Happening("Hang", f"attempt {record.attempt}: {record.message}\n{record.stacks}", mark=str(record.attempt), warning=True)
        if record.step_resumed and (before is None or before.step_resumed is None):
            redone = f", {record.steps_lost} steps are redone" if record.steps_lost else ""
            yield Happening(
                "Resumed", f"attempt {record.attempt} goes on from step {record.step_resumed}{redone}", mark=str(record.attempt)
            )
        if record.phases and previous and previous.failure_class and (before is None or before.phases is None):
            yield Happening("Recovered", f"attempt {record.attempt} {recovered(record.phases)}", mark=str(record.attempt))
        previous = record
    world = new.world
    if world and world.ready_time and not (old.world and old.world.attempt == world.attempt and old.world.ready_time):
        yield Happening("WorldReady", f"attempt {world.attempt}: all {len(world.members)} replicas run", mark=str(world.attempt))


def _began(record: AttemptRecord, previous: AttemptRecord | None) -> Happening:
    mark = str(record.attempt)
    if previous is not None and previous.failure_class is not None:
        told = f"attempt {record.attempt} follows {previous.attempt}, which broke by {previous.failure_class}: {_why(previous)}"
        return Happening("Restarting", told, mark=mark, warning=True)
    after = f", after {previous.reason.value}" if previous is not None and previous.reason is not None else ""
    return Happening("AttemptStarted", f"attempt {record.attempt} begins{after}", mark=mark)


def _phases(old: TrainingJobStatus, new: TrainingJobStatus) -> Iterator[Happening]:
    if new.phase is old.phase:
        return
    if new.phase is Phase.SUCCEEDED:
        yield Happening("Succeeded", "the job has completed")
    elif new.phase is Phase.FAILED:
        yield Happening("Failed", new.message, warning=True)
    elif new.phase is Phase.SUSPENDED:
        yield Happening("Suspended", "no replica is left; the job waits", mark=str(new.attempt))


def _became(old: TrainingJobStatus, new: TrainingJobStatus, kind: ConditionType) -> bool:
    before, after = old.condition(kind), new.condition(kind)
    return after is not None and after.status == "True" and (before is None or before.message != after.message)


def _message(status: TrainingJobStatus, kind: ConditionType) -> str:
    condition = status.condition(kind)
    return condition.message if condition else ""


def _why(record: AttemptRecord) -> str:
    reason = record.reason.value if record.reason else "an unknown end"
    where = f" of {record.replica}" if record.replica else ""
    return f"{reason}{where}: {record.message}" if record.message else f"{reason}{where}"
