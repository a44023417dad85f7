"""From how the processes ended to what that means: the supervisor's code and the message. Pure.

The first of these that holds decides:

1. A process had failed before anybody asked the replica to stop: the first such failure. One that only complains of a
   lost peer gives way to any other, since a peer's death is heard of before its parent can reap it.
2. A stop was asked for, or a `Stop` commit or an end with 21 or 22 shows that the rest of the world was asked to:
   - a commit for that reason was reported, or a process ended with 21 and all others with 21 or 0: 21;
   - a process ended otherwise, or had to be killed, but the last step is saved or a `Final` commit was reported (what it was busy
     with was an evaluation, say): 21;
   - all processes ended with 0: the bundled trainer ended by itself, 0. A user's script or command is believed only
     when it reported a `Final` commit: many programs exit with 0 when told to stop, and a job wrongly held for
     finished is lost, while one wrongly held for preempted is merely started once more. So 22;
   - else 22.
3. All processes ended with 0: 0.

The contract's exit codes count only from a process that speaks the contract: the bundled trainer, and a program that has
sent at least one event of the contract. Another program's 22 is just its 22 (`curl -f` ends with it). A failure means what
its code says where that code counts. Any other code, and SIGABRT (how the frameworks' watchdogs end a process), means 20
where the end of the output shows that a peer was lost; else a code is 10, and a signal n is 128+n. Shells end with 128+n
when their child was ended by signal n, and torchrun's summary names the signal that a worker was ended by: both count as
that signal.

A process that ends in its first seconds because a module, a file or a command is missing, or because it does not take its
arguments, is 11: no retry mends that (`misfit.py`).
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster_trainer.contract import SIGNAL_BASE, ExitCode
from muster_trainer.supervisor.misfit import misfit
from muster_trainer.supervisor.output_tail import Reading, read_tail
from muster_trainer.supervisor.signals import signal_name

STOPPED = (ExitCode.PREEMPTED, ExitCode.PREEMPTED_NOT_SAVED)
SIGNALS_OF_SHELLS = range(SIGNAL_BASE + 1, SIGNAL_BASE + 32)


@dataclass(frozen=True)
class End:
    """How one process ended, in the order in which they did. `asked` says that we had asked it to end before.

    `tail` is the end of its output, `error` its last `error` event. `starting`: the user's own program, in the first attempt, ended
    right after its start and had reported nothing. `speaks` says that it speaks the contract.
    """

    rank: int
    exit_code: int | None
    signal: int | None
    asked: bool
    tail: Sequence[str]
    error: Mapping[str, Any] | None = None
    starting: bool = False
    speaks: bool = False

    @property
    def code(self) -> int | None:
        """The contract's code that it ended with; None where it ended with none."""
        counts = self.exit_code == ExitCode.COMPLETED or (self.speaks and self.exit_code in set(ExitCode))
        return self.exit_code if counts else None


@dataclass(frozen=True)
class Outcome:
    """`culprit` is the end that decided, None where all is well."""

    code: int
    message: str
    culprit: End | None


def judge(ends: Sequence[End], *, stop_asked: bool, overdue: bool, own_program: bool, commits: frozenset[str], saved: bool) -> Outcome:
    """`commits` are the reasons of the commits reported since the stop was asked, or ever with reason `Stop` or
    `Final`; `overdue` says that processes were killed when the grace was over; `own_program` that the user's script
    or command ran; `saved` that the last step told is in the newest commit."""
    failures = [end for end in ends if not end.asked and meaning(end) not in (ExitCode.COMPLETED, *STOPPED)]
    if failures:
        culprit = next((end for end in failures if meaning(end) != ExitCode.PEER_LOST), failures[0])
        return Outcome(meaning(culprit), describe(culprit), culprit)
    codes = {end.code for end in ends}
    if stop_asked or "Stop" in commits or codes & set(STOPPED):
        return _stopped(ends, codes, overdue=overdue, own_program=own_program, commits=commits, saved=saved)
    return Outcome(ExitCode.COMPLETED, "completed", None)


def _stopped(
    ends: Sequence[End], codes: set[int | None], *, overdue: bool, own_program: bool, commits: frozenset[str], saved: bool
) -> Outcome:
    odd = next((end for end in ends if end.code not in (ExitCode.COMPLETED, ExitCode.PREEMPTED)), None)
    if "Stop" in commits or (odd is not None and (saved or "Final" in commits)):
        return Outcome(ExitCode.PREEMPTED, "asked to stop, and saved", None)
    if ExitCode.PREEMPTED in codes and odd is None:
        return Outcome(ExitCode.PREEMPTED, "asked to stop, with nothing left to save", None)
    if odd is not None:
        why = "killed when the grace period was over" if overdue else describe(odd)
        return Outcome(ExitCode.PREEMPTED_NOT_SAVED, f"asked to stop, and did not save: {why}", odd)
    if not own_program or "Final" in commits:
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
        return end.code
    code = end.exit_code or 0
    reading = read_tail(end.tail)
    if _misfit(end, reading):
        return ExitCode.BAD_CONFIGURATION
    number = code - SIGNAL_BASE if code in SIGNALS_OF_SHELLS else end.signal or reading.killed_by
    if number in (None, signal.SIGABRT) and reading.peer_lost:
        return ExitCode.PEER_LOST
    return ExitCode.USER_ERROR if number is None else SIGNAL_BASE + number


def _misfit(end: End, reading: Reading) -> str | None:
    """What keeps the program from running at all, where that is certain."""
    return misfit(reading, end.exit_code) if end.starting and end.exit_code is not None else None


def describe(end: End) -> str:
    """One sentence: which rank, how it ended, and its own words where there are any. Under torchrun it is the rank that failed first."""
    reading = read_tail(end.tail)
    rank = end.rank if reading.root_cause is None or reading.root_cause.rank is None else reading.root_cause.rank
    said = str(end.error["message"]) if end.error and end.error.get("message") else _misfit(end, reading) or reading.message
    if end.signal is not None:
        how = f"ended by signal {end.signal} ({signal_name(end.signal)})"
        return f"rank {rank}: {how}, last output: {said}" if said else f"rank {rank}: {how}"
    if said and end.code is None and end.exit_code in set(ExitCode):  # a reader who knows the contract must not read its meaning here
        return f"rank {rank}: ended with exit code {end.exit_code} of its own, last output: {said}"
    return f"rank {rank}: {said or f'ended with exit code {end.exit_code} and said nothing'}"
