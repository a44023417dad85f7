"""Failure classes: the class and reason of a replica's end, and the root cause of a broken world.

An exit code has a meaning only together with the termination message of the supervisor. Without it, an exit code such as 20 comes from the
training program.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from muster.api.status import AttemptRecord, FailureClass, Member, Reason, Stall, TrainingJobStatus
from muster.api.times import milliseconds
from muster.lifecycle.facts.devices import DEVICE_TAINT, named, with_unhealthy_devices
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.same_error import same_error
from muster.lifecycle.facts.silence import is_silent, is_silent_after_the_end, lost_replicas
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster_contract.codes import SIGNAL_BASE, ExitCode, finer_reason, signal_name
from muster_contract.reports import TerminationMessage

LONGEST_MESSAGE = 2048

_FAILURES = {code: code.failure_class for code in ExitCode if code.failure_class is not None}
_PREEMPTED = frozenset({ExitCode.PREEMPTED, ExitCode.PREEMPTED_NOT_SAVED})
_FROM_OUTSIDE = frozenset({SIGNAL_BASE + 9, SIGNAL_BASE + 15})
_STOPPED = _PREEMPTED | _FROM_OUTSIDE
"""The codes in the termination message of a replica that was stopped on request."""

_POD_REASONS = {
    "Evicted": Reason.EVICTED,
    "Preempting": Reason.DISRUPTED,
    "NodeLost": Reason.NODE_LOST,
    "NodeShutdown": Reason.NODE_LOST,
    "Shutdown": Reason.NODE_LOST,
    "Terminated": Reason.NODE_LOST,
}
"""Reasons that the kubelet and the node controller set on pods that they remove. The last three come from graceful node shutdown."""

DEVICE_REASONS = frozenset({Reason.DEVICE_UNHEALTHY, Reason.DEVICE_TAINTED})
_FAILED_INIT = frozenset({Reason.INIT_CONTAINER_FAILED, Reason.SUPERVISOR_NOT_COPIED})
_EXPLAINED_BY_A_DEVICE = frozenset(
    {Reason.USER_ERROR, Reason.LOSS_NOT_FINITE, Reason.PEER_LOST, Reason.PROCESS_KILLED, Reason.START_FAILED, *_FAILED_INIT}
)
"""Reasons that an unhealthy device explains. Frameworks raise an ordinary error when they lose a device."""

_PRECEDENCES = {Reason.NODE_LOST: 3, Reason.PEER_LOST: 4}
"""Among the failures that are no preemption, the reasons that explain less than other reasons."""

_PRECISION = timedelta(seconds=1)
"""Kubernetes states the ends of containers in whole seconds, and reports have fractions of them."""


@dataclass(frozen=True)
class Cause:
    """Why a replica, or a whole attempt, ended."""

    failure_class: FailureClass
    reason: Reason
    message: str
    replica: str
    time: datetime
    stall: Stall | None = None
    exit_code: int | None = None
    """Exit code of the process that failed first, or of the container."""
    signal: str | None = None
    """Name of the signal that ended this process."""

    @property
    def precedence(self) -> tuple[int, datetime, str]:
        """A lower value explains more. A preemption comes first, then a failed device, then the earliest failure. Silence comes after
        these, because a silent replica may only be cut off from the operator. A lost peer comes last."""
        if self.failure_class is FailureClass.PREEMPTION:
            return 0, self.time, self.replica
        if self.reason in DEVICE_REASONS:
            return 1, self.time, self.replica
        return _PRECEDENCES.get(self.reason, 2), self.time, self.replica


def root_cause(causes: Iterable[Cause]) -> Cause | None:
    """The cause that explains the others."""
    return min(causes, key=lambda cause: cause.precedence, default=None)


def cause_of_break(status: TrainingJobStatus, facts: Facts) -> Cause | None:
    """The root cause that ends the open attempt; None if its world is whole."""
    replicas = {member.replica for member in status.world.members} if status.world else set()
    members = (view for view in facts.trainers(status.attempt) if view.replica in replicas)  # Muster itself removes the other replicas
    causes = [_since_last_report(cause, view, facts) for view in members if (cause := cause_of_end(view, stopped=False))]
    causes += [replace(_of_device(view), time=since) for view, since in with_unhealthy_devices(status, facts)]
    lost = lost_replicas(status, facts)
    has_peers = len(lost) < sum(facts.strategy.is_in_world(role) for role, _ in replicas)
    context = "while its peers stand still" if has_peers else "like all replicas on its node, while a spare on another node reports"
    causes += [_silence(view, context) for view in lost]
    causes += [_loss(member.label, facts.stamp) for member in _lost_members(status, facts)]
    return root_cause(causes)


def corrected_cause(record: AttemptRecord, facts: Facts) -> Cause:
    """The root cause of an attempt that has ended: the one on record, or one that explains more and is visible only now. The same error of
    another replica in the same second explains nothing more.

    A replica that has moved on to a later attempt still reports how it ended in this attempt.
    """
    views = [view for view in (*facts.replicas, *facts.orphaned) if facts.strategy.is_in_world(view.role)]
    ends = ((_cause_in(view, record.attempt), view) for view in views)
    observed = (_since_last_report(cause, view, facts) for cause, view in ends if cause)
    recorded = _recorded(record)
    others = (cause for cause in (*observed, *_on_silent_nodes(record.attempt, facts)) if not _is_repeated(cause, recorded))
    return min((recorded, *others), key=lambda cause: cause.precedence)


def _is_repeated(cause: Cause, recorded: Cause) -> bool:
    """Whether another replica has the error on record in the same second, so that their times do not tell which came first."""
    kinds = [(each.failure_class, each.reason) for each in (cause, recorded)]
    is_other = cause.replica != recorded.replica and kinds[0] == kinds[1]
    return is_other and abs(cause.time - recorded.time) < _PRECISION and same_error(cause.message, recorded.message)


def cause_of_end(view: ReplicaView, *, stopped: bool) -> Cause | None:
    """Why this replica ended or must end. None if its end explains nothing. `stopped`: Muster has stopped its whole attempt."""
    if view.phase is ReplicaPhase.SUCCEEDED:
        return None
    if not (view.over or view.deleting):
        return None
    disruption = _disruption_cause(view)
    if disruption:
        return disruption
    if view.deleting is not None and not _ended_before_deletion(view, stopped=stopped):
        return _cause_of_deletion(view, stopped=stopped)
    termination = view.termination
    about = view.about(termination.attempt) if termination else None
    if about is not None and about < view.attempt:  # no process of its attempt has started
        message = f"{view.label} ended before attempt {view.attempt} began"
        return _cause(view, FailureClass.PREEMPTION, Reason.PREEMPTED_NOT_SAVED, message=message)
    return _own_end(view)


def has_failed_by_itself(view: ReplicaView, *, stopped: bool) -> bool:
    """Whether this replica failed, and neither Muster nor Kubernetes ended it. `stopped`: see `cause_of_end`."""
    termination = termination_of(view)
    if not view.over or (termination is not None and termination.code == ExitCode.COMPLETED):
        return False
    cause = cause_of_end(view, stopped=stopped)
    dismissed = (
        termination is not None and termination.exit_code is None and termination.signal is None and termination.code == ExitCode.PEER_LOST
    )
    return cause is not None and cause.failure_class is not FailureClass.PREEMPTION and not dismissed


def termination_of(view: ReplicaView) -> TerminationMessage | None:
    """The termination message about the replica's attempt, from its pod or else from its last report."""
    reported = view.report.termination if view.report else None
    return view.termination or (reported if reported and view.about(reported.attempt) in (None, view.attempt) else None)


