"""Decides whether a world hangs. Only reports can show a hang. A replica that reports nothing, or that reports work, never counts as hung.

Each supervisor measures with its own clock how long its processes have stood still before its newest report. Clocks of two machines differ
and may jump. So an operator that was down, or that gets no reports, restarts nothing.

Supervisors report stacks while they end the processes. The stacks show which replica caused the hang.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.spec import Hang
from muster.api.status import LONGEST_TEXT, AttemptRecord, FailureClass, Reason, Stall, TrainingJobStatus
from muster.api.times import milliseconds
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import LONGEST_MESSAGE, Cause
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster_contract.events import Activity
from muster_contract.reports import ProcessState, Report, Stack

_HALTED = {"stopped": "stopped by SIGSTOP", "tracing-stop": "stopped by a debugger"}
_RANKS_NAMED = 8
_LONGEST_STACK = 1000

_Stacks = list[tuple[str, Stack]]
"""Each stack, with the label of its replica."""


def cause_of_hang(status: TrainingJobStatus, facts: Facts) -> Cause | None:
    """The replica that has stood still for too long."""
    running = [(view, report) for view, report in facts.reports(status.attempt) if view.phase is ReplicaPhase.RUNNING]
    stepping = [(view, report) for view, report in running if _step(report)]
    if stepping:
        return _stopped_stepping(stepping, facts)
    return next((cause for view, report in running if (cause := _never_stepped(status, facts, view=view, report=report))), None)


def with_blame(record: AttemptRecord, cause: Cause, views: Iterable[ReplicaView]) -> tuple[Cause, str]:
    """The cause of an attempt that hung, with the replica that the reported stacks blame, and the shortened stacks."""
    reported = [(view, stack) for view in views if view.report for stack in view.report.stacks]
    stacks = [(view.label, stack) for view, stack in reported if view.about(stack.attempt) == record.attempt]
    if cause.stall is None or not stacks:
        return cause, record.stacks
    stacks.sort(key=lambda each: each[1].rank)
    blamed = _blamed(stacks)
    message = ": ".join(filter(None, (_sentence(cause.stall), _blame(blamed, stacks))))[:LONGEST_MESSAGE]
    return replace(cause, message=message, replica=blamed[0][0] if blamed else ""), _locations(stacks)


def _step(report: Report) -> int:
    return max([report.progress.step if report.progress else 0, *(pace.step or 0 for pace in report.ranks)])


def _stopped_stepping(stepping: list[tuple[ReplicaView, Report]], facts: Facts) -> Cause | None:
    """Uses the newest report of all replicas, because rank 0 may be cut off and no other replica reports saves."""
    view, newest = max(stepping, key=lambda each: (each[0].reported or facts.now, each[1].progress is not None))
    last = max(_last_moved(each, report, facts) for each, report in stepping)
    limit = _shortened(_allowed(facts.spec.recovery.hang, newest), (report for _, report in stepping), facts)
    if view.reported is None or view.reported - last < timedelta(seconds=limit):
        return None
    step = max(_step(report) for _, report in stepping)
    return _cause(view, last, Stall(step=step, seconds=limit, activity=newest.phase or Activity.TRAINING))


def _never_stepped(status: TrainingJobStatus, facts: Facts, *, view: ReplicaView, report: Report) -> Cause | None:
    world = status.world
    if world is None or world.ready_time is None or world.first_step_time or not facts.counts_steps(status):
        return None
    limit = _shortened(facts.spec.recovery.hang.start_seconds, [report], facts)
    began = max(world.ready_time, _last_moved(view, report, facts))
    if view.reported is None or view.reported - began < timedelta(seconds=limit):
        return None
    return _cause(view, began, Stall(step=0, seconds=limit))


def _last_moved(view: ReplicaView, report: Report, facts: Facts) -> datetime:
    """When the replica last did something. A report without an idle time means that the replica works at that moment."""
    return (view.reported or facts.now) - timedelta(seconds=report.idle_seconds or 0)


def _shortened(limit: float, reports: Iterable[Report], facts: Facts) -> float:
    """The limit in seconds. The limit is shorter if one of the processes is stopped."""
    stopped = any(process.state is ProcessState.STOPPED for report in reports for process in report.processes)
    return min(limit, facts.policy.stopped_seconds) if stopped else limit


def _allowed(limits: Hang, report: Report) -> int:
    """Seconds that the reported activity may take."""
    special: dict[str | None, int] = {Activity.SAVING: limits.save_seconds, Activity.EVALUATING: limits.evaluation_seconds}
    return special.get(report.phase, limits.step_seconds)


def _cause(view: ReplicaView, since: datetime, stall: Stall) -> Cause:
    return Cause(FailureClass.INFRASTRUCTURE, Reason.HANG, _sentence(stall), view.label, milliseconds(since), stall)


def _sentence(stall: Stall) -> str:
    if not stall.step:
        return f"no first step within {stall.seconds:g} s of its start"
    return f"no new step for {stall.seconds:g} s after step {stall.step}, while {stall.activity.lower()}"


def _blamed(stacks: _Stacks) -> _Stacks:
    """The processes that were stopped. If there are none, the processes that are outside the framework while others wait in it."""
    halted = [each for each in stacks if each[1].state in _HALTED]
    busy = [each for each in stacks if not each[1].waits]
    return halted or (busy if len(busy) < len(stacks) else [])


def _blame(blamed: _Stacks, stacks: _Stacks) -> str:
    """One sentence about the blamed processes. Empty if the stacks blame no process."""
    if blamed:
        named = ", ".join(f"rank {stack.rank} ({label}) is {_activity(stack)}" for label, stack in blamed[:_RANKS_NAMED])
        return named if len(blamed) == len(stacks) else f"{named}; the others wait for it"
    if all(stack.waits for _, stack in stacks) and len(stacks) > 1:
        return "all ranks that answer wait for each other, or for the network"
    return ""


def _activity(stack: Stack) -> str:
    if stack.state in _HALTED:
        return _HALTED[stack.state]
    where = f"at {stack.frames[0]}" if stack.frames else _without_frames(stack)
    return f"{stack.state or 'running'} {where}"


def _without_frames(stack: Stack) -> str:
    return f"in the kernel function {stack.wait_channel}" if stack.wait_channel else "at an unknown place"


def _locations(stacks: _Stacks) -> str:
    """One line for each location. Locations where no rank waits come first, then those with few ranks."""
    ranks: dict[tuple[bool, str, str], list[int]] = defaultdict(list)
    for _, stack in stacks:
        ranks[stack.waits and stack.state not in _HALTED, stack.state, _trace(stack)].append(stack.rank)
    lines = []
    for (_, state, text), group in sorted(ranks.items(), key=lambda each: (each[0][0], len(each[1]), each[1])):
        rest = f" and {len(group) - _RANKS_NAMED} more" if len(group) > _RANKS_NAMED else ""
        lines.append(f"rank {', '.join(map(str, group[:_RANKS_NAMED]))}{rest}: {state}, {text}")
    return "\n".join(lines)[:LONGEST_TEXT]


def _trace(stack: Stack) -> str:
    """The frames in one line, innermost first."""
    return " < ".join(stack.frames)[:_LONGEST_STACK] or _without_frames(stack)
