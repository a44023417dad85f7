"""Makes signals wake the selector of the run loop."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalInbox:
    """Counts requests to stop. Wakes a selector for these, and when a child ends.

    Create it before any slow work, because the kernel drops SIGTERM for a PID 1 without handlers.
    """

    def __init__(self) -> None:
        self.stops = 0
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, self._count)
        signal.signal(signal.SIGCHLD, _wake_only)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        """Wakes the selector, from any thread."""
        with suppress(BlockingIOError):  # the pipe is full, so the selector is awake
            os.write(self._write, b"\0")

    def drain(self) -> None:
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            return

    def _count(self, _number: int, _frame: FrameType | None) -> None:
        self.stops += 1


def _wake_only(_number: int, _frame: FrameType | None) -> None:
    """A handler that does nothing. SIGCHLD wakes the selector only if it has a handler."""


def open_standard_streams() -> None:
    """Opens /dev/null as descriptor 0, 1 or 2 if it is closed. Otherwise a pipe could get that number, and output would go to the pipe."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
