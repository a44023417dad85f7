"""Decides the exit code and the message of the supervisor from the ends of its processes. The functions are pure.

These rules are tried in order:

1. A process failed before the replica was asked to stop. The code is that of the first failure. However, a failure that reports a lost
   peer is used only if there is no other failure, because a peer may report the loss before the supervisor has reaped the lost process.
2. The replica was asked to stop, or the rest of the world was. A `Stop` commit, or an end with 21 or 22, shows the latter.
   - A `Stop` commit was reported, or a process ended with 21 and all others with 21 or 0: 21.
   - A process ended otherwise or was killed, for example during its start or an evaluation. But the last step is saved, no step was
     done, or a `Final` commit was reported: 21.
   - All processes ended with 0. The bundled trainer has then completed: 0. A user's script or command has completed only if it
     reported a `Final` commit, because many programs exit with 0 when they are asked to stop. If it reported another commit since the
     stop: 21. Otherwise: 22. If this is a mistake, the job is only started again. If a stopped job counted as completed, the rest of
     its training would be lost.
   - Otherwise: 22.
3. All processes ended with 0: 0.

The exit codes of the contract have their meaning only for a process that uses the contract. This is the bundled trainer, or a program that
has sent an event of the contract. For another program, 22 is a code of its own (`curl -f` ends with it). For a process that uses the
contract, a failure has the meaning of its code, but 10 means 20 if the `error` event names a lost peer. Other codes, and SIGABRT (with
which the watchdogs of frameworks end a process), mean 20 if the end of the output shows that a peer was lost. Otherwise a code means 10,
and a signal n means 128+n. If a shell ends with 128+n, or torchrun's summary names the signal n of a worker, this also counts as signal n.

The bundled trainer sends the event `completed` before it ends with 0. Without that event, the user's code has ended it, and 0 is no code
of the contract either.

If an exception of `muster_training` ends a program, the code of its `error` event counts.

If a process ends in its first seconds because a module, a file or a command is missing, or because its arguments are wrong, the code is
11, because a retry does not help (`permanent_failure.py`).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from muster_contract.codes import SIGNAL_BASE, ExitCode, finer_reason, reason_of, signal_name
from muster_contract.events import CommitReason, ErrorEvent
from muster_trainer.supervisor.output_tail import LONGEST_LINE, NEVER, Reading, read_tail
from muster_trainer.supervisor.permanent_failure import permanent_failure

_REPORTED = (ExitCode.BAD_CONFIGURATION, ExitCode.CHECKPOINT_DAMAGED, ExitCode.STORAGE_UNAVAILABLE)
"""The codes that count if an `error` event has them and the process ended with 1, as Python does after an exception."""
STOPPED = (ExitCode.PREEMPTED, ExitCode.PREEMPTED_NOT_SAVED)
SIGNALS_OF_SHELLS = range(SIGNAL_BASE + 1, SIGNAL_BASE + 32)


def is_early(exit_code: int | None, *, completed: bool) -> bool:
    """Whether a process of the bundled trainer ended with 0 before its work was done. `completed`: it has sent that event."""
    return exit_code == ExitCode.COMPLETED and not completed


@dataclass(frozen=True)
class End:
    """The end of one process. `requested` is True if the supervisor had asked it to end.

    `tail` is the end of its output, and `error` is its last `error` event. `is_early` is True if the bundled trainer ended with 0 before
    its work was done, because the user's code ended it. `starting` is True if it was the user's own program in the first attempt, and ended
    right after its start without any report. `uses_contract` is True if its exit codes are those of the contract. `peer_lost` matches a
    line that a process prints if it has lost a peer.
    """

    rank: int
    exit_code: int | None
    signal: int | None
    requested: bool
    tail: Sequence[str]
    error: ErrorEvent | None = None
    is_early: bool = False
    starting: bool = False
    uses_contract: bool = False
    peer_lost: re.Pattern[str] = NEVER

    @property
    def code(self) -> int | None:
        """The code of the contract with which it ended; None if it did not."""
        counts = self.exit_code == ExitCode.COMPLETED or (self.uses_contract and self.exit_code in set(ExitCode))
        return self.exit_code if counts and not self.is_early else None

    @property
    def failed_rank(self) -> int:
        """The rank of the process that failed. A program that starts ranks by itself reports which of them did."""
        return self.rank if self.error is None or self.error.failed_rank is None else self.error.failed_rank

    @cached_property
    def reading(self) -> Reading:
        """The message and the cause, from the end of the output."""
        return read_tail(self.tail, self.peer_lost)

    @cached_property
    def permanent_failure(self) -> str | None:
        """The reason why the program cannot run at all; None unless that is certain."""
        return permanent_failure(self.reading, self.exit_code) if self.starting and self.exit_code is not None else None


@dataclass(frozen=True)
class Outcome:
    """The result of `judge`. `culprit` is the end that decided it; None if nothing failed."""

    code: int
    message: str
    culprit: End | None

    @property
    def reason(self) -> str:
        """The reason in the termination message. The process that failed may report one that says more than the code."""
        error = self.culprit.error if self.culprit else None
        return finer_reason(self.code, error.reason if error else None) or reason_of(self.code)


def judge(
    ends: Sequence[End], *, stop_requested: bool, overdue: bool, own_program: bool, commits: frozenset[CommitReason], saved: bool
) -> Outcome:
    """The outcome of all ends, in the order in which the processes ended.

    `commits` has the reasons of the commits since the stop was requested, and `Stop` and `Final` also for earlier commits. `overdue` is
    True if processes were killed at the end of the grace period. `own_program` is True if the user's script or command ran. `saved` is
    True if no step is lost, because the newest commit has the last step, or no step was done.
    """
    failures = [end for end in ends if not end.requested and meaning(end) not in (ExitCode.COMPLETED, *STOPPED)]
    if failures:
        culprit = next((end for end in failures if meaning(end) != ExitCode.PEER_LOST), failures[0])
        return Outcome(meaning(culprit), describe(culprit), culprit)
    codes = {end.code for end in ends}
    if stop_requested or CommitReason.STOP in commits or codes & set(STOPPED):
        return _stopped(ends, codes, overdue=overdue, own_program=own_program, commits=commits, saved=saved)
    return Outcome(ExitCode.COMPLETED, "completed", None)


def _stopped(
    ends: Sequence[End], codes: set[int | None], *, overdue: bool, own_program: bool, commits: frozenset[CommitReason], saved: bool
) -> Outcome:
    odd = next((end for end in ends if end.code not in (ExitCode.COMPLETED, ExitCode.PREEMPTED)), None)
    if CommitReason.STOP in commits:
        return Outcome(ExitCode.PREEMPTED, "asked to stop, and saved", None)
    if odd is not None and (saved or CommitReason.FINAL in commits):
        return Outcome(ExitCode.PREEMPTED, "asked to stop, and no step is lost", None)
    if ExitCode.PREEMPTED in codes and odd is None:
        return Outcome(ExitCode.PREEMPTED, "asked to stop, with nothing left to save", None)
    if odd is not None:
        why = "killed when the grace period was over" if overdue else describe(odd)
        return Outcome(ExitCode.PREEMPTED_NOT_SAVED, f"asked to stop, and did not save: {why}", odd)
    if not own_program or CommitReason.FINAL in commits:
        return Outcome(ExitCode.COMPLETED, "completed", None)
    if commits:
        return Outcome(ExitCode.PREEMPTED, "asked to stop, and saved", None)
    return Outcome(
        ExitCode.PREEMPTED_NOT_SAVED,
        "asked to stop, and ended with 0 without a commit event, so it may not have finished or saved",
        ends[0] if ends else None,
    )


def meaning(end: End) -> int:
    """The code of the contract for the end of a process."""
    if end.code is not None:
        return ExitCode.PEER_LOST if _reports_lost_peer(end) else end.code
    code = end.exit_code or 0
    if end.permanent_failure:
        return ExitCode.BAD_CONFIGURATION
    if end.exit_code == 1 and end.error is not None and end.error.code in _REPORTED:
        return end.error.code
    number = code - SIGNAL_BASE if code in SIGNALS_OF_SHELLS else end.signal or end.reading.killed_by
    if number in (None, signal.SIGABRT) and end.reading.peer_lost:
        return ExitCode.PEER_LOST
    return ExitCode.USER_ERROR if number is None else SIGNAL_BASE + number


def _reports_lost_peer(end: End) -> bool:
    """Whether the message of an error of the training code is the framework's message about a lost peer."""
    if end.code != ExitCode.USER_ERROR or end.error is None:
        return False
    return end.peer_lost.search(end.error.message[:LONGEST_LINE]) is not None


def describe(end: End) -> str:
    """A sentence with the rank, its end, and its own message, if any. Under torchrun, it is about the rank that failed first."""
    root_cause = end.reading.root_cause
    rank = end.failed_rank if root_cause is None or root_cause.rank is None else root_cause.rank
    message = (end.error.message if end.error else "") or end.permanent_failure or end.reading.message
    number = end.signal or end.reading.killed_by
    if number is not None:
        how = f"ended by signal {number} ({signal_name(number)})"
        return f"rank {rank}: {how}, last output: {message}" if message else f"rank {rank}: {how}"
    if end.is_early:
        return f"rank {rank}: the training code ended the process before its work was done; Muster ends it, so remove that call"
    if message and end.code is None and end.exit_code in set(ExitCode):  # names the code, which does not have the contract's meaning
        return f"rank {rank}: ended with exit code {end.exit_code} of its own, last output: {message}"
    return f"rank {rank}: {message or f'ended with exit code {end.exit_code} and printed nothing'}"