def reported_termination(attempt: int, view: ReplicaView) -> TerminationMessage | None:
    """The termination message in the newest report of the replica, if it is about this attempt. The replica may have moved on since."""
    termination = view.report.termination if view.report else None
    return termination if termination is not None and view.about(termination.attempt) == attempt else None


def last_terminated_step(views: Iterable[ReplicaView]) -> int | None:
    """The highest step in the replicas' termination messages."""
    steps = (termination.step for view in views if (termination := termination_of(view)))
    return max((step for step in steps if step is not None and step >= 0), default=None)


def last_step_of(attempt: int, facts: Facts) -> int | None:
    """The highest step in termination messages about the attempt. A replica that has moved on to a later attempt still reports its own."""
    views = [view for view in facts.replicas if view.attempt > attempt and facts.strategy.is_in_world(view.role)]
    moved_on = [termination for view in views if (termination := reported_termination(attempt, view))]
    steps = [termination.step for termination in moved_on if termination.step is not None and termination.step >= 0]
    return max([step for step in (last_terminated_step(facts.trainers(attempt)), *steps) if step is not None], default=None)


def terminated_loss(views: Iterable[ReplicaView], step: int) -> str | None:
    """The loss of that step in the replicas' termination messages."""
    every = (termination_of(view) for view in views)
    return next((termination.loss for termination in every if termination and termination.step == step and termination.loss), None)


