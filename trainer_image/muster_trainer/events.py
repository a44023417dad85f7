"""Events of a process: JSON lines to the supervisor, or readable lines where nobody listens."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from platform import python_version
from typing import Any

from muster_trainer.contract import ExitCode

EVENTS_FD = "MUSTER_EVENTS_FD"
_READABLE = ("notice", "error")


class Events:
    """Where a process says what it does (docs/architecture.md, "Events").

    A line goes out in one write, which the kernel keeps whole up to 4096 bytes: ranks may share the pipe. A process
    whose supervisor is gone has nobody to report to and nobody to end it, so it ends itself.
    """

    def __init__(self, descriptor: int | None, rank: int) -> None:
        self.descriptor = descriptor
        self.rank = rank
        self.step: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], rank: int) -> Events:
        text = environment.get(EVENTS_FD, "")
        return cls(int(text) if text.isdecimal() else None, rank)

    def emit(self, event: str, **fields: Any) -> None:
        """Sends one event; `time` and `rank` are added."""
        if event == "step":
            self.step = fields["step"]
        if self.descriptor is None:
            if event in _READABLE and event != "error":
                self.say(f"{event}: {fields.get('message')}")
            return
        line = json.dumps({"event": event, "time": time.time(), "rank": self.rank, **fields}, default=str) + "\n"
        try:
            _write_all(self.descriptor, line.encode())
        except OSError:
            os._exit(ExitCode.PEER_LOST)

    def fingerprint(self, framework: Mapping[str, Any]) -> None:
        """What this process computes with: what its framework says, and where."""
        self.emit("fingerprint", python=python_version(), host=socket.gethostname(), **framework)

    def notice(self, message: str) -> None:
        """Something that the user should be told."""
        self.emit("notice", message=message)

    def say(self, text: str) -> None:
        """One readable line on stdout, from rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def complain(self, text: str) -> None:
        """One line on stderr, from any rank."""
        print(text, file=sys.stderr, flush=True)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
