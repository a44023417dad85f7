"""What is it doing or waiting for? One sentence, without figures that change by themselves: every change is a write."""

from __future__ import annotations

from muster.api.status import AttemptRecord, ConditionType, Phase, TrainingJobStatus
from muster.lifecycle import goodput, in_place, records, stuck, success, suspend, world
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.lifecycle.situation import Situation

_NAMED = 3
_LONGEST = 4096


def describe(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status with its sentence."""
    sentence = _end(case, status) if status.phase.final else _sentence(case, status)
    return status.model_copy(update={"message": sentence[:_LONGEST]})


def waiting(case: Situation, status: TrainingJobStatus) -> str:
    """What a world that does not run yet waits for, as `worker-3 (3 of 4 run): ImagePullBackOff: ...`."""
    total, running = len(world.trainers(status)), world.running(case, status)
    kept = in_place.awaited(case, status) if status.world else ()
    if kept:
        return f"{_listed([view.label for view in kept])} to end what is left of the attempt before"
    older = [view for view in case.observed.replicas if view.attempt < status.attempt]
    if older:
        return f"{_listed([view.name for view in older])} of an older attempt to be gone{_stuck(case, older)}"
    views = case.trainers(status.attempt)
    absent = [f"{member.role}-{member.index}" for member in world.missing(case, status)]
    pending = [view for view in views if view.phase is ReplicaPhase.PENDING]
    names = _listed([*absent, *(view.label for view in pending)]) or "its replicas"
    refusal = f"; the API server refuses to make more: {case.observed.refused}" if case.observed.refused else ""
    return f"{names} ({running} of {total} run){_why(pending)}{refusal}"


def _sentence(case: Situation, status: TrainingJobStatus) -> str:
    if case.problems and not records.is_open(status):
        return "the job is not valid, so nothing is started: " + "; ".join(map(str, case.problems))
    if status.phase is Phase.SUSPENDED:
        return "suspended; set spec.suspend to false to go on"
    if suspend.is_suspended(status):
        return f"suspending: {len(case.observed.replicas)} replicas save and stop"
    record = records.current(status)
    if record is None or status.world is None:
        return "not started yet"
    if not records.is_open(status):
        return f"attempt {record.attempt} broke ({_blame(record)}); its other replicas are awaited before the job is given up"
    if status.world.ready_time:
        return _running(case, status)
    return _starting(case, status)


def _end(case: Situation, status: TrainingJobStatus) -> str:
    """Why it has ended, and which pods hold their resources on."""
    ended = status.condition(ConditionType.COMPLETE if status.phase is Phase.SUCCEEDED else ConditionType.FAILED)
    why = ended.message if ended else status.message
    left = _listed([view.label for view in success.lasting(case, status)])
    return f"{why}; still running, and holding resources, because cleanPodPolicy is None: {left}" if left else why


def _running(case: Situation, status: TrainingJobStatus) -> str:
    if status.world and status.world.first_step_time is None and case.counts_steps(status.restarts.best_step):
        return f"attempt {status.attempt}: all replicas run, the first step is awaited"
    if not goodput.is_known(case, status):
        return f"attempt {status.attempt}: all replicas run; the program has reported no step"
    trains = f"attempt {status.attempt} trains"
    if status.world is None or case.spec.elastic is None:
        return trains
    few, many = len(status.world.members), len(case.strategy.plan(case.spec).replicas)
    return f"{trains} on {few} of {many} workers" if few < many else trains


def _starting(case: Situation, status: TrainingJobStatus) -> str:
    failed = records.last_failure(status)
    after = f", after {_blame(failed)}" if failed else ""
    held = status.next_attempt_time
    if held and case.now < held:
        return f"attempt {status.attempt} is held back until {held:%H:%M:%S} UTC{after}"
    meanwhile = " while the others train on" if status.world and status.world.first_step_time else ""
    return f"attempt {status.attempt} waits for {waiting(case, status)}{meanwhile}{after}"


def _blame(record: AttemptRecord) -> str:
    reason = record.reason.value if record.reason else "an unknown end"
    where = f" of {record.replica}" if record.replica else ""
    return f"{reason}{where}: {record.message}" if record.message else f"{reason}{where}"


def _stuck(case: Situation, older: list[ReplicaView]) -> str:
    late = [view for view in older if view.due and case.now >= view.due and not view.empty]
    limits = [limit for view in late if (limit := stuck.removed_at(case, view))]
    return f" (stuck: what is left is removed by force at {max(limits):%H:%M:%S} UTC)" if limits else ""


def _why(pending: list[ReplicaView]) -> str:
    told = dict.fromkeys(f"{view.reason}: {view.message}".strip(": ") for view in pending)
    reasons = [reason for reason in told if reason][:_NAMED]
    return ": " + "; ".join(reasons) if reasons else ""


def _listed(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
