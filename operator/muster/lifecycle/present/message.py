"""The message of the status: what the job does or waits for, and the failure before, in one or two sentences.

It has no figures that change with each step, because every change of it is a write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.api.status import LONGEST_TEXT, AttemptRecord, Phase, Reason, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.leaving import holding_resources
from muster.lifecycle.job_state import SUSPENSIONS, Ended, Open, State, Suspended, is_backing_off, last_failure
from muster.lifecycle.present.capacity import capacity_sentence
from muster.lifecycle.present.conditions import is_queued
from muster.lifecycle.present.goodput import reports_steps
from muster.lifecycle.present.node_notices import notice_sentence
from muster.lifecycle.present.waiting import listed, waiting_sentence


def message(status: TrainingJobStatus, state: State, facts: Facts) -> str:
    return _message(status, state, facts)[:LONGEST_TEXT]


_ENDS: Mapping[Reason, str] = {
    Reason.PROCESS_KILLED: "{} was killed",
    Reason.OUT_OF_MEMORY: "{} was killed",
    Reason.PEER_LOST: "{} lost the connection to another replica",
    Reason.HANG: "{} hangs",
    Reason.BAD_CONFIGURATION: "{} cannot run as written",
    Reason.CHECKPOINT_DAMAGED: "{} cannot use the checkpoint",
    Reason.PREEMPTED: "{} was asked to stop",
    Reason.PREEMPTED_NOT_SAVED: "{} was asked to stop",
    Reason.EVICTED: "{} was evicted",
    Reason.DISRUPTED: "Kubernetes took {} away",
    Reason.NODE_LOST: "the node of {} was lost",
    Reason.POD_DELETED: "the pod of {} was deleted",
    Reason.REPLICA_LOST: "the pod of {} is gone",
    Reason.DEVICE_UNHEALTHY: "a device of {} is broken",
    Reason.DEVICE_TAINTED: "a device of {} is broken",
    Reason.START_FAILED: "{} did not start",
    Reason.INIT_CONTAINER_FAILED: "{} did not start",
    Reason.SUPERVISOR_NOT_COPIED: "{} did not start",
    Reason.STORAGE_UNAVAILABLE: "{} cannot reach the storage",
    Reason.STORAGE_FULL: "the storage is full for {}",
    Reason.STORAGE_READ_ONLY: "{} may only read the storage",
    Reason.STORAGE_FORBIDDEN: "{} may not use the storage",
    Reason.INPUT_UNAVAILABLE: "{} cannot fetch an input",
}
_LONGEST_CAUSE = LONGEST_TEXT // 2


def failure_sentence(record: AttemptRecord) -> str:
    """Why an attempt ended, such as `worker-1 was killed: ...`."""
    subject = _ENDS.get(record.reason, "{} failed") if record.reason else "{} ended"
    subject = subject.format(record.replica or "a replica")
    return f"{subject}: {record.message}" if record.message else subject


def after_failure(record: AttemptRecord | None) -> str:
    """The beginning of a message about what follows this failure. Empty if there was none."""
    return f"{failure_sentence(record)[:_LONGEST_CAUSE].rstrip('. ')}. " if record else ""


def scaling_sentence(before: int, after: int) -> str:
    """How the number of workers changes."""
    if after < before:
        return f"scaling down: {after} of {before} workers remain"
    joined = after - before
    return f"scaling up: {joined} worker{'s' if joined > 1 else ''} joined"


def relocation_sentence(workers: Sequence[str], nodes: Sequence[str], target: str) -> str:
    """Which workers leave which nodes, and why: for a capacity class, the `target`, or because the nodes go."""
    why = f"for nodes of class {target}" if target else "because the nodes announce that they go"
    return f"{listed(workers)} {'leaves' if len(workers) == 1 else 'leave'} {listed(nodes)}, {why}"


def startup_sentence(status: TrainingJobStatus, facts: Facts) -> str:
    """Why a world did not start in time."""
    return f"the job did not start within {facts.spec.startup_deadline_seconds} s: it waited for {waiting_sentence(status, facts)}"


def _message(status: TrainingJobStatus, state: State, facts: Facts) -> str:
    if isinstance(state, Ended):
        labels = listed([view.label for view in holding_resources(status, facts)])
        return f"{state.message}. Because cleanPodPolicy is None, these pods still hold resources: {labels}" if labels else state.message
    if facts.problems and not isinstance(state, Open):
        return "the job is not valid, so nothing starts: " + "; ".join(map(str, facts.problems))
    if is_queued(status, facts) and facts.observed.quota:
        stopping = f"the queue took the quota back: {_stopping(facts)}. Then the job is " if facts.replicas else ""
        refusal = f". The API server refuses its Workload: {facts.observed.refused}" if facts.observed.refused else ""
        return f"{stopping}waiting in {facts.observed.quota.message}{refusal}"
    if status.phase is Phase.SUSPENDED:
        limit = facts.reached_limit
        if limit is None or facts.spec.suspend:
            return "suspended. Set spec.suspend to false to resume"
        return f"suspended, because {limit.sentence}. Raise or remove the limit to resume"
    if isinstance(state, Suspended) and state.record and state.record.reason in SUSPENSIONS:
        return f"suspending: {_stopping(facts)}"
    if state.record is None or status.world is None:
        return "not started yet"
    if not isinstance(state, Open):
        return f"{after_failure(state.record)}The job fails once its other replicas have ended"
    return _running(status, facts) if status.world.ready_time else _starting(status, facts)


def _stopping(facts: Facts) -> str:
    count = len(facts.replicas)
    return "1 replica saves and stops" if count == 1 else f"{count} replicas save and stop"


def _running(status: TrainingJobStatus, facts: Facts) -> str:
    return _sentences(_training(status, facts), notice_sentence(status, facts), capacity_sentence(status, facts))


def _sentences(first: str, *others: str) -> str:
    return ". ".join([first, *(other[0].upper() + other[1:] for other in others if other)])


def _training(status: TrainingJobStatus, facts: Facts) -> str:
    if status.world and status.world.first_step_time is None and facts.counts_steps(status):
        return "all replicas run; waiting for the first step"
    if not reports_steps(status, facts):
        return "all replicas run; the program has not reported a step"
    if status.world is None or facts.spec.elastic is None:
        return "training"
    few, many = len(status.world.members), len(facts.desired.replicas)
    return f"training on {few} of {many} workers" if few < many else "training"


def _starting(status: TrainingJobStatus, facts: Facts) -> str:
    failed = last_failure(status)
    after = after_failure(failed)
    if status.next_attempt_time and is_backing_off(status, facts.now):
        return f"{after}Attempt {status.attempt} begins at {status.next_attempt_time:%H:%M:%S} UTC"
    meanwhile = " while the others train on" if status.world and status.world.first_step_time else ""
    waits = f"{after}{'Restarting; ' if failed else ''}waiting for {waiting_sentence(status, facts, brief=True)}{meanwhile}"
    return _sentences(waits, capacity_sentence(status, facts))
