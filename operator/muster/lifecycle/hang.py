"""Does it stand still? Told by reports alone: a replica that says nothing is never called hung, and neither is one that says it works.

For how long is each supervisor's to say, up to the moment of its newest report: clocks of two machines differ, and may jump. A caller
that was away, or that hears nothing, restarts nothing.

Who is to blame shows when the supervisors, told to end their processes, say where these stood.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from muster.api.reports import STOPPED, Report, ReportedStack
from muster.api.spec import Hang
from muster.api.status import AttemptRecord, FailureClass, Reason, TrainingJobStatus
from muster.lifecycle.failure import LONGEST_MESSAGE, Cause
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.lifecycle.situation import Situation, milliseconds

_HALTED = {"stopped": "stopped by SIGSTOP", "tracing-stop": "stopped by a debugger"}
_RANKS_NAMED = 8
_LONGEST_STACK = 1000
_LONGEST = 4096


def ended(record: AttemptRecord | None) -> bool:
    """Whether that attempt ended because it hung."""
    return record is not None and record.reason is Reason.HANG


def hung(case: Situation, status: TrainingJobStatus) -> Cause | None:
    """The replica that has stood still for too long."""
    running = [(view, report) for view, report in case.reports(status.attempt) if view.phase is ReplicaPhase.RUNNING]
    stepping = [(view, report) for view, report in running if _step(report)]
    if stepping:
        return _stands(case, status, stepping)
    return next((cause for heard in running if (cause := _never_started(case, status, *heard))), None)


def _step(report: Report) -> int:
    return max([report.progress.step if report.progress else 0, *(pace.step or 0 for pace in report.ranks)])


def _stands(case: Situation, status: TrainingJobStatus, stepping: list[tuple[ReplicaView, Report]]) -> Cause | None:
    """Judged by who was heard last: rank 0 may be cut off, and no other tells of saves."""
    view, newest = max(stepping, key=lambda heard: (heard[0].reported or case.now, heard[1].progress is not None))
    last = max(_moved(case, *heard) for heard in stepping)
    limit = _shortened(case, _allowed(case.spec.recovery.hang, newest), (report for _, report in stepping))
    if view.reported is None or view.reported - last < timedelta(seconds=limit):
        return None
    step = max(_step(report) for _, report in stepping)
    return _cause(view, last, f"no step after step {step} for {limit:g} s, while {newest.phase or 'Training'}")


def _moved(case: Situation, view: ReplicaView, report: Report) -> datetime:
    """When it last did something. One that does not say for how long it has not does so now."""
    return (view.reported or case.now) - timedelta(seconds=report.idle_seconds or 0)


def _shortened(case: Situation, limit: float, reports: Iterable[Report]) -> float:
    """The limit in seconds, where one of the processes is stopped no longer than that takes."""
    stopped = any(process.state == STOPPED for report in reports for process in report.processes)
    return min(limit, case.policy.stopped_seconds) if stopped else limit


def _allowed(limits: Hang, report: Report) -> int:
    """Seconds for what it does now."""
    return {"Saving": limits.save_seconds, "Evaluating": limits.evaluation_seconds}.get(report.phase or "", limits.step_seconds)


def _never_started(case: Situation, status: TrainingJobStatus, view: ReplicaView, report: Report) -> Cause | None:
    world = status.world
    if world is None or world.ready_time is None or world.first_step_time or not case.counts_steps(status.restarts.best_step):
        return None
    limit = _shortened(case, case.spec.recovery.hang.start_seconds, [report])
    began = max(world.ready_time, _moved(case, view, report))
    if view.reported is None or view.reported - began < timedelta(seconds=limit):
        return None
    return _cause(view, began, f"no first step within {limit:g} s of its start")


def explained(record: AttemptRecord, cause: Cause, views: Iterable[ReplicaView]) -> tuple[Cause, str]:
    """The cause of an attempt that hung, with whom the stacks blame, and the stacks themselves, shortened."""
    told = [(view.label, stack) for view in views if view.report for stack in view.report.stacks if stack.attempt == record.attempt]
    if cause.reason is not Reason.HANG or not told:
        return cause, record.stacks
    told.sort(key=lambda one: one[1].rank)
    guilty = _guilty(told)
    message = ": ".join([cause.message.partition(": ")[0], *_verdict(guilty, told)])[:LONGEST_MESSAGE]
    return replace(cause, message=message, replica=guilty[0][0] if guilty else ""), _places(told)


def _guilty(told: list[tuple[str, ReportedStack]]) -> list[tuple[str, ReportedStack]]:
    """Those that were stopped; else those that stand outside of the framework while others wait in it."""
    halted = [one for one in told if one[1].state in _HALTED]
    busy = [one for one in told if not one[1].waits]
    return halted or (busy if len(busy) < len(told) else [])


def _verdict(guilty: list[tuple[str, ReportedStack]], told: list[tuple[str, ReportedStack]]) -> Iterator[str]:
    """One sentence, or none where the stacks tell nothing."""
    if guilty:
        named = ", ".join(f"rank {stack.rank} ({label}) is {_does(stack)}" for label, stack in guilty[:_RANKS_NAMED])
        yield named if len(guilty) == len(told) else f"{named}; the others wait for it"
    elif all(stack.waits for _, stack in told) and len(told) > 1:
        yield "all ranks that answer wait for each other, or for the network"


def _does(stack: ReportedStack) -> str:
    where = stack.stack.partition(" < ")[0]
    return _HALTED.get(stack.state) or f"{stack.state or 'running'} at {where}"


def _places(told: list[tuple[str, ReportedStack]]) -> str:
    """A line for each place: first where nobody waits, then where few ranks stand; that is what there is to see."""
    ranks: dict[tuple[bool, str, str], list[int]] = defaultdict(list)
    for _, stack in told:
        ranks[stack.waits and stack.state not in _HALTED, stack.state, stack.stack[:_LONGEST_STACK]].append(stack.rank)
    lines = []
    for (_, state, text), group in sorted(ranks.items(), key=lambda place: (place[0][0], len(place[1]), place[1])):
        rest = f" and {len(group) - _RANKS_NAMED} more" if len(group) > _RANKS_NAMED else ""
        lines.append(f"rank {', '.join(map(str, group[:_RANKS_NAMED]))}{rest}: {state}, {text or 'its stack is not known'}")
    return "\n".join(lines)[:_LONGEST]


def _cause(view: ReplicaView, since: datetime, message: str) -> Cause:
    return Cause(FailureClass.INFRASTRUCTURE, Reason.HANG, message, view.label, milliseconds(since))
