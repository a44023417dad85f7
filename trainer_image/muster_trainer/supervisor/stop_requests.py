"""Sends requests to stop to the processes that can save.

A launcher such as torchrun passes SIGTERM to the whole process groups of its workers, which also ends their data loaders, and the save
fails. A shell dies of SIGTERM before its program has saved. So a program that has reported `HandlesStop` gets SIGTERM itself. What is above
it gets SIGTERM after the program has ended, because a shell may go on with its next command.
"""

from __future__ import annotations

import math

from muster_trainer.supervisor.process_table import descendants, runs
from muster_trainer.supervisor.processes import terminate

LAUNCHER_SECONDS = 2.0
"""How long a launcher may take to end after its last program has ended."""


class StopRequests:
    """The requests of one attempt. Each process gets SIGTERM at most once."""

    def __init__(self) -> None:
        self._handlers: set[int] = set()
        self._sent: set[int] = set()
        self._handled: dict[int, float] = {}
        """When a program below this process was last seen that handles the request, in monotonic seconds."""

    def add_handler(self, pid: int) -> None:
        """Notes that this process saves and ends after SIGTERM."""
        self._handlers.add(pid)

    def send(self, pid: int, now: float) -> None:
        """Requests the process and its descendants to end. Call it again in each turn until the process has ended."""
        if pid in self._sent:
            return
        handlers = [each for each in self._below(pid) if each in self._handlers and runs(each)]
        if pid not in self._handlers and handlers:
            self._handled[pid] = now
            for each in handlers:
                self._terminate(each)
        elif now >= self._handled.get(pid, -math.inf) + LAUNCHER_SECONDS:
            self._terminate(pid)

    def _below(self, pid: int) -> list[int]:
        return descendants(pid) if self._handlers else []

    def _terminate(self, pid: int) -> None:
        if pid not in self._sent:
            self._sent.add(pid)
            terminate(pid)