def _recorded(record: AttemptRecord) -> Cause:
    assert record.failure_class is not None
    assert record.reason is not None
    assert record.failed_time is not None
    return Cause(
        failure_class=record.failure_class,
        reason=record.reason,
        message=record.message,
        replica=record.replica or "",
        time=record.failed_time,
        stall=record.stall,
        exit_code=record.exit_code,
        signal=record.signal,
    )


def _on_silent_nodes(attempt: int, facts: Facts) -> list[Cause]:
    """The causes of replicas on nodes that do not answer: silent supervisors, and replicas that exist long after their grace period."""
    orphaned = (view for view in facts.orphaned if view.attempt == attempt and facts.strategy.is_in_world(view.role))
    views = [view for view in (*facts.trainers(attempt), *orphaned) if not view.over]
    silent = [view for view in views if facts.replaces_at_once and is_silent_after_the_end(view, facts)]
    are_silent = {view.uid for view in silent}  # to compare whole views would take quadratic time
    late = facts.now - timedelta(seconds=facts.policy.overdue_seconds)
    overdue = [view for view in views if view.uid not in are_silent and view.due is not None and view.due <= late]
    message = "did not end within its grace period, because its node does not answer"
    return [
        *(_silence(view, "and does not answer") for view in silent),
        *(_cause(view, FailureClass.PREEMPTION, Reason.NODE_LOST, message=f"{view.name} {message}") for view in overdue),
    ]


def _silence(view: ReplicaView, context: str) -> Cause:
    """The cause of a silent replica. The replica counts as lost since its last report."""
    time = milliseconds(view.reported or view.created)
    message = f"{view.name} has not reported since {time:%H:%M:%S} UTC, {context}"
    return Cause(FailureClass.INFRASTRUCTURE, Reason.NODE_LOST, message, view.label, time)


def _since_last_report(cause: Cause, view: ReplicaView, facts: Facts) -> Cause:
    """The cause with the time of the last report, because Kubernetes evicts pods long after their node was lost."""
    if view.over or view.reported is None or view.reported >= cause.time or not is_silent(view, facts):
        return cause
    return replace(cause, time=milliseconds(view.reported))


def _cause_in(view: ReplicaView, attempt: int) -> Cause | None:
    """How a replica ended in an attempt that Muster has stopped. A pod that is being deleted joins no later attempt, but its supervisor may
    have reported that attempt before, and with it how this one ended."""
    cause = cause_of_end(view, stopped=True) if view.attempt == attempt else None
    reported = view.about(view.report.attempt) if view.report else None
    if cause is None and (view.attempt != attempt or (reported is not None and reported > attempt)):
        return _cause_in_termination(view, attempt)
    return cause


def _cause_in_termination(view: ReplicaView, attempt: int) -> Cause | None:
    """How a replica ended in an earlier attempt, if its termination message is about it. Its devices were healthy then, because otherwise
    the replica would not have moved on."""
    termination = reported_termination(attempt, view)
    if termination is None or termination.code == ExitCode.COMPLETED:
        return None
    return _own_end(replace(view, termination=termination, finished=view.reported, exit_code=None, oom_killed=False, unhealthy_devices=()))


def _ended_before_deletion(view: ReplicaView, *, stopped: bool) -> bool:
    """Compares the clocks of two machines. If Muster has stopped the replica, an end that a stop causes is not a failure of the replica."""
    if view.oom_killed:  # a stop never causes this, and times in whole seconds would not show what came first
        return True
    termination = termination_of(view)
    if stopped and (view.exit_code in _FROM_OUTSIDE or (termination is not None and termination.code in _STOPPED)):
        return False
    return view.finished is not None and view.deleting is not None and view.finished < view.deleting


