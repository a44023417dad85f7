"""The message of the status: one sentence about what the job does or waits for.

It has no figures that change with each step, because every change of it is a write.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.api.status import LONGEST_TEXT, AttemptRecord, Phase, Reason, TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.leaving import holding_resources
from muster.lifecycle.present.capacity import capacity_sentence
from muster.lifecycle.present.conditions import is_queued
from muster.lifecycle.present.goodput import reports_steps
from muster.lifecycle.present.notices import notice_sentence
from muster.lifecycle.present.waiting import listed, waiting_sentence
from muster.lifecycle.state import SUSPENSIONS, Ended, Open, State, Suspended, is_backing_off, last_failure


def message(status: TrainingJobStatus, state: State, facts: Facts) -> str:
    return _message(status, state, facts)[:LONGEST_TEXT]


def failure_sentence(record: AttemptRecord) -> str:
    """Why an attempt ended, such as `UserError of worker-1: ...` or `worker-1 was killed: ...`."""
    reason = record.reason.value if record.reason else "an unknown end"
    subject = f"{reason} of {record.replica}" if record.replica else reason
    if record.reason is Reason.PROCESS_KILLED and record.replica:
        subject = f"{record.replica} was killed"
    return f"{subject}: {record.message}" if record.message else subject


def scaling_sentence(before: int, after: int) -> str:
    """How the number of workers changes."""
    if after < before:
        return f"scales down: {after} of {before} workers remain"
    joined = after - before
    return f"scales up: {joined} worker{'s' if joined > 1 else ''} joined"


def relocation_sentence(workers: Sequence[str], nodes: Sequence[str], target: str) -> str:
    """Which workers leave which nodes, and why: for a capacity class, the `target`, or because the nodes go."""
    why = f"for nodes of class {target}" if target else "because the nodes announce that they go"
    return f"{listed(workers)} {'leaves' if len(workers) == 1 else 'leave'} {listed(nodes)}, {why}"


def startup_sentence(status: TrainingJobStatus, facts: Facts) -> str:
    """Why a world did not start in time."""
    return f"not all replicas ran within {facts.spec.startup_deadline_seconds} s: {waiting_sentence(status, facts)}"


def _message(status: TrainingJobStatus, state: State, facts: Facts) -> str:
    if isinstance(state, Ended):
        labels = listed([view.label for view in holding_resources(status, facts)])
        return (
            f"{state.message}; still running, and holding resources, because cleanPodPolicy is None: {labels}" if labels else state.message
        )
    if facts.problems and not isinstance(state, Open):
        return "the job is not valid, so nothing is started: " + "; ".join(map(str, facts.problems))
    if is_queued(status, facts) and facts.observed.quota:
        stopping = f"{_stopping(facts)}, because the job " if facts.replicas else ""
        refusal = f"; the API server refuses its Workload: {facts.observed.refused}" if facts.observed.refused else ""
        return f"{stopping}waits in {facts.observed.quota.message}{refusal}"
    if status.phase is Phase.SUSPENDED:
        limit = facts.reached_limit
        if limit is None or facts.spec.suspend:
            return "suspended; set spec.suspend to false to resume"
        return f"suspended, because {limit.sentence}; raise or remove the limit to resume"
    if isinstance(state, Suspended) and state.record and state.record.reason in SUSPENSIONS:
        return f"suspending: {_stopping(facts)}"
    if state.record is None or status.world is None:
        return "not started yet"
    if not isinstance(state, Open):
        failure = failure_sentence(state.record)
        return f"attempt {state.record.attempt} failed ({failure}); the job fails when its other replicas have ended"
    return _running(status, facts) if status.world.ready_time else _starting(status, facts)


def _stopping(facts: Facts) -> str:
    count = len(facts.replicas)
    return "1 replica saves and stops" if count == 1 else f"{count} replicas save and stop"


def _running(status: TrainingJobStatus, facts: Facts) -> str:
    return "; ".join(filter(None, (_training(status, facts), notice_sentence(status, facts), capacity_sentence(status, facts))))


def _training(status: TrainingJobStatus, facts: Facts) -> str:
    if status.world and status.world.first_step_time is None and facts.counts_steps(status):
        return f"attempt {status.attempt}: all replicas run, waiting for the first step"
    if not reports_steps(status, facts):
        return f"attempt {status.attempt}: all replicas run; the program has reported no step"
    trains = f"attempt {status.attempt} trains"
    if status.world is None or facts.spec.elastic is None:
        return trains
    few, many = len(status.world.members), len(facts.desired.replicas)
    return f"{trains} on {few} of {many} workers" if few < many else trains


def _starting(status: TrainingJobStatus, facts: Facts) -> str:
    failed = last_failure(status)
    after = f", after {failure_sentence(failed)}" if failed else ""
    if status.next_attempt_time and is_backing_off(status, facts.now):
        return f"attempt {status.attempt} begins at {status.next_attempt_time:%H:%M:%S} UTC (back-off){after}"
    meanwhile = " while the others train on" if status.world and status.world.first_step_time else ""
    chosen = capacity_sentence(status, facts)
    waits = f"attempt {status.attempt} waits for {waiting_sentence(status, facts, brief=True)}{meanwhile}{after}"
    return f"{waits}; {chosen}" if chosen else waits
