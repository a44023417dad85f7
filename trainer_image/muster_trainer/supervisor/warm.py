"""The supervisor's end of `muster_trainer.warm`: processes forked from a parent that has imported the framework already."""

from __future__ import annotations

import json
import os
import select
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster_contract.environment import EVENTS_FD, LARGE_VARIABLES, MEMORY_FD, ORDERS_FD
from muster_contract.process_title import WARM_PARENT, titled
from muster_trainer.host.memory import spare_bytes
from muster_trainer.supervisor import image
from muster_trainer.supervisor.environment import Launch
from muster_trainer.supervisor.processes import Process, become_subreaper, die_with_parent, start
from muster_trainer.supervisor.signals import SignalInbox

ANSWER_SECONDS = 10.0  # for a fork, which takes milliseconds
IMPORT_SECONDS = 300.0  # for the imports, on the slowest machine
LONGEST_ANSWER = 1 << 16
PROGRAM_BYTES = 1 << 30  # of free memory, without which no warm parent is started beside a program of the user
PREPARE, OPEN = b"prepare", b"open"
"""The requests for a prepared process, and for one that also opens the task. See `muster_trainer.warm`, which a supervisor cannot import,
because it needs the framework."""


class Starter:
    """Starts processes. They are forked from a warm parent if there is one and the system allows it, else started cold. The bundled trainer
    has one, and so have programs that are prepared beforehand."""

    def __init__(self, inbox: SignalInbox) -> None:
        self._inbox = inbox
        self._parent: WarmParent | None = None
        self._tried = sys.platform != "linux"

    @property
    def spare(self) -> frozenset[int]:
        """The pids of the warm parent and of the prepared processes, which are no processes of an attempt."""
        return frozenset({self._parent.pid, *self._parent.prepared} if self._parent else ())

    def start(self, launches: list[Launch], *, bundled: bool) -> Iterator[Process]:
        """One process after the other. Raises as `processes.start` does."""
        for launch in launches:
            self.warm_up(launch.env, bundled=bundled)
            warm = self._parent.start(launch, bundled=bundled) if self._parent and self._parent.look() else None
            yield warm or start(launch, takes_orders=bundled)

    def warm_up(self, environ: Mapping[str, str], *, bundled: bool) -> None:
        """Starts the warm parent once, and waits until it has imported the framework."""
        if bundled and not self._tried:
            self._tried = True
            self._parent = WarmParent(environ)
            self._parent.await_ready(self._inbox)

    def warm_up_program(self, environ: Mapping[str, str], path: Path) -> None:
        """Starts the warm parent of a program of the user, and waits until it has imported everything."""
        if not self.warm_up_beside(environ, path) and self._parent:
            self._parent.await_ready(self._inbox)

    def warm_up_beside(self, environ: Mapping[str, str], path: Path) -> bool:
        """Starts the warm parent of a program of the user once, while the program trains. Returns whether it has imported everything."""
        if not self._tried:
            self._tried = True
            if not image.COPIED and LARGE_VARIABLES not in environ and spare_bytes() >= PROGRAM_BYTES:
                self._parent = WarmParent(environ, program=path)
        return self._parent is not None and self._parent.look()

    @property
    def missing(self) -> Mapping[str, str]:
        """The errors of the modules of `trainer.preload` that cannot be imported."""
        return self._parent.missing if self._parent else {}

    def prepare(self, count: int, *, opens_task: bool = False) -> None:
        """Lets the warm parent prepare so many processes for the next attempt. There may be fewer if the system is short of memory.

        With `opens_task`, they also open the task. Only a replica without a rank needs that, because its processes train nothing yet."""
        become_subreaper()
        for _ in range(count):
            if self._parent and self._parent.ready and len(self._parent.prepared) < count:
                self._parent.prepare(OPEN if opens_task else PREPARE)

    def close(self) -> None:
        if self._parent:
            self._parent.close()