def _disruption_cause(view: ReplicaView) -> Cause | None:
    if view.disruption == DEVICE_TAINT:
        return _cause(view, FailureClass.INFRASTRUCTURE, Reason.DEVICE_TAINTED, message=view.message or view.disruption)
    if view.disruption is not None:
        return _cause(view, FailureClass.PREEMPTION, Reason.DISRUPTED, message=f"{view.disruption}: {view.message}".rstrip(": "))
    if view.reason in _POD_REASONS:
        return _cause(view, FailureClass.PREEMPTION, _POD_REASONS[view.reason], message=view.message or view.reason)
    return None


def _cause_of_deletion(view: ReplicaView, *, stopped: bool) -> Cause | None:
    if stopped:  # Muster deletes them
        return None
    termination = termination_of(view)
    reason = Reason(ExitCode(termination.code).reason) if termination and termination.code in _PREEMPTED else Reason.POD_DELETED
    message = termination.message if termination and termination.message else "something other than Muster deleted it"
    cause = _cause(view, FailureClass.PREEMPTION, reason, message=message)
    return replace(cause, time=milliseconds(view.deleting or view.created))


def _own_end(view: ReplicaView) -> Cause:
    termination = termination_of(view)
    code = termination.code if termination and termination.code else view.exit_code
    killed_by = signal_name(code - SIGNAL_BASE) if code and code > SIGNAL_BASE else None
    signal = termination.signal or killed_by if termination else killed_by
    exit_code = termination.exit_code if termination and termination.exit_code is not None else view.exit_code
    cause = _own_cause(view, termination, code)
    if view.unhealthy_devices and cause.reason in _EXPLAINED_BY_A_DEVICE:
        cause = _of_device(view, cause.message)
    return replace(cause, exit_code=None if signal else exit_code, signal=signal)


def _of_device(view: ReplicaView, message: str = "") -> Cause:
    text = f"{named(view)}; {message}" if message else named(view)
    return _cause(view, FailureClass.INFRASTRUCTURE, Reason.DEVICE_UNHEALTHY, message=text)


def _own_cause(view: ReplicaView, termination: TerminationMessage | None, code: int | None) -> Cause:
    message = termination.message if termination and termination.message else view.message
    if view.oom_killed:
        remedy = f"raise resources.limits.memory of its container in spec.roles.{view.role}.template"
        text = f"the container ran out of memory: {remedy}" + (f" ({message})" if message else "")
        return _cause(view, FailureClass.APPLICATION, Reason.OUT_OF_MEMORY, message=text)
    if termination and termination.code in _FAILURES:
        exit_code = ExitCode(termination.code)
        reason = finer_reason(exit_code, termination.reason) or exit_code.reason
        return _cause(view, _FAILURES[exit_code], Reason(reason), message=message or reason)
    return _exited(view, code, message)


def _exited(view: ReplicaView, code: int | None, message: str) -> Cause:
    if code is None:
        message = message or view.reason or "its container never started"
        reason = Reason(view.reason) if view.reason in _FAILED_INIT else Reason.START_FAILED
        return _cause(view, FailureClass.INFRASTRUCTURE, reason, message=message)
    if code > SIGNAL_BASE:
        failure_class = FailureClass.INFRASTRUCTURE if code in _FROM_OUTSIDE else FailureClass.APPLICATION
        return _cause(view, failure_class, Reason.PROCESS_KILLED, message=message or f"ended by signal {code - SIGNAL_BASE}")
    return _cause(view, FailureClass.APPLICATION, Reason.USER_ERROR, message=message or f"exit code {code}")


def _lost_members(status: TrainingJobStatus, facts: Facts) -> list[Member]:
    """Only a live observation proves a loss."""
    return facts.missing_members(status) if facts.live else []


def _loss(label: str, now: datetime) -> Cause:
    return Cause(FailureClass.PREEMPTION, Reason.REPLICA_LOST, "something other than Muster removed it", label, now)


def _cause(view: ReplicaView, failure_class: FailureClass, reason: Reason, *, message: str) -> Cause:
    time = view.finished or view.deleting or view.created
    return Cause(failure_class, reason, message[:LONGEST_MESSAGE], view.label, milliseconds(time))
