"""Whose fault is it? The class and reason of a replica's end, and of the broken world's.

The exit-code table is `docs/architecture.md`'s. A code means something only together with the supervisor's last words: without them a
20 is the training program's own 20.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from muster.api.reports import LastWords
from muster.api.status import AttemptRecord, FailureClass, Reason, TrainingJobStatus
from muster.lifecycle.observed import Observed, ReplicaPhase, ReplicaView
from muster.lifecycle.situation import ALONE, Situation, milliseconds

LONGEST_MESSAGE = 2048

_CODES: dict[int, tuple[FailureClass, Reason]] = {
    10: (FailureClass.APPLICATION, Reason.USER_ERROR),
    11: (FailureClass.APPLICATION, Reason.BAD_CONFIGURATION),
    20: (FailureClass.INFRASTRUCTURE, Reason.PEER_LOST),
    21: (FailureClass.PREEMPTION, Reason.PREEMPTED),
    22: (FailureClass.PREEMPTION, Reason.PREEMPTED_NOT_SAVED),
    30: (FailureClass.APPLICATION, Reason.CHECKPOINT_DAMAGED),
    31: (FailureClass.INFRASTRUCTURE, Reason.STORAGE_UNAVAILABLE),
}
_SIGNALLED = 128
_FROM_OUTSIDE = frozenset({_SIGNALLED + 9, _SIGNALLED + 15})
_ASKED_TO_STOP = frozenset({21, 22}) | _FROM_OUTSIDE
"""The codes in the last words of a replica that somebody asked to stop."""
_PEER_LOST = 20

_POD_REASONS = {
    "Evicted": Reason.EVICTED,
    "Preempting": Reason.DISRUPTED,
    "NodeLost": Reason.NODE_LOST,
    "NodeShutdown": Reason.NODE_LOST,
    "Shutdown": Reason.NODE_LOST,
    "Terminated": Reason.NODE_LOST,
}
"""The kubelet's and the node controller's words for pods that were taken away; the last three are names of graceful node shutdown."""


@dataclass(frozen=True)
class Cause:
    """Why a replica, or a whole attempt, ended."""

    failure_class: FailureClass
    reason: Reason
    message: str
    replica: str
    time: datetime

    @property
    def precedence(self) -> tuple[int, datetime, str]:
        """Lower explains more: preemption, then what broke first; that a peer was lost explains nothing while anything else does."""
        if self.failure_class is FailureClass.PREEMPTION:
            return 0, self.time, self.replica
        return (2 if self.reason is Reason.PEER_LOST else 1), self.time, self.replica


def root_cause(causes: Iterable[Cause]) -> Cause | None:
    """Of all ends of one attempt, the one that explains the others."""
    return min(causes, key=lambda cause: cause.precedence, default=None)


def last_words(view: ReplicaView) -> LastWords | None:
    """What the replica said when it ended, from its termination message or else its last report: not what it said of an attempt before."""
    reported = view.report.last_words if view.report else None
    return view.last_words or (reported if reported and reported.attempt in (None, view.attempt) else None)


def without_words(observed: Observed) -> Observed:
    """What is observed of a job without supervisors: what such a program leaves as its termination message are no last words."""
    return replace(observed, replicas=tuple(replace(view, last_words=None) for view in observed.replicas))


def classify(view: ReplicaView, *, asked: bool) -> Cause | None:
    """Why this replica ended or is being removed; None where that says nothing. `asked`: we have asked its whole attempt to stop."""
    if view.phase is ReplicaPhase.SUCCEEDED or not (view.over or view.deleting):
        return None
    taken_away = _taken_away(view)
    if taken_away:
        return taken_away
    if view.deleting is not None and not _ended_before_deletion(view, asked=asked):
        return None if asked else _deleted(view)
    return _ended(view)


def failed_by_itself(view: ReplicaView, *, asked: bool) -> bool:
    """Whether this replica has failed, as against being taken away, or ended by Muster. `asked`: see `classify`."""
    words = last_words(view)
    if not view.over or (words is not None and words.code == 0):
        return False
    cause = classify(view, asked=asked)
    dismissed = words is not None and words.exit_code is None and words.signal is None and words.code == _PEER_LOST
    return cause is not None and cause.failure_class is not FailureClass.PREEMPTION and not dismissed


def broken(case: Situation, status: TrainingJobStatus) -> Cause | None:
    """The root cause that ends the open attempt, None while its world is whole."""
    places = {(member.role, member.index) for member in status.world.members} if status.world else set()
    members = (view for view in case.trainers(status.attempt) if (view.role.value, view.index) in places)  # others go by our own wish
    ends = [cause for view in members if (cause := classify(view, asked=False))]
    if case.observed.live:
        ends += [_vanished(label, case.stamp) for label in vanished(case, status)]
    return root_cause(ends)


def vanished(case: Situation, status: TrainingJobStatus) -> list[str]:
    """Members of the world that were seen and are not there now. Proof of anything only when the look was live."""
    there = {view.uid for view in case.observed.replicas}
    members = status.world.members if status.world else []
    lost = (member for member in members if member.uid and not member.awaited and not member.succeeded and member.uid not in there)
    return [f"{member.role}-{member.index}" for member in lost if member.role not in ALONE]


def later_news(case: Situation, record: AttemptRecord) -> Cause | None:
    """The root cause of an ended attempt, with what is seen now of its replicas beside what was known.

    One that has moved on to a later attempt still tells how it ended in this one.
    """
    views = [view for view in case.observed.replicas if view.role not in ALONE]
    said = (classify(view, asked=True) if view.attempt == record.attempt else _told(view, record.attempt) for view in views)
    return root_cause([_known(record), *(cause for cause in said if cause), *unanswering(case, record.attempt)])


def unanswering(case: Situation, attempt: int) -> list[Cause]:
    """Replicas that were asked to go and are there long after their time: their nodes do not answer, whoever asked."""
    late = case.now - timedelta(seconds=case.policy.silent_seconds)
    gone = (view for view in case.trainers(attempt) if not view.over and view.due is not None and view.due <= late)
    told = "did not end in its time, and its node does not answer"
    return [_cause(view, FailureClass.PREEMPTION, Reason.NODE_LOST, told=f"{view.name} {told}") for view in gone]


def _told(view: ReplicaView, attempt: int) -> Cause | None:
    """How a replica ended in an earlier attempt, if that is the last that its supervisor has told; what became of it since says nothing."""
    words = view.report.last_words if view.report else None
    if words is None or words.attempt != attempt or words.code == 0:
        return None
    return _ended(replace(view, last_words=words, finished=view.reported, exit_code=None, oom_killed=False))


def spoken_step(views: Iterable[ReplicaView]) -> int | None:
    """The highest step in the replicas' last words."""
    words = (last_words(view) for view in views)
    return max((spoken.step for spoken in words if spoken and spoken.step is not None and spoken.step >= 0), default=None)


