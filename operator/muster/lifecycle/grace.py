"""Does a node leave its replicas the time that a save takes? What the condition GraceSufficient says, of jobs that had reason to doubt it.

Its message begins with the attempt that it speaks of. So the condition itself remembers what is known, and only a later attempt, or worse
news of the same, changes it.
"""

from __future__ import annotations

import re

from muster.api.grace import needed
from muster.api.grace import seconds as allowed
from muster.api.status import AttemptRecord, ConditionType, Reason, TrainingJobStatus
from muster.lifecycle import conditions, records
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.lifecycle.situation import Situation

_SAVED, _NOT_SAVED = 21, 22
_ADVICE = "where a node gives less, raise shutdownGracePeriod of its kubelet, or drain with a longer --grace-period"
_ATTEMPT = re.compile(r"attempt (\d+): ")


def asked(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status after a look for replicas that were asked to go with less time than a save takes. Of an open attempt Muster asks none."""
    world = status.world
    if not records.is_open(status) or world is None or world.attempt != status.attempt or world.ready_time is None:
        return status
    places = {(member.role, member.index) for member in world.members}
    views = [view for view in case.trainers(status.attempt) if view.place in places and _was_training(view)]
    given = [(seconds, view) for view in views if (seconds := _given(view)) is not None and seconds < needed(status)]
    if not given:
        return status
    seconds, view = min(given, key=lambda each: each[0])
    told = f"{_where(view.label, view.node)} was asked to go with {seconds} s"
    return _insufficient(case, status, status.attempt, reason=Reason.GRACE_TOO_SHORT, told=told)


def ended(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status after a look at how preempted attempts have ended. What was settled before this pass was judged then."""
    settled = {record.attempt for record in case.job.status.attempts if record.settled}
    for record in status.attempts:
        if record.failure_class and record.attempt not in settled:
            status = _judged(case, status, record)
    return status


def _judged(case: Situation, status: TrainingJobStatus, record: AttemptRecord) -> TrainingJobStatus:
    codes = _codes(case, record.attempt)
    if record.reason is Reason.PREEMPTED_NOT_SAVED or codes.get(record.replica or "") == _NOT_SAVED:
        if not needed(status):
            return status
        views = (view for view in case.trainers(record.attempt) if view.label == record.replica)
        seconds = next((seconds for view in views if (seconds := _given(view)) is not None), None)
        time = "" if seconds is None else f" with {seconds} s"
        told = f"{_where(record.replica or 'a replica', record.node)} was asked to go{time}, and did not save"
        return _insufficient(case, status, record.attempt, reason=Reason.PREEMPTED_NOT_SAVED, told=told)
    if record.reason is Reason.PREEMPTED or _SAVED in codes.values():
        return _sufficient(case, status, record.attempt)
    return status


def _insufficient(case: Situation, status: TrainingJobStatus, attempt: int, *, reason: Reason, told: str) -> TrainingJobStatus:
    known = status.condition(ConditionType.GRACE_SUFFICIENT)
    spoken_of = _attempt(known.message) if known else -1
    if attempt < spoken_of or (attempt == spoken_of and known and known.status == "False"):
        return status
    times = f"a save takes up to {needed(status)} s, and pods made from now on allow {allowed(case.spec, status)} s"
    message = f"attempt {attempt}: {told}; {times}: {_ADVICE}"
    return conditions.put(case, status, ConditionType.GRACE_SUFFICIENT, holds=False, reason=reason, message=message)


def _sufficient(case: Situation, status: TrainingJobStatus, attempt: int) -> TrainingJobStatus:
    """Nobody who never doubted it is told."""
    known = status.condition(ConditionType.GRACE_SUFFICIENT)
    if known is None or known.status == "True" or attempt <= _attempt(known.message):
        return status
    told = f"attempt {attempt}: asked to stop, and saved"
    return conditions.put(case, status, ConditionType.GRACE_SUFFICIENT, holds=True, reason=Reason.SAVED_IN_TIME, message=told)


def _attempt(message: str) -> int:
    found = _ATTEMPT.match(message)
    return int(found[1]) if found else -1


def _was_training(view: ReplicaView) -> bool:
    """Whether it had processes that could save when it was asked to go."""
    if view.phase is ReplicaPhase.PENDING or view.deleting is None:
        return False
    return not view.over or (view.finished is not None and view.finished >= view.deleting)


def _given(view: ReplicaView) -> int | None:
    """Seconds from the request to go to the end, as its deletion has them."""
    return None if view.deleting is None or view.due is None else int((view.due - view.deleting).total_seconds())


def _codes(case: Situation, attempt: int) -> dict[str, int]:
    """With what code each replica's supervisor says that its processes ended in this attempt. One may have gone on to another since."""
    reported = [(view, view.report.last_words if view.report else None) for view in case.observed.replicas]
    spoken = (*reported, *((view, view.last_words) for view in case.observed.replicas))
    return {
        view.label: words.code for view, words in spoken if words and (view.attempt if words.attempt is None else words.attempt) == attempt
    }


def _where(replica: str, node: str | None) -> str:
    return f"{replica} on {node}" if node else replica
