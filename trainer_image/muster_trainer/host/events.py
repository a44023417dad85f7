"""Sends the events of a training process to its supervisor, or prints them where there is no supervisor."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from platform import python_version
from typing import Any, NoReturn, TextIO

from muster_contract.codes import ExitCode
from muster_contract.environment import EVENTS_FD
from muster_contract.events import Activity, ErrorEvent, Event, Fingerprint, NoticeEvent, PhaseEvent, Step, decode_event, encode_event
from muster_contract.notices import NoticeReason


class Events:
    """The events of one process (`muster_contract.events`).

    Each event is one write, because ranks may share the pipe, and the kernel does not split a write of at most 4096 bytes. If the
    supervisor is gone, the process ends itself, because nothing else would end it.
    """

    def __init__(self, descriptor: int | None, rank: int) -> None:
        self.descriptor = descriptor
        self.rank = rank
        self.step: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], rank: int) -> Events:
        text = environment.get(EVENTS_FD, "")
        return cls(int(text) if text.isdecimal() else None, rank)

    def emit(self, event: Event) -> None:
        """Sends an event with the current time and the rank of this process."""
        if isinstance(event, Step):
            self.step = event.step
        if self.descriptor is None:
            if isinstance(event, NoticeEvent):
                self.say(f"notice: {event.message}")
            return
        line = json.dumps(encode_event(replace(event, time=time.time(), rank=self.rank)), default=str) + "\n"
        try:
            _write_all(self.descriptor, line.encode())
        except OSError as error:
            if error.errno == errno.EBADF:
                end_without_events()
            os._exit(ExitCode.PEER_LOST)

    def fingerprint(self, framework: Mapping[str, Any]) -> None:
        """Sends the software and devices of this process. `framework` has the fields that the framework fills in."""
        document = {**framework, "event": Fingerprint.event, "python": python_version(), "host": socket.gethostname()}
        self.emit(decode_event(document))

    def phase(self, activity: Activity) -> None:
        """Sends the activity that the process begins now."""
        self.emit(PhaseEvent(phase=activity))

    def error(self, code: ExitCode, message: str, *, reason: str = "") -> None:
        """Sends why the process ends. `reason` may say more than the code."""
        self.emit(ErrorEvent(code=int(code), reason=reason or code.reason, message=message, step=self.step))

    def notice(self, reason: NoticeReason, message: str) -> None:
        """Sends a message for the user."""
        self.emit(NoticeEvent(reason=reason, message=message))

    def say(self, text: str) -> None:
        """Prints one line to stdout, on rank 0 only."""
        if self.rank == 0:
            _print(text, sys.stdout)

    def complain(self, text: str) -> None:
        """Prints one line to stderr, on any rank."""
        _print(text, sys.stderr)

    def complain_of(self, error: BaseException | None) -> None:
        """Prints the traceback of an error, on any rank. Nothing if there is none."""
        if error is None:
            return
        with suppress(Exception):  # an error may have no text, and the user's code may have closed the stream
            traceback.print_exception(error)


def end_without_events() -> NoReturn:
    """Ends the process as a failure of the user's code, which has closed the descriptor of events."""
    with suppress(OSError):
        os.write(2, f"the training code closed a descriptor that it had not opened ({EVENTS_FD}); close your own files only\n".encode())
    os._exit(ExitCode.USER_ERROR)


def _print(text: str, stream: TextIO) -> None:
    """Prints one line. Ignores errors, because the user's code may have closed or replaced the stream."""
    with suppress(Exception):
        print(text, file=stream, flush=True)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