class WarmParent:
    """A warm parent, from its start to `close`. If it cannot be used, `ready` is False, and processes are started cold."""

    def __init__(self, environ: Mapping[str, str], *, program: Path | None = None) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            python, arguments = image.python_of(environ, field="image"), [str(theirs.fileno()), *([str(program)] if program else [])]
            self._process = subprocess.Popen(
                titled([python, "-P", "-m", "muster_trainer.warm", *arguments], environ, WARM_PARENT),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
            )
        self.pid = self._process.pid
        self._process.returncode = 0  # reap() waits for it
        self.ready = self._is_closed = False
        self.missing: dict[str, str] = {}
        """The errors of the modules of `trainer.preload` that cannot be imported."""
        self.prepared: frozenset[int] = frozenset()
        """The pids of processes that wait for the next attempt."""

    def await_ready(self, inbox: SignalInbox) -> bool:
        """Waits until it has imported everything, cannot be used, or the replica is asked to stop. Returns `ready`."""
        if self._is_closed:
            return False
        until = time.monotonic() + IMPORT_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(inbox, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            while not inbox.stops and time.monotonic() < until:
                readable = [key.fileobj for key, _ in selector.select(1.0)]
                inbox.drain()
                if self._socket in readable:
                    return self.look()
        self.close()
        return False

    def look(self) -> bool:
        """Whether it has imported everything, without waiting for that. If it cannot be used, closes it."""
        if not self.ready and not self._is_closed and self._has_answer():
            answer = self._answer()
            self.ready = answer is not None and answer.get("unfit") == ""
            missing = answer.get("missing") if answer else None
            self.missing = {str(name): str(error) for name, error in missing.items()} if isinstance(missing, dict) else {}
            if not self.ready:
                self.close()
        return self.ready

    def _has_answer(self) -> bool:
        poll = select.poll()  # `select.select` takes no descriptor above 1023
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def prepare(self, request: bytes) -> None:
        """Forks a process that waits for the launch of a later attempt."""
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.send(request)
            answer = self._answer()
        except OSError:
            answer = None
        if answer is None:
            self.close()

    def start(self, launch: Launch, *, bundled: bool = True) -> Process | None:
        """A process forked for this launch; None if that fails, and the process must be started cold."""
        pipes = [os.pipe() for _ in range(3)]
        orders_of_child, orders = os.pipe() if bundled else (None, None)
        try:
            stdout_of_child, stderr_of_child, events_of_child = (writer for _, writer in pipes)
            all_passed = {EVENTS_FD: events_of_child, ORDERS_FD: orders_of_child, MEMORY_FD: launch.memory}
            passed = {name: each for name, each in all_passed.items() if each is not None}
            arguments = [] if bundled else list(launch.argv[1:])
            request = json.dumps({"environ": dict(launch.env), "passed": list(passed), "arguments": arguments})
            socket.send_fds(self._socket, [request.encode()], [stdout_of_child, stderr_of_child, *passed.values()])
            self._socket.settimeout(ANSWER_SECONDS)
            answer = self._answer()
        except OSError:
            answer = None
        finally:
            for _, writer in pipes:
                os.close(writer)
            if orders_of_child is not None:
                os.close(orders_of_child)
        stdout, stderr, events = (reader for reader, _ in pipes)
        if answer is None or not isinstance(answer.get("pid"), int):
            for each in filter(None, (stdout, stderr, events, orders)):
                os.close(each)
            self.close()
            return None
        return Process(launch.rank, answer["pid"], stdout, stderr, events, orders)

    def close(self) -> None:
        """Ends the warm parent. The processes that it has forked go on."""
        self.ready, self._is_closed, self.prepared = False, True, frozenset()
        self._socket.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, 9)

    def _answer(self) -> dict[str, Any] | None:
        try:
            answer = json.loads(self._socket.recv(LONGEST_ANSWER))
        except (OSError, ValueError):
            return None
        if not isinstance(answer, dict):
            return None
        self.prepared = frozenset(answer.get("prepared", ()))
        return answer