def spoken_loss(views: Iterable[ReplicaView], step: int) -> str | None:
    """The loss of that step in the replicas' last words."""
    words = (last_words(view) for view in views)
    return next((spoken.loss for spoken in words if spoken and spoken.step == step and spoken.loss), None)


def _known(record: AttemptRecord) -> Cause:
    assert record.failure_class is not None
    assert record.reason is not None
    assert record.failed_time is not None
    return Cause(record.failure_class, record.reason, record.message, record.replica or "", record.failed_time)


def _ended_before_deletion(view: ReplicaView, *, asked: bool) -> bool:
    """By the clocks of two machines; what asking leads to is never taken for the replica's own end once we asked."""
    if view.oom_killed:  # asking leads to no such end, and whole seconds would not tell which came first
        return True
    words = last_words(view)
    if asked and (view.exit_code in _FROM_OUTSIDE or (words is not None and words.code in _ASKED_TO_STOP)):
        return False
    return view.finished is not None and view.deleting is not None and view.finished < view.deleting


def _code(view: ReplicaView) -> int | None:
    words = last_words(view)
    return words.code if words and words.code else view.exit_code


def _taken_away(view: ReplicaView) -> Cause | None:
    if view.disruption is not None:
        return _cause(view, FailureClass.PREEMPTION, Reason.DISRUPTED, told=f"{view.disruption}: {view.message}".rstrip(": "))
    if view.reason in _POD_REASONS:
        return _cause(view, FailureClass.PREEMPTION, _POD_REASONS[view.reason], told=view.message or view.reason)
    return None


def _deleted(view: ReplicaView) -> Cause:
    words = last_words(view)
    reason = _CODES[words.code][1] if words and words.code in (21, 22) else Reason.POD_DELETED
    told = words.message if words and words.message else f"{view.name} is being deleted, and not by Muster"
    return replace(_cause(view, FailureClass.PREEMPTION, reason, told=told), time=milliseconds(view.deleting or view.created))


def _ended(view: ReplicaView) -> Cause:
    words = last_words(view)
    told = words.message if words and words.message else view.message
    if view.oom_killed:
        cure = f"raise resources.limits.memory of its container in spec.roles.{view.role.value}.template"
        said = f"the container ran out of memory: {cure}" + (f" ({told})" if told else "")
        return _cause(view, FailureClass.APPLICATION, Reason.OUT_OF_MEMORY, told=said)
    if words and words.code in _CODES:
        failure_class, reason = _CODES[words.code]
        return _cause(view, failure_class, reason, told=told or reason.value)
    return _exited(view, _code(view), told)


def _exited(view: ReplicaView, code: int | None, told: str) -> Cause:
    if code is None:
        return _cause(view, FailureClass.INFRASTRUCTURE, Reason.START_FAILED, told=told or view.reason or "its container never started")
    if code > _SIGNALLED:
        outside = FailureClass.INFRASTRUCTURE if code in _FROM_OUTSIDE else FailureClass.APPLICATION
        return _cause(view, outside, Reason.PROCESS_KILLED, told=told or f"ended by signal {code - _SIGNALLED}")
    return _cause(view, FailureClass.APPLICATION, Reason.USER_ERROR, told=told or f"exit code {code}")


def _vanished(label: str, now: datetime) -> Cause:
    return Cause(FailureClass.PREEMPTION, Reason.REPLICA_LOST, f"{label} was removed, and not by Muster", label, now)


def _cause(view: ReplicaView, failure_class: FailureClass, reason: Reason, *, told: str) -> Cause:
    when = view.finished or view.deleting or view.created
    return Cause(failure_class, reason, told[:LONGEST_MESSAGE], view.label, milliseconds(when))
