"""How an attempt begins, which world it has, and how it ends. Later reports correct the cause of its failure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.status import LONGEST_TEXT, MAX_ATTEMPT_RECORDS, AttemptRecord, Member, Reason, TrainingJobStatus, World
from muster.lifecycle.facts import node_notices
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import Cause, corrected_cause, last_step_of
from muster.lifecycle.facts.hang import with_blame
from muster.lifecycle.job_state import Verdict, is_open, newest, record_of, state_of, with_record
from muster.lifecycle.observed import Replica
from muster.lifecycle.recording.recording import last_step, later
from muster.lifecycle.transition import avoided_nodes, budget, elastic, in_place, replacing


def with_next(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """Begins the next attempt. One write holds its number, record, world, cost and back-off, before any of its replicas exists."""
    number = _next_number(status)
    before = newest(status)
    failed = before if before and before.failure_class else None
    status = budget.with_progress(status, facts, before.last_step if before else None)  # a suspended attempt may have done steps, too
    status = budget.with_charge(status, facts, failed) if failed else status
    commit = status.checkpoint.step if status.checkpoint else None
    record = AttemptRecord(attempt=number, start_time=facts.stamp, step_committed=commit)
    if status.progress and before and before.step_resumed is not None and in_place.training_continues(status, facts):
        record = replace(record, step_resumed=status.progress.step, steps_lost=0)
    return replace(
        status,
        attempt=number,
        admitted_time=status.admitted_time or facts.stamp,
        world=_planned_world(status, facts, attempt=number),
        attempts=(*status.attempts, record)[-MAX_ATTEMPT_RECORDS:],
        next_attempt_time=budget.start_time(status, facts, failed) if failed else None,
    )


def _next_number(status: TrainingJobStatus) -> int:
    return 0 if status.admitted_time is None else status.attempt + 1


def with_end(status: TrainingJobStatus, facts: Facts, reason: Reason, *, message: str = "") -> TrainingJobStatus:
    """Ends the open attempt for a reason that is no failure, or that ends the job."""
    record = newest(status)
    if record is None or not is_open(status):
        return status
    done, message = last_step(status, facts), message[:LONGEST_TEXT]
    return with_record(status, replace(record, end_time=facts.stamp, reason=reason, message=message, settled=True, last_step=done))


def with_failure(status: TrainingJobStatus, facts: Facts, cause: Cause) -> TrainingJobStatus:
    """Ends the open attempt with a failure. The cause stays provisional until it is settled."""
    record, done = newest(status), last_step(status, facts)
    assert record is not None
    status = budget.with_progress(status, facts, done, ended=cause.time)
    node = avoided_nodes.node_of((*facts.trainers(status.attempt), *facts.departed_members(status)), cause.replica, record=record)
    record = _on_node(_with_cause(record, cause), node, status, facts)
    return with_record(status, replace(record, end_time=facts.stamp, last_step=done))


def with_correction(status: TrainingJobStatus, facts: Facts, record: AttemptRecord) -> TrainingJobStatus:
    """Corrects the class, reason and cost of a failed attempt by what the replicas show now. May also settle the failure."""
    cause, stacks = with_blame(record, corrected_cause(record, facts), facts.replicas)
    corrected = _on_node(_with_cause(record, cause), avoided_nodes.node_of(facts.replicas, cause.replica, record=record), status, facts)
    if record.attempt < status.attempt:
        status = budget.with_charge_moved(status, facts, record, to=corrected)
        if cause.failure_class is not record.failure_class:
            status = budget.with_start_time(status, facts, cause.failure_class)
    views = facts.trainers(record.attempt)
    done = later(record.last_step, last_step_of(record.attempt, facts))
    status = budget.with_progress(status, facts, done)
    settled = (
        facts.now >= settle_time(record, facts)
        or _has_complete_successor(status, record)
        or (facts.live and all(view.over for view in views))
    )
    return with_record(status, replace(corrected, last_step=done, settled=settled, stacks=stacks))


def with_settled(status: TrainingJobStatus, attempt: int) -> TrainingJobStatus:
    record = record_of(status, attempt)
    return with_record(status, replace(record, settled=True)) if record else status


def with_permanent_failure(status: TrainingJobStatus, facts: Facts, verdict: Verdict) -> TrainingJobStatus:
    """Ends the open attempt of a job that has failed. A restart that never took place, because its failure was of another class, does not
    count."""
    failed = record_of(status, verdict.attempt) if verdict.attempt is not None else None
    if failed and failed.attempt < status.attempt:
        status = budget.with_refund(status, facts, failed)
    if failed:
        status = with_settled(status, failed.attempt)
    return with_end(status, facts, verdict.reason, message=verdict.message)


def verdict(status: TrainingJobStatus, facts: Facts, *, attempt: int) -> Verdict | None:
    """Whether the job fails permanently for the failure of this attempt. None before the failure is settled, unless no report can correct
    it."""
    record = record_of(status, attempt)
    result = budget.verdict(status, facts, record) if record else None
    return result if result and record and (record.settled or result.at_once) else None


def settle_time(record: AttemptRecord, facts: Facts) -> datetime:
    """When a provisional cause becomes final, even if reports are missing."""
    assert record.end_time is not None
    return record.end_time + timedelta(seconds=facts.policy.settle_seconds)


def settles_at(status: TrainingJobStatus, facts: Facts) -> datetime | None:
    """When the failure that is provisional now becomes final. None if there is none."""
    record = state_of(status, suspend=facts.suspends).provisional
    return settle_time(record, facts) if record else None


def _has_complete_successor(status: TrainingJobStatus, record: AttemptRecord) -> bool:
    """Whether a later world is complete. If so, every replica of this attempt is gone, or has moved on and reported its end."""
    return status.world is not None and status.world.attempt > record.attempt and status.world.ready_time is not None


def _with_cause(record: AttemptRecord, cause: Cause) -> AttemptRecord:
    return replace(
        record,
        failure_class=cause.failure_class,
        reason=cause.reason,
        message=cause.message,
        replica=cause.replica,
        failed_time=cause.time,
        stall=cause.stall,
        exit_code=cause.exit_code,
        signal=cause.signal,
    )


def _on_node(record: AttemptRecord, node: str | None, status: TrainingJobStatus, facts: Facts) -> AttemptRecord:
    """The record of a failure on this node, which may have announced that it goes. A notice that has gone meanwhile counts on, and so does
    one that is seen only now, because nodes and pods are watched apart."""
    before = record.announced_nodes if node == record.node else None
    return replace(record, node=node, announced_nodes=1 if node in node_notices.announced(status, facts) else before)


def _planned_world(status: TrainingJobStatus, facts: Facts, *, attempt: int) -> World:
    """The world of this attempt. In `status` the attempt before has ended."""
    plan = elastic.next_plan(status, facts)
    uids, unaffected = in_place.reused_pods(status, facts), in_place.unaffected_members(status, facts)
    before = {member.replica: member for member in status.world.members} if status.world else {}
    suffixes = {view.uid: view.suffix for view in facts.everyone}

    def member(replica: Replica) -> Member:
        role, index = replica
        if replica in unaffected:
            return Member(role=role, index=index, uid=before[replica].uid, incarnation=unaffected[replica], suffix=before[replica].suffix)
        uid = uids.get(replica, "")
        suffix = suffixes[uid] if uid else replacing.suffix_of(replica, status, attempt=attempt)
        incarnation = before[replica].incarnation if replica in before and before[replica].uid == uid else None
        return Member(role=role, index=index, uid=uid, awaited=bool(uid), incarnation=incarnation, suffix=suffix)

    saved = status.world.saved_seconds if status.world and in_place.training_continues(status, facts) else 0.0
    return World(
        attempt=attempt,
        size=plan.size,
        synchronous=facts.strategy.is_synchronous(facts.spec),
        members=tuple(member((replica.role, replica.index)) for replica in plan.replicas),
        created_time=facts.stamp,
        saved_seconds=saved,
    )
