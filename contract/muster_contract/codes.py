"""Exit codes: of training processes and supervisors, and of `muster run`."""

from __future__ import annotations

import signal
from enum import IntEnum, StrEnum

SIGNAL_BASE = 128
PROCESS_KILLED = "ProcessKilled"
"""The reason of the code 128+n: signal n ended a process."""


class FailureClass(StrEnum):
    """The kind of a failure. It selects the budget that the restart counts towards."""

    PREEMPTION = "Preemption"
    INFRASTRUCTURE = "Infrastructure"
    APPLICATION = "Application"


class ExitCode(IntEnum):
    """The meaning of the end of a process or a supervisor. The code 128+n (signal n ended a process) is not a member."""

    meaning: str
    of_run: str
    """The meaning of the code from `muster run`."""
    failure_class: FailureClass | None

    def __new__(cls, code: int, meaning: str = "", of_run: str = "", failure_class: FailureClass | None = None) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.of_run = of_run or meaning
        member.failure_class = failure_class
        return member

    COMPLETED = 0, "The training is done."
    USER_ERROR = 10, "The training code failed.", "", FailureClass.APPLICATION
    BAD_CONFIGURATION = 11, "The job cannot run as it is written. It is never retried.", "", FailureClass.APPLICATION
    PEER_LOST = 20, "Another process of the world went away.", "The job used up its budget of restarts.", FailureClass.INFRASTRUCTURE
    PREEMPTED = 21, "The process was asked to stop, and no step is lost: all are saved, or none was done.", "", FailureClass.PREEMPTION
    PREEMPTED_NOT_SAVED = (
        22,
        "The process was asked to stop, and steps since the last commit are lost, or may be lost.",
        "",
        FailureClass.PREEMPTION,
    )
    CHECKPOINT_DAMAGED = 30, "A checkpoint that the user named does not verify.", "", FailureClass.APPLICATION
    STORAGE_UNAVAILABLE = 31, "The checkpoint storage is full or cannot be reached.", "", FailureClass.INFRASTRUCTURE
    INPUT_UNAVAILABLE = 32, "An input cannot be fetched now. Muster retries.", "An input cannot be fetched.", FailureClass.INFRASTRUCTURE
    INPUT_REFUSED = (
        33,
        "An input does not exist, may not be read, or has another form than expected. It is never retried.",
        "",
        FailureClass.APPLICATION,
    )

    @property
    def reason(self) -> str:
        """The name in status and termination messages: `USER_ERROR` is `UserError`."""
        return self.name.title().replace("_", "")


INPUT_NOT_FOUND, INPUT_FORBIDDEN, INPUT_DISK_FULL = "InputNotFound", "InputForbidden", "InputDiskFull"
STORAGE_FULL, STORAGE_READ_ONLY, STORAGE_FORBIDDEN = "StorageFull", "StorageReadOnly", "StorageForbidden"
LOSS_NOT_FINITE = "LossNotFinite"
FINER_REASONS = {
    ExitCode.USER_ERROR: frozenset({LOSS_NOT_FINITE}),
    ExitCode.STORAGE_UNAVAILABLE: frozenset({STORAGE_FULL, STORAGE_READ_ONLY, STORAGE_FORBIDDEN}),
    ExitCode.INPUT_REFUSED: frozenset({INPUT_NOT_FOUND, INPUT_FORBIDDEN}),
    ExitCode.INPUT_UNAVAILABLE: frozenset({INPUT_DISK_FULL}),
}
"""Reasons that say more than the code. A reader that does not know a reason uses that of the code."""


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL. `signal N` if the number has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def finer_reason(code: int, reason: str | None) -> str | None:
    """The reason, if it says more than this code. None if it does not, or if this version does not know it."""
    return reason if code in set(ExitCode) and reason in FINER_REASONS.get(ExitCode(code), ()) else None


def reason_of(code: int) -> str:
    """The reason for any exit code. A code that is neither a member nor 128+n is a `UserError`."""
    if code > SIGNAL_BASE:
        return PROCESS_KILLED
    return ExitCode(code).reason if code in set(ExitCode) else ExitCode.USER_ERROR.reason
