"""The time between two attempts. The processes of one have ended, and the replica waits for the world of the next."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Mapping
from dataclasses import replace

from muster_contract.codes import ExitCode, reason_of, signal_name
from muster_contract.reports import Report, TerminationMessage
from muster_contract.run_state import RunState, with_state
from muster_trainer.supervisor.processes import oom_kills
from muster_trainer.supervisor.reporting import Reporter
from muster_trainer.supervisor.signals import SignalInbox
from muster_trainer.supervisor.termination import termination_of

SILENCE = 300.0  # seconds without a reply after which the replica ends; long, because the operator may be restarted or replaced
FIRST_REPLY = 10.0  # seconds for the first reply; without one, there may be no operator that restarts in place
TURN = 1.0

_FINAL = frozenset({ExitCode.COMPLETED, ExitCode.BAD_CONFIGURATION})
_STOPPED = frozenset({ExitCode.COMPLETED, ExitCode.PREEMPTED, ExitCode.PREEMPTED_NOT_SAVED})


class Succession:
    """The wait for the next attempt. `termination` and `report` are the last ones of the attempt that has ended. `standby` is True if
    there was no attempt yet."""

    def __init__(
        self, reporter: Reporter, inbox: SignalInbox, termination: TerminationMessage, report: Report, *, standby: bool = False
    ) -> None:
        self._reporter = reporter
        self._inbox = inbox
        self._termination = termination
        self._report = report
        self._attempt = report.attempt
        self._superseded = standby or (reporter.reply is not None and reporter.reply.attempt > self._attempt)

    @property
    def termination(self) -> TerminationMessage:
        """The termination message of the replica if it ends now.

        If it waits for a later attempt, the message is about that attempt, in which it has done nothing. If its processes were ended for a
        later attempt, they have not completed the job, but their commits are valid.
        """
        if not self._superseded or self._termination.code not in _STOPPED:
            return self._termination
        if self._attempt > self._report.attempt:
            message = f"ended before attempt {self._attempt} began"
            return termination_of(ExitCode.PREEMPTED_NOT_SAVED, message, self._attempt)
        if self._termination.code == ExitCode.COMPLETED:
            code = ExitCode.PREEMPTED_NOT_SAVED
            return replace(self._termination, code=int(code), reason=reason_of(code), message="ended because a later attempt begins")
        return self._termination

    def await_world(self) -> Mapping[str, str] | None:
        """Waits for the next attempt. Returns the environment of its processes, or None if the replica must end."""
        if not self._is_to_wait():
            return None
        self._update_report()
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox, selectors.EVENT_READ)
            while self._may_continue(began):
                reply = self._reporter.reply
                if reply is not None and reply.world is not None and reply.attempt >= max(self._attempt, self._report.attempt + 1):
                    return reply.world
                if reply is not None and reply.attempt > self._attempt:
                    self._attempt = reply.attempt
                    self._update_report()
                selector.select(TURN)
                self._inbox.drain()
        return None

    def _is_to_wait(self) -> bool:
        if self._inbox.stops or not self._reporter.is_active:
            return False
        if self._termination.signal == signal_name(signal.SIGKILL) and oom_kills():  # ends, so that the kubelet reports OOMKilled
            return False
        return self._superseded or self._termination.code not in _FINAL

    def _may_continue(self, began: float) -> bool:
        """Whether a next attempt is still possible."""
        reply, replied, now = self._reporter.reply, self._reporter.replied, time.monotonic()
        if self._inbox.stops or (reply is not None and reply.end):
            return False
        if replied is None:
            return now < began + FIRST_REPLY
        return reply is not None and now < replied + SILENCE

    def _update_report(self) -> None:
        """Reports that no process of an older attempt runs, and the end of the previous attempt. If the end was requested because a later
        attempt begins, it is no preemption, and only the last step counts."""
        termination: TerminationMessage | None = self._termination
        if self._superseded and self._termination.code in _STOPPED:
            ended = termination_of(ExitCode.PEER_LOST, "ended because a later attempt begins", self._termination.attempt)
            termination = (
                None if self._termination.step is None else replace(ended, step=self._termination.step, loss=self._termination.loss)
            )
        report = self._report
        if self._attempt != report.attempt:
            report = with_state(replace(report, processes=(), idle_seconds=None), RunState())
        self._reporter.update(replace(report, attempt=self._attempt, waiting=True, termination=termination))
