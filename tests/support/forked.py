"""Training processes that are forked from a process with their framework imported. The import takes seconds, and tests start hundreds of
processes.

A server for each framework runs as long as the tests: `python forked.py SOCKET STRATEGY...`. It starts nothing that does not survive a fork
(`muster_trainer.warm.unfit`). Its forks become what `python -m muster_trainer.process` becomes.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn, TextIO

from muster.strategies.registry import strategy_of
from muster_contract.environment import EVENTS_FD
from muster_trainer import process, warm
from muster_trainer.supervisor.processes import die_with_parent

STRATEGIES = {"PyTorch": ("DDP", "FSDP"), "TensorFlow": ("MultiWorkerMirrored", "ParameterServer"), "JAX": ("JAX",)}
"""Whose modules are imported beforehand; the others need little more."""
LONGEST = 1 << 21
START_SECONDS = 120.0


class Forked:
    """A process with the interface of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: TextIO | None = None
        self._ended = threading.Event()

    def ended(self, code: int) -> None:
        self.returncode = code
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(strategy: str, environ: Mapping[str, str], events: int, *, passed: Mapping[str, int]) -> Forked:
    """A process of that environment, which writes its events to `events`. It gets further descriptors by the names of their variables."""
    return _server(strategy_of(strategy).framework.name).start(environ, {EVENTS_FD: events, **passed})


@cache
def _server(framework: str) -> _Server:
    return _Server(STRATEGIES[framework])


class _Server:
    def __init__(self, strategies: tuple[str, ...]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno()), *strategies],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent(os.getpid()),
            )
        assert json.loads(self._socket.recv(LONGEST)) == {"unfit": ""}
        self._running: dict[int, Forked] = {}
        self._started: queue.Queue[Forked] = queue.Queue()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, environ: Mapping[str, str], passed: Mapping[str, int]) -> Forked:
        request = json.dumps({"env": dict(environ), "folder": os.getcwd(), "passed": list(passed)}).encode()
        reader, writer = os.pipe()
        with self._lock:
            socket.send_fds(self._socket, [request], [writer, *passed.values()])
            process = self._started.get(timeout=START_SECONDS)
        os.close(writer)
        process.stdout = os.fdopen(reader)
        return process

    def _listen(self) -> None:
        while answer := self._socket.recv(LONGEST):
            message = json.loads(answer)
            if "code" in message:
                self._running.pop(message["pid"]).ended(message["code"])
            else:
                self._running[message["pid"]] = Forked(message["pid"])
                self._started.put(self._running[message["pid"]])


def serve(connection: socket.socket, strategies: list[str]) -> None:
    """Forks a process for each request, and reports its end, until the tests end."""
    runtimes = [strategy_of(strategy).runtime for strategy in strategies]
    for runtime in runtimes:
        warm.import_all(runtime, summaries=True)
    connection.sendall(json.dumps({"unfit": warm.unfit(runtimes[0].framework)}).encode())
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is connection:
                    request, descriptors, _, _ = socket.recv_fds(connection, LONGEST, 4)
                    if not request:
                        return
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        connection.close()
                        become(json.loads(request), descriptors)
                    for descriptor in descriptors:
                        os.close(descriptor)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                    connection.sendall(json.dumps({"pid": pid}).encode())
                else:
                    _, status = os.waitpid(key.data, 0)
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    connection.sendall(json.dumps({"pid": key.data, "code": os.waitstatus_to_exitcode(status)}).encode())


def become(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """What a new interpreter would do with its folder and PYTHONPATH, and then what any fork of a warm parent does."""
    output, *others = descriptors
    os.chdir(request["folder"])
    sys.path[:0] = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    passed = dict(zip(request["passed"], map(str, others), strict=True))
    warm.become({**request["env"], **passed}, [output, os.dup(output)], os.getppid())
    process.main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
