"""Jobs, replicas and reports for table tests. Fields that a test does not name have ordinary values."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic.alias_generators import to_camel

from muster.api.capacity import CapacityClass
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.status import AttemptRecord, NodeNotice, TrainingJobStatus
from muster.lifecycle.actions import CreateReplica, Decision, DeleteReplica
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import Observed, ReplicaPhase, ReplicaView
from muster.lifecycle.policy import DEFAULT_POLICY, Policy
from muster_contract.reports import Report, TerminationMessage
from muster_contract.wire import decode, encode

T0 = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def job(*, workers: int = 2, strategy: str = "DDP", **spec: Any) -> TrainingJob:
    roles = spec.pop("roles", {"worker": {"replicas": workers}})
    whole = {"strategy": strategy, "trainer": {"task": "digits"}, "roles": roles, **spec}
    metadata = {"name": "digits", "uid": "job-uid", "creationTimestamp": "2026-11-21T10:00:00Z"}
    return TrainingJob.model_validate({"metadata": metadata, "spec": whole})


def replica(label: str = "worker-0", *, phase: str = "Running", attempt: int = 0, **changes: Any) -> ReplicaView:
    role, _, index = label.rpartition("-")
    uid = changes.pop("uid", f"{label}/{attempt}")
    created = changes.pop("created", T0)
    return ReplicaView(f"digits-{label}", uid, role, int(index), attempt, ReplicaPhase(phase), created, **changes)


def ended_with(code: int, message: str = "termination message", **more: Any) -> TerminationMessage:
    return decode(TerminationMessage, {"code": code, "message": message, **_document(more)})


def _document(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields as a JSON object: names in camelCase, documents as objects."""
    return {to_camel(name): encode(value) if is_dataclass(value) else value for name, value in fields.items()}


def failed(
    label: str = "worker-0", code: int = 10, *, seconds: float = 60, message: str = "termination message", **changes: Any
) -> ReplicaView:
    """A replica that ended without a request, with a termination message."""
    step = changes.pop("step", None)
    return replica(label, phase="Failed", finished=at(seconds), exit_code=code, termination=ended_with(code, message, step=step), **changes)


def report(label: str = "worker-0", *, attempt: int = 0, step: int | None = None, at_second: float | None = None, **more: Any) -> Report:
    role, _, index = label.rpartition("-")
    progress = None
    if step is not None:
        updated = None if at_second is None else at(at_second).timestamp()
        progress = {"step": step, "totalSteps": 100, "loss": "0.5", "updatedAt": updated}
    fields = {"job": "default/digits", "pod": f"digits-{label}", "role": role, "index": int(index), "attempt": attempt}
    return decode(Report, {**fields, "progress": progress, "phase": "Training", **_document(more)})


@dataclass
class Story:
    """A job over several decisions. Every status goes through JSON, as it does in a cluster."""

    job: TrainingJob
    policy: Policy = DEFAULT_POLICY
    now: datetime = T0
    problems: list[Problem] = field(default_factory=list)
    template_hash: str = ""
    expects_reports: bool = False
    gap_seconds: float | None = None
    notices: dict[str, NodeNotice] | None = None
    capacity_classes: dict[str, str] = field(default_factory=dict)
    departed: tuple[ReplicaView, ...] = ()
    classes: dict[str, CapacityClass] = field(default_factory=dict)
    knows_nodes: bool = True

    def see(self, *views: ReplicaView, seconds: float | None = None, live: bool = True) -> Decision:
        self.now = at(seconds) if seconds is not None else self.now
        decision = decide(
            self.job,
            Observed(
                views,
                live=live,
                service=True,
                template_hash=self.template_hash,
                expects_reports=self.expects_reports,
                gap_seconds=self.gap_seconds,
                notices=self.notices,
                capacity_classes=self.capacity_classes,
                departed=self.departed,
                classes=self.classes,
                knows_nodes=self.knows_nodes,
            ),
            self.now,
            problems=self.problems,
            policy=self.policy,
        )
        written = TrainingJobStatus.from_wire(decision.status.wire())
        assert written == decision.status
        self.job = self.job.with_status(written)
        return decision

    def edit(self, **spec: Any) -> None:
        changed = TrainingJob.model_validate({"metadata": self.job.metadata.wire(), "spec": {**self.job.spec.wire(), **spec}})
        self.job = changed.with_status(self.job.status)

    @property
    def status(self) -> TrainingJobStatus:
        return self.job.status

    @property
    def record(self) -> AttemptRecord:
        return self.status.attempts[-1]

    def condition(self, kind: str) -> tuple[str, str]:
        match = next(condition for condition in self.status.conditions if condition.type == kind)
        return match.status, match.reason.value


def running(count: int = 2, *, attempt: int = 0, **changes: Any) -> list[ReplicaView]:
    return [replica(f"worker-{index}", attempt=attempt, **changes) for index in range(count)]


def running_story(count: int = 2, **spec: Any) -> Story:
    """A DDP job whose workers have run since second 10."""
    story = Story(job(workers=count, **spec))
    story.see(seconds=0)
    story.see(*running(count), seconds=10)
    return story


def created(decision: Decision) -> list[str]:
    return [f"{action.role}-{action.index}/{action.attempt}" for action in decision.actions if isinstance(action, CreateReplica)]


def deleted(decision: Decision) -> list[str]:
    return [action.uid for action in decision.actions if isinstance(action, DeleteReplica)]


def stand_bys(decision: Decision) -> list[str]:
    return [f"{action.role}-{action.index}" for action in decision.actions if isinstance(action, CreateReplica) and action.standby]


def members(story: Story) -> list[str]:
    return [member.label for member in (story.status.world.members if story.status.world else ())]
