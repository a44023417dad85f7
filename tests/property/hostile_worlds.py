"""Values at the limits of a schema, and passes over a job that has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from muster.api.status import ConditionType, Reason
from muster.channel.replies import reply_to
from muster.control.admission import Admission
from muster.control.kubernetes_events import events_between
from muster.lifecycle.actions import CreateReplica, Decision, DeleteReplica
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import Observed, ReplicaPhase, ReplicaView
from muster.render.addresses import addresses_of
from muster.render.defaults import JobDefaults
from muster.render.images import Images
from muster.render.manifests import render_replica
from muster.tools.tracing.spans import spans_between
from muster_contract.reports import Report
from muster_contract.wire import LARGEST_INT, decode

Schema = dict[str, Any]
Path = tuple[Any, ...]
IMAGES = Images({"PyTorch": "torch", "TensorFlow": "tensorflow", "JAX": "jax"}, supervisor="operator")
CREATED = datetime(2026, 11, 21, 10, tzinfo=UTC)
LARGEST = 2**63 - 1
"""The largest integer of the API server."""
WHOLE = (-LARGEST, -1, 0, 1, 2, 3, 7, 10**6, 999_999_998, 999_999_999, 2**31, LARGEST_INT, LARGEST)
REAL = (*map(float, WHOLE), 0.5, 5e-324, 1e300, 1.7e308, -1.7e308)
TIMES = ("0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2026-11-21T10:00:00Z", "2026-11-21T10:00:30Z", "9999-12-31T23:59:59Z")
WORDS = ("", "0", "worker", "worker-0", "uid-0", "uid-1", *Reason, *ConditionType)
MOST_PASSES = 12


def value_of(schema: Schema) -> st.SearchStrategy[Any]:
    """Any value that the schema allows, mostly at its limits."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "boolean":
            return st.booleans()
        case "integer" | "number" as kind:
            least, most = schema.get("minimum", -LARGEST), schema.get("maximum", LARGEST if kind == "integer" else 1.8e308)
            limits = tuple(each for each in (least, most) if each < 1e308)
            return st.sampled_from([each for each in (*limits, *(WHOLE if kind == "integer" else REAL)) if least <= each <= most])
        case "string" if schema.get("format") == "date-time":
            return st.sampled_from(TIMES)
        case "string":
            most = schema.get("maxLength", 5000)
            return st.sampled_from([each[:most] for each in (*WORDS, "x" * most)])
        case "array":
            return st.lists(value_of(schema["items"]), max_size=min(3, schema.get("maxItems", 3)))
    if "additionalProperties" in schema:
        return st.dictionaries(st.sampled_from(["a", "b"]), value_of(schema["additionalProperties"]), max_size=2)
    parts = {name: value_of(each) for name, each in schema["properties"].items()}
    required = {name: parts[name] for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional={name: each for name, each in parts.items() if name not in required})


def schema_at(schema: Schema, path: Path) -> Schema:
    for step in path:
        schema = schema["items"] if isinstance(step, int) else schema.get("properties", {}).get(step) or schema["additionalProperties"]
    return schema


def places(value: Any, schema: Schema, path: Path = ()) -> list[Path]:
    """The paths of all parts of the value, and of the parts that it could have."""
    steps: Any = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    absent = (name for name in schema.get("properties", {}) if isinstance(value, dict) and name not in value)
    inside = (each for step, part in steps for each in places(part, schema_at(schema, (step,)), (*path, step)))
    return [path, *inside, *((*path, name) for name in absent)]


def misfits(value: Any, schema: Schema, path: str = "status") -> Iterator[str]:
    """Why the API server would refuse the value."""
    kinds = {"boolean": bool, "integer": int, "number": (int, float), "string": str, "array": list, "object": dict}
    if not isinstance(value, kinds[schema["type"]]):
        yield f"{path} is {value!r:.60}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path} is {value!r:.60}"
    if isinstance(value, int | float) and not schema.get("minimum", -1.8e308) <= value <= schema.get("maximum", 1.8e308):
        yield f"{path} is {value}"
    if isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
        yield f"{path} is {value}"
    if isinstance(value, str | list) and len(value) > schema.get("maxLength" if isinstance(value, str) else "maxItems", len(value)):
        yield f"{path} has {len(value)} characters or items"
    if isinstance(value, dict):
        yield from (f"{path}.{name} is absent" for name in schema.get("required", ()) if name not in value)
    parts: Any = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for step, part in parts:
        yield from misfits(part, schema_at(schema, (step,)), f"{path}.{step}")


