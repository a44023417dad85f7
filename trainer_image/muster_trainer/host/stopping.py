"""Requests to stop, and the loss of the supervisor. The process must notice both while Python waits inside a collective."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from muster_contract.codes import ExitCode
from muster_trainer.host.events import end_without_events

LOST_SUPERVISOR = "the supervisor is gone"


class StopRequest:
    """Whether SIGTERM has arrived.

    While `training` is True, the next step checks it. Otherwise there is nothing to save, and the process ends at once.

    A Python signal handler runs only when the main thread executes Python code, but the start of a world may block it for minutes.
    So the interpreter writes the signal's number to a pipe, and a thread reads the pipe.
    """

    def __init__(self, events_descriptor: int | None = None) -> None:
        self.requested = False
        self.training = False
        self.on_request: Callable[[], None] = lambda: None
        """Called in another thread when SIGTERM arrives."""
        self._events_descriptor = events_descriptor
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self.listen()
        threading.Thread(target=self._watch, name="stop-request", daemon=True).start()

    def listen(self) -> None:
        """Installs the handler of SIGTERM, and the pipe. Call it again after a framework has started and the user's code was imported.
        TensorFlow's cluster replaces the handler, and a loop of asyncio that handles signals takes the pipe away when it ends."""
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if self._events_descriptor is not None:
            poll.register(self._events_descriptor, 0)  # polls for errors only, which show that the reader is gone
        while True:
            for descriptor, state in poll.poll():
                if descriptor == self._events_descriptor:
                    if state & select.POLLNVAL:
                        end_without_events()
                    _say(LOST_SUPERVISOR)
                    os._exit(ExitCode.PEER_LOST)
                if signal.SIGTERM in os.read(self._reader, 64):
                    self._requested()

    def _requested(self) -> None:
        self.requested = True
        if not self.training:
            _say("asked to stop before the first step: there is nothing to save")
            os._exit(ExitCode.PREEMPTED)
        self.on_request()


def _say(text: str) -> None:
    """Writes to stderr, and ignores errors, because the reader of stderr may be gone together with the supervisor."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
