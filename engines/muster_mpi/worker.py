"""The program of a worker: runs the daemon of mpirun for the launcher of its job, once in each attempt."""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial

from muster_contract.codes import ExitCode
from muster_contract.errors import PeerLost
from muster_contract.trainer_spec import TrainerSpec
from muster_mpi.commands import Identity, name_of, serve_one, without_descriptors
from muster_mpi.mpirun import open_mpi
from muster_mpi.names import PORT
from muster_trainer.host.events import Events
from muster_trainer.host.parent import die_with
from muster_trainer.host.ranks import Lines
from muster_trainer.host.sockets import listening
from muster_trainer.host.stopping import StopRequest

MOST_CONNECTIONS = 16
PORT_SECONDS = 60.0
"""How long the process of the attempt before may hold the port."""
KILL_SECONDS = 5.0
_DAEMON = re.compile(r"((?:^|;)\s*)(?=\S*(?:orted|prted)\s)")


def serve(spec: TrainerSpec, events: Events, stop: StopRequest) -> ExitCode:
    """Listens until the supervisor ends the attempt. The daemon and its ranks end with this process."""
    open_mpi(os.environ)
    identity, name, daemon = Identity.from_environment(os.environ), name_of(os.environ), Daemon()
    asked = threading.Event()
    stop.on_request = asked.set
    stop.training = True
    with _listener(int(os.environ[PORT]), asked) as listener:
        slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        threading.Thread(
            target=_accept, args=(listener, slots, partial(serve_one, identity=identity, name=name, run=daemon.run)), daemon=True
        ).start()
        asked.wait()
    return ExitCode.PREEMPTED_NOT_SAVED if daemon.end() else ExitCode.PREEMPTED


class Daemon:
    """The one command of an attempt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: str, connection: socket.socket) -> int | None:
        """Runs the command to its end, and returns its exit code. Ends it if the connection ends. None if there was a command before."""
        with self._lock:
            if self._taken:
                return None
            self._taken = True
            self._process = process = subprocess.Popen(
                ["/bin/sh", "-c", with_exec(command)],
                env=without_descriptors(),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )
        while process.poll() is None:
            if select.select([connection], [], [], 0.1)[0] and not _goes_on(connection):
                self.end()
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    def end(self) -> bool:
        """Ends the daemon, which ends its ranks. Returns whether it was running."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        for number, seconds in ((signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
        return True


def with_exec(command: str) -> str:
    """The command of mpirun, whose last part becomes the process itself. Otherwise the daemon would outlive the shell."""
    return _DAEMON.sub(r"\1exec ", command, count=1)


def _goes_on(connection: socket.socket) -> bool:
    with suppress(OSError):
        return bool(connection.recv(4096))
    return False


def _listener(port: int, asked: threading.Event) -> socket.socket:
    """Raises PeerLost if another process keeps the port."""
    loopback = os.environ.get("MASTER_ADDR", "").startswith("127.")
    deadline = time.monotonic() + PORT_SECONDS
    while True:
        try:
            return listening(port, loopback=loopback)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline or asked.is_set():
                raise PeerLost(f"port {port}, on which the launcher reaches this worker, cannot be used: {error.strerror}") from None
        asked.wait(0.2)


def _accept(listener: socket.socket, slots: threading.BoundedSemaphore, serve: partial[None]) -> None:
    def served(connection: socket.socket) -> None:
        try:
            serve(Lines(connection))
        finally:
            slots.release()

    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:
                return
            time.sleep(0.05)  # there are too many open descriptors for now
            continue
        if not slots.acquire(blocking=False):
            connection.close()
            continue
        threading.Thread(target=served, args=(connection,), daemon=True).start()