def reports(attempt: int) -> dict[str, dict[str, Any]]:
    """The figures of a supervisor: ordinary ones, and those at the limits."""
    largest = {"step": LARGEST_INT, "totalSteps": LARGEST_INT, "samplesPerSecond": 1e300, "remainingSeconds": 1e9, "updatedAt": 1e11}
    words = {"code": 10, "attempt": attempt, "endedAt": 1e11, "step": LARGEST_INT, "message": "x" * 5000}
    pace = {"rank": 2**31 - 1, "step": LARGEST_INT, "seconds": 1e9, "ownSeconds": 1e9}
    return {
        "ordinary": {"progress": {"step": 5, "totalSteps": 9, "samplesPerSecond": 5e-324}, "phase": "Training", "inPlace": True},
        "largest": {
            "progress": largest,
            "savedSeconds": 1e9,
            "idleSeconds": 1e9,
            "marks": {"restoring": 0, "resumed": 1e11, "stepped": 1e11},
            "resumed": {"step": LARGEST_INT},
            "checkpoint": {"step": LARGEST_INT, "path": "x" * 5000, "time": 1e11, "seconds": 1e9},
            "snapshot": {"step": LARGEST_INT, "bytes": LARGEST_INT},
            "ranks": [pace, {**pace, "rank": 0, "seconds": 0, "ownSeconds": 0}],
        },
        "ended": {"waiting": True, "inPlace": True, "termination": words},
        "forged": {"attempt": 999_999_999, "waiting": True, "inPlace": True},
    }


@dataclass
class HostileWorld:
    """A job and its pods. Every status goes through JSON and the checks of the API server."""

    job: dict[str, Any]
    schema: Schema
    views: list[ReplicaView] = field(default_factory=list)
    now: datetime = CREATED
    admission: Admission = field(default_factory=lambda: Admission(IMAGES, JobDefaults()))

    def settle(self, report: str = "") -> None:
        """Passes at one moment until one changes nothing."""
        self.views = [replace(view, report=_report(view, report), reported=self.now) if report else view for view in self.views]
        for number in range(MOST_PASSES):
            before = json.dumps(self.job["status"], sort_keys=True), [view.uid for view in self.views]
            decision = self._pass(live=number % 2 == 1)
            assert decision.wake is None or decision.wake > self.now
            if number % 2 and before == (json.dumps(self.job["status"], sort_keys=True), [view.uid for view in self.views]):
                return
        raise AssertionError(f"the status still changes after {MOST_PASSES} passes at one moment: {self.job['status']}")

    def _pass(self, *, live: bool) -> Decision:
        admitted = self.admission.admit(self.job)
        job = admitted.job
        observed = Observed(tuple(self.views), live=live, template_hash=admitted.template_hash, expects_reports=True, gap_seconds=1.0)
        decision = decide(job, observed, self.now, problems=admitted.problems)
        status = decision.status
        list(events_between(job.status, status))
        list(spans_between(job, status, observed, self.now))
        if status != job.status:
            wire = json.loads(json.dumps(status.wire(), allow_nan=False))
            assert list(misfits(wire, self.schema)) == []
            self.job = {**self.job, "status": wire}
        for view in self.views:
            if view.report:
                reply_to(job, view.uid, view.report, addresses_of(job, job.status.attempt))
        gone = {action.uid for action in decision.actions if isinstance(action, DeleteReplica)}
        self.views = [view for view in self.views if view.uid not in gone]
        creations = [action for action in decision.actions if isinstance(action, CreateReplica)]
        for action in creations[:1]:
            placed = job.with_status(status)
            at = addresses_of(placed, action.attempt)
            render_replica(
                placed, action.role, index=action.index, attempt=action.attempt, addresses=at, images=IMAGES, standby=action.standby
            )
        self.views += [self._created(action) for action in creations]
        return decision

    def _created(self, action: CreateReplica) -> ReplicaView:
        label = f"{action.role}-{action.index}"
        uid = f"{label}/{action.attempt}/{self.now}"
        view = ReplicaView(f"digits-{label}", uid, action.role, action.index, action.attempt, ReplicaPhase.RUNNING, self.now, node="node")
        return replace(view, standby=action.standby)

    def pass_time(self, delta: timedelta) -> None:
        self.now += delta

    def fail(self, *, finished: datetime) -> None:
        """The first pod ends."""
        ended = {"phase": ReplicaPhase.FAILED, "exit_code": 1, "finished": finished, "report": None}
        self.views = [replace(view, **ended) if view is self.views[0] else view for view in self.views]


def _report(view: ReplicaView, kind: str) -> Report:
    fields = {"job": "default/digits", "pod": view.name, "role": view.role, "index": view.index, "attempt": max(0, view.attempt)}
    return decode(Report, {**fields, **reports(max(0, view.attempt))[kind]})
