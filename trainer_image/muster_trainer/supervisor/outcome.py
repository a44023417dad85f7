"""From how the processes ended to what that means: the supervisor's code and the message. Pure.

The first of these that holds decides:

1. A process failed before the replica was asked to stop: the first such failure. A failure that reports a lost peer gives way to any
   other, because a peer may report the loss before the supervisor has reaped the process that was lost.
2. The replica was asked to stop, or a `Stop` commit or an end with 21 or 22 shows that the rest of the world was:
   - a commit for that reason was reported, or a process ended with 21 and all others with 21 or 0: 21;
   - a process ended otherwise, or was killed, but the last step is saved, no step was done, or a `Final` commit was reported. It was
     busy with its start or an evaluation, for example: 21;
   - all processes ended with 0: the bundled trainer has completed, 0. A user's script or command has completed only if it reported a
     `Final` commit, because many programs exit with 0 when they are asked to stop. A job that is taken for completed by mistake is
     lost. One that is taken for preempted is only started again. So 22;
   - else 22.
3. All processes ended with 0: 0.

The contract's exit codes count only from a process that uses the contract: the bundled trainer, and a program that has sent at least
one event of the contract. The 22 of another program is only its own 22 (`curl -f` ends with it). A failure means what its code says, if
that code counts. A 10 whose `error` event names a lost peer is an exception, and means 20. Any other code, and SIGABRT (with which the
frameworks' watchdogs end a process), means 20 if the end of the output shows that a peer was lost. Otherwise a code is 10, and a signal n
is 128+n. Shells end with 128+n if signal n ended their child, and torchrun's summary names the signal that ended a worker. Both count as
that signal.

A program that ends with an exception of `muster_training` is judged as if it had ended with the exception's code.

A process that ends in its first seconds because a module, a file or a command is missing, or because its arguments are wrong, is 11,
because no retry repairs that (`permanent_failure.py`).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from muster_contract.codes import SIGNAL_BASE, ExitCode, signal_name
from muster_contract.errors import BadConfiguration, CheckpointDamaged, StorageUnavailable
from muster_contract.events import CommitReason, ErrorEvent
from muster_trainer.supervisor.output_tail import LONGEST_LINE, NEVER, Reading, read_tail
from muster_trainer.supervisor.permanent_failure import permanent_failure

_LIBRARY_ERRORS = (BadConfiguration, CheckpointDamaged, StorageUnavailable)
_LIBRARY_ERROR = re.compile(rf"muster_contract\.errors\.({'|'.join(kind.__name__ for kind in _LIBRARY_ERRORS)}): ")
"""Exceptions of `muster_training` that ended a program, as Python prints them."""

STOPPED = (ExitCode.PREEMPTED, ExitCode.PREEMPTED_NOT_SAVED)
SIGNALS_OF_SHELLS = range(SIGNAL_BASE + 1, SIGNAL_BASE + 32)


@dataclass(frozen=True)
class End:
    """How one process ended. `requested`: the supervisor had asked it to end.

    `tail` is the end of its output, and `error` its last `error` event. `starting`: the user's own program, in the first attempt, ended
    right after its start and had reported nothing. `uses_contract`: its exit codes are those of the contract. `peer_lost` matches a line
    of the output of a process that lost a peer.
    """

    rank: int
    exit_code: int | None
    signal: int | None
    requested: bool
    tail: Sequence[str]
    error: ErrorEvent | None = None
    starting: bool = False
    uses_contract: bool = False
    peer_lost: re.Pattern[str] = NEVER

    @property
    def code(self) -> int | None:
        """The contract's code that it ended with; None if it ended with none."""
        counts = self.exit_code == ExitCode.COMPLETED or (self.uses_contract and self.exit_code in set(ExitCode))
        return self.exit_code if counts else None

    @cached_property
    def reading(self) -> Reading:
        """What the end of the output shows."""
        return read_tail(self.tail, self.peer_lost)

    @cached_property
    def permanent_failure(self) -> str | None:
        """What keeps the program from running at all, if that is certain."""
        return permanent_failure(self.reading, self.exit_code) if self.starting and self.exit_code is not None else None


@dataclass(frozen=True)
class Outcome:
    """`culprit` is the end that decided; None if nothing failed."""

    code: int
    message: str
    culprit: End | None


def judge(
    ends: Sequence[End], *, stop_requested: bool, overdue: bool, own_program: bool, commits: frozenset[CommitReason], saved: bool
) -> Outcome:
    """The outcome of all ends, in the order in which the processes ended.

    `commits` are the reasons of the commits since the stop was requested, and of all with reason `Stop` or `Final`. `overdue`: processes
    were killed when the grace period was over. `own_program`: the user's script or command ran. `saved`: no step is lost, because the
    newest commit has the last one, or none was done.
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
        "asked to stop, and ended with 0 without a commit event: whether it finished or saved is not known",
        ends[0] if ends else None,
    )


def meaning(end: End) -> int:
    """The contract's code for how a process ended."""
    if end.code is not None:
        return ExitCode.PEER_LOST if _reports_lost_peer(end) else end.code
    code = end.exit_code or 0
    if end.permanent_failure:
        return ExitCode.BAD_CONFIGURATION
    if end.exit_code == 1 and (raised := _LIBRARY_ERROR.match(end.reading.message)):
        return next(kind.code for kind in _LIBRARY_ERRORS if kind.__name__ == raised[1])
    number = code - SIGNAL_BASE if code in SIGNALS_OF_SHELLS else end.signal or end.reading.killed_by
    if number in (None, signal.SIGABRT) and end.reading.peer_lost:
        return ExitCode.PEER_LOST
    return ExitCode.USER_ERROR if number is None else SIGNAL_BASE + number


def _reports_lost_peer(end: End) -> bool:
    """Whether a process that reports an error of the training code names the framework's own error after the loss of a peer."""
    if end.code != ExitCode.USER_ERROR or end.error is None:
        return False
    return end.peer_lost.search(end.error.message[:LONGEST_LINE]) is not None


def describe(end: End) -> str:
    """One sentence: the rank, how it ended, and its own message, if any. Under torchrun it is the rank that failed first."""
    root_cause = end.reading.root_cause
    rank = end.rank if root_cause is None or root_cause.rank is None else root_cause.rank
    message = (end.error.message if end.error else "") or end.permanent_failure or end.reading.message
    number = end.signal or end.reading.killed_by
    if number is not None:
        how = f"ended by signal {number} ({signal_name(number)})"
        return f"rank {rank}: {how}, last output: {message}" if message else f"rank {rank}: {how}"
    if message and end.code is None and end.exit_code in set(ExitCode):  # a reader who knows the contract must not read its meaning here
        return f"rank {rank}: ended with exit code {end.exit_code} of its own, last output: {message}"
    return f"rank {rank}: {message or f'ended with exit code {end.exit_code} and printed nothing'}"
