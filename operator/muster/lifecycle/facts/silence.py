"""Silent replicas: replicas whose supervisors have stopped to report while others report. A supervisor whose connection has closed counts
as silent sooner, because a live one connects again with its next report.

Silence alone proves little, because the replica may only be cut off from the operator while it trains on. If its peers stand still too,
they have also lost it. Then the attempt ends long before Kubernetes marks the node as NotReady.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import inf

from muster.api.status import TrainingJobStatus
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.job_state import newest
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.lifecycle.policy import Tolerance
from muster_contract.events import Activity
from muster_contract.reports import Report
from muster_contract.trainer_spec import DEFAULT_GLOBAL_SIZE

_LEAST_STEPS = 2


def silent_at(view: ReplicaView, facts: Facts) -> datetime | None:
    """When the replica counts as silent if no other report of it arrives. None if it has not reported to this operator, or does not run."""
    return _silent_after(facts.patience.silence, view, facts)


def silent_after_the_end_at(view: ReplicaView, facts: Facts) -> datetime | None:
    """When a replica of an attempt that is over counts as silent."""
    return _silent_after(facts.patience.silence_after_the_end, view, facts)


def is_silent(view: ReplicaView, facts: Facts) -> bool:
    time = silent_at(view, facts)
    return time is not None and facts.now >= time


def is_silent_after_the_end(view: ReplicaView, facts: Facts) -> bool:
    time = silent_after_the_end_at(view, facts)
    return time is not None and facts.now >= time


def lost_replicas(status: TrainingJobStatus, facts: Facts) -> list[ReplicaView]:
    """The replicas of the world that are silent while their peers stand still, or the whole world if it was on a node that is lost. Empty
    if no fence would stop their processes."""
    world = status.world
    if not facts.replaces_at_once or world is None or world.first_step_time is None:
        return []
    members = {member.replica for member in world.members}
    views = [view for view, _ in facts.reports(status.attempt) if view.replica in members and view.is_active and not view.has_reported_end]
    silent = [view for view in views if is_silent(view, facts)]
    if not silent:
        return []
    are_silent = {view.uid for view in silent}  # to compare whole views would take quadratic time
    reports = [view.report for view in views if view.report]
    others = [view for view in views if view.uid not in are_silent]
    if not others:
        return silent if _is_node_lost(status, silent, facts) else []
    standstill = _standstill_seconds(facts, reports) if facts.runs_bundled_loop else _standstill_of_program(status, facts, others)
    limits: dict[str, float] = {Activity.TRAINING: standstill, Activity.SAVING: _saving_seconds(status, facts)}
    return silent if _stand_still([view.report for view in others if view.report], limits) else []


def times(status: TrainingJobStatus, facts: Facts) -> Iterable[datetime | None]:
    """When replicas of a world that trains become silent."""
    trains = facts.replaces_at_once and status.world is not None and status.world.first_step_time is not None
    views = [view for view in facts.trainers(status.attempt) if view.is_active] if trains else []
    return (time for view in views for time in (silent_at(view, facts), _surely_silent_at(view, facts)))


def _is_node_lost(status: TrainingJobStatus, silent: Sequence[ReplicaView], facts: Facts) -> bool:
    """Whether the whole world was on one node that is lost. There are no peers to ask. But the operator and the network work, because a
    replica that stands by on another node reports. The silence must be longer than that of a replica with peers."""
    members = [member for member in (status.world.members if status.world else ()) if facts.strategy.is_in_world(member.role)]
    nodes = {view.node for view in silent}
    spares = (view for view in facts.standing_by if view.is_active and view.reported and view.node not in ("", *nodes))
    if len(silent) < len(members) or len(nodes) != 1 or "" in nodes or all(is_silent(view, facts) for view in spares):
        return False
    return all((time := _surely_silent_at(view, facts)) is not None and facts.now >= time for view in silent)


def _surely_silent_at(view: ReplicaView, facts: Facts) -> datetime | None:
    """When the replica counts as silent without any other evidence: the limit is the longest one, however regular reports are."""
    if silent_at(view, facts) is None or view.reported is None:
        return None
    return view.reported + timedelta(seconds=facts.patience.silence.longest + view.missed_seconds + facts.observed.report_delay_seconds)


def _silent_after(limit: Tolerance, view: ReplicaView, facts: Facts) -> datetime | None:
    if view.reported is None or not facts.observed.expects_reports or view.phase is not ReplicaPhase.RUNNING:
        return None
    longer = timedelta(seconds=view.missed_seconds + facts.observed.report_delay_seconds)
    is_reply_delayed = view.report is not None and view.report.waiting  # the operator delays its replies to supervisors that wait
    silent = view.reported + timedelta(seconds=limit.longest if is_reply_delayed else limit.usual) + longer
    if view.disconnected is None:
        return silent
    return min(silent, view.disconnected + timedelta(seconds=facts.patience.reconnection.usual) + longer)


def _stand_still(peers: Iterable[Report], limits: Mapping[str, float]) -> bool:
    """Whether no peer has progressed within its activity's limit. Peers before their first step do not count, and some activities have no
    limit."""
    stepping = [report for report in peers if (report.progress and report.progress.step) or any(pace.step for pace in report.ranks)]
    return bool(stepping) and all((report.idle_seconds or 0.0) >= limits.get(report.phase or "", inf) for report in stepping)


def _standstill_seconds(facts: Facts, reports: Iterable[Report]) -> float:
    """How long peers may stand still before the silent replica counts as lost: a few steps of this job."""
    rates = [report.progress.samples_per_second or 0.0 for report in reports if report.progress]
    size = facts.spec.batch.global_size or DEFAULT_GLOBAL_SIZE
    step = size / max(rates) if rates and max(rates) > 0 else 0.0
    return max(facts.patience.standstill.usual, facts.policy.standstill_steps * step)


def _standstill_of_program(status: TrainingJobStatus, facts: Facts, peers: Iterable[ReplicaView]) -> float:
    """The same for a program of the user, which need not report the rate of its samples. Its steps take the mean time of the steps of this
    world. Until the world has done two steps, that time is unknown."""
    record, world = newest(status), status.world
    done = (status.progress.step if status.progress else 0) - ((record.step_resumed if record else None) or 0)
    stepped = [view.reported - timedelta(seconds=view.report.idle_seconds or 0.0) for view in peers if view.report and view.reported]
    if done < _LEAST_STEPS or not stepped or world is None or world.first_step_time is None:
        return inf
    step = (max(stepped) - world.first_step_time).total_seconds() / (done - 1)
    return max(facts.patience.standstill.longest, facts.policy.standstill_steps * step)


def _saving_seconds(status: TrainingJobStatus, facts: Facts) -> float:
    """How long peers may save before the silent replica counts as lost: much longer than a save of this job takes."""
    measured = status.checkpoint.measured_seconds if status.checkpoint else None
    return inf if measured is None else facts.patience.standstill.longest + facts.policy.standstill_saves * measured
