"""What came of the notices of nodes: how many came, and how many cost no step.

An attempt that ends because it leaves nodes that go, or because such a node takes a replica away (`transition/attempts.py`), has the
number of these nodes in its record. Whether that cost steps shows when the next attempt resumes.
"""

from __future__ import annotations

from dataclasses import replace

from muster.api.status import AttemptRecord, Meaning, NoticeCounts, Reason, TrainingJobStatus
from muster.lifecycle.changes import attempt_changes
from muster.lifecycle.facts import node_notices
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import is_open


def with_notice_counts(old: TrainingJobStatus, new: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status to write, with the notices that have come since the last write, and those whose outcome shows now."""
    if not (old.node_notices or new.node_notices or old.notice_counts):
        return new
    new = replace(new, attempts=tuple(_with_left_nodes(record, old, new, facts) for record in new.attempts))
    counts = new.notice_counts or NoticeCounts()
    known = _going(old)
    concerned = _nodes_of_world(old, facts) | _nodes_of_world(new, facts)
    counts = replace(counts, came=counts.came + len((_going(new) - known) & concerned))
    for change in attempt_changes(old, new):
        number = change.previous.announced_nodes if change.previous else None
        if number and change.has_resumed:
            lost = bool(change.record.steps_lost)
            counts = replace(counts, met=counts.met + number * (not lost), missed=counts.missed + number * lost)
    return replace(new, notice_counts=counts if counts != NoticeCounts() else None)


def _with_left_nodes(record: AttemptRecord, old: TrainingJobStatus, new: TrainingJobStatus, facts: Facts) -> AttemptRecord:
    """The record of the attempt that moves with this write, with the number of nodes that it leaves because they go."""
    if record.attempt != old.attempt or not is_open(old) or record.reason is not Reason.MOVED:
        return record
    left = node_notices.announced(new, facts) & _nodes_of_world(old, facts)
    return replace(record, announced_nodes=len(left)) if left else record


def _going(status: TrainingJobStatus) -> set[str]:
    return {each.node for each in status.node_notices if each.meaning is Meaning.GOES}


def _nodes_of_world(status: TrainingJobStatus, facts: Facts) -> set[str]:
    members = status.world.member_of if status.world else {}
    present = (view for view in facts.observed.replicas if view.uid in members)
    return {view.node for view in (*present, *facts.departed_members(status)) if view.node}
