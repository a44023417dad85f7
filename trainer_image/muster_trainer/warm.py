"""The warm parent of a replica's processes: `python -m muster_trainer.warm SOCKET [PROGRAM]`, started by the supervisor. Linux only.

It imports the modules that every process of the job needs, or those that PROGRAM, a program of the user, begins with, and those of
`trainer.preload`. It initialises nothing. For each request on the socket it forks a process. So an attempt does not wait for the import of
a framework, and processes share the memory of imported modules. It forks twice: the child forks the process and
exits at once. The supervisor is the nearest subreaper, so it becomes the parent.

It can also fork *prepared* processes, which wait for a later request. Each runs a small model once, if the strategy has a function for
that. So a process that takes the place of a lost one waits neither for a fork, nor for what a framework does only once. In a spare, where
nothing trains yet, it opens the task as well.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from muster_contract.environment import RANK, ReplicaEnvironment
from muster_contract.process_title import name_fork
from muster_contract.strategy import Framework, StrategyRuntime
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer import process, program
from muster_trainer.host.framework import hook, named, set_quiet
from muster_trainer.host.memory import spare_bytes
from muster_trainer.host.parent import die_with
from muster_trainer.training.summaries import import_writer

LONGEST_REQUEST = 1 << 21
LONGEST_ERROR = 200  # characters of the error of an import
PREPARE, OPEN, SIGN = b"prepare", b"open", b"!"
ANSWER_SECONDS = 5.0  # for all prepared processes together, because the supervisor waits for no more than twice as long
PREPARED_BYTES = 64 << 20  # of memory; more than a prepared process needs
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/accel", "/dev/vfio")
THREADS = "OMP_NUM_THREADS"
"""Libraries start this number of threads once in a process."""
DESCRIPTORS = 5
"""The most descriptors of a request: stdout, stderr, and those whose numbers are in variables (`passed`)."""


def main() -> None:
    """Reports whether processes may be forked from this one, then forks them until the supervisor closes the socket."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    supervisor = os.getppid()
    env = ReplicaEnvironment.from_environment(os.environ)
    strategy = env.trainer_spec.strategy
    if env.trainer_spec.is_bundled:
        import_all(strategy, summaries=env.tensorboard_dir is not None)
    else:
        import_program(strategy.framework, sys.argv[2])
    missing = import_more(env.trainer_spec.preload)
    connection.sendall(json.dumps({"unfit": unfit(strategy.framework), "missing": missing}).encode())
    gc.collect()
    gc.freeze()  # otherwise a collection in a child would copy every page with an object
    Parent(connection, env.trainer_spec, supervisor).serve()


@dataclass(frozen=True)
class Prepared:
    """A process that waits for a request on the other end of `socket`."""

    pid: int
    socket: socket.socket

    @property
    def is_ready(self) -> bool:
        """Whether it waits for a request, or has ended."""
        poll = select.poll()  # `select.select` takes no descriptor above 1023
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def take_over(self, request: bytes, descriptors: list[int], *, seconds: float) -> bool:
        """Gives the request to the process, once. Returns whether it carries it out. False if it has ended, or does not answer in time."""
        self.socket.settimeout(seconds)
        with self.socket, suppress(OSError):
            if not self.socket.recv(1):
                return False
            socket.send_fds(self.socket, [request], descriptors)
            if self.socket.recv(1):
                self.socket.sendall(SIGN)  # without it, a process that answers too late ends
                return True
        return False


class Parent:
    """The warm parent, once it has imported everything."""

    def __init__(self, connection: socket.socket, spec: TrainerSpec, supervisor: int) -> None:
        self._connection, self._spec, self._supervisor = connection, spec, supervisor
        self.prepared: list[Prepared] = []

    def serve(self) -> None:
        """Answers requests until the supervisor closes the socket.

        `PREPARE` asks for a prepared process, `OPEN` for one that opens the task, too, and every other request for the process that it
        describes. The answer has its pid, or none if the system is short of memory or processes, and the pids of all prepared processes.
        """
        while True:
            request, descriptors, _, _ = socket.recv_fds(self._connection, LONGEST_REQUEST, DESCRIPTORS)
            if not request:
                return
            pid = self.prepare(opens_task=request == OPEN) if request in (PREPARE, OPEN) else self.start(request, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            self._connection.sendall(json.dumps({"pid": pid, "prepared": [each.pid for each in self.prepared]}).encode())

    def start(self, request: bytes, descriptors: list[int]) -> int | None:
        """The pid of the process of this request: a prepared one if one is ready, else a new one."""
        until = time.monotonic() + ANSWER_SECONDS
        for each in [each for each in self.prepared if each.is_ready]:
            self.prepared.remove(each)
            if each.take_over(request, descriptors, seconds=max(0.0, until - time.monotonic())):
                return each.pid
        return self._fork(lambda: carry_out(request, descriptors, self._supervisor))

    def prepare(self, *, opens_task: bool = False) -> int | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = self._fork(lambda: wait_prepared(theirs, self._spec, self._supervisor, opens_task=opens_task), also_close=ours)
        if pid is None:
            ours.close()
        else:
            self.prepared.append(Prepared(pid, ours))
        return pid

    def _fork(self, run: Callable[[], NoReturn], *, also_close: socket.socket | None = None) -> int | None:
        """Forks a process that calls `run`. Returns its pid; None if the system is short of memory or processes."""
        reader, writer = os.pipe()
        between = _forked()
        if between == 0:
            parent = os.getpid()  # read before the fork, because the child may have a new parent by then
            if _forked() == 0:
                for each in (self._connection, also_close, *(other.socket for other in self.prepared)):
                    if each is not None:
                        each.close()
                os.setsid()
                os.write(writer, str(os.getpid()).encode())  # only now, because the supervisor signals the whole group
                os.close(reader)
                os.close(writer)
                while os.getppid() == parent:  # until that process has exited and the supervisor is the parent
                    time.sleep(0.001)
                run()
            os._exit(0)
        os.close(writer)
        if between is not None:
            os.waitpid(between, 0)
        pid = os.read(reader, 32)
        os.close(reader)
        return int(pid) if pid else None


def _forked() -> int | None:
    """The result of `os.fork`; None if it fails."""
    try:
        return os.fork()
    except OSError:
        return None


def import_all(strategy: StrategyRuntime, *, summaries: bool) -> None:
    """Imports the modules that a process of the strategy needs, but not the user's code."""
    framework = strategy.framework
    set_quiet(framework)
    hook(framework, "before_fork")
    if strategy.engine:
        named(strategy.engine, framework)
    for module in framework.preload:
        importlib.import_module(module)
    if summaries:
        with suppress(ImportError):
            import_writer()


def import_program(framework: Framework, path: str) -> None:
    """Imports the modules that a program of the user begins with, but not its own code."""
    hook(framework, "before_fork")
    program.import_all([*program.imports_of(Path(path)), *((each, ()) for each in framework.preload)])


def import_more(preload: Sequence[str]) -> dict[str, str]:
    """Imports the modules of `trainer.preload`. Returns the errors by the names of modules."""
    return {name: error[:LONGEST_ERROR] for name, error in program.import_all((each, ()) for each in preload).items()}


def unfit(framework: Framework) -> str:
    """The reason why no process may be forked from this one: a thread or a device, which do not survive a fork. Empty if forks are safe."""
    if threading.active_count() > 1:
        return f"a thread was started: {', '.join(thread.name for thread in threading.enumerate()[1:])}"
    if any(path.startswith(_DEVICES) for path in _open_files()):
        return "a device is open: its driver does not survive a fork"
    return hook(framework, "unfit") or ""


def _open_files() -> list[str]:
    paths = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing included the descriptor of the folder itself, which is closed now
            paths.append(os.readlink(f"/proc/self/fd/{name}"))
    return paths


def wait_prepared(connection: socket.socket, spec: TrainerSpec, supervisor: int, *, opens_task: bool) -> NoReturn:
    """Prepares this fork, and waits for the request of a process. Ends if memory is short, because the training needs it more.

    It also ends if it cannot open the task, because a part of the user's code has run. A new process then shows the error."""
    die_with(supervisor)
    if spare_bytes() < PREPARED_BYTES:
        os._exit(0)
    with suppress(Exception):  # without preparation, the process only starts more slowly
        prepare(spec)
    if opens_task:
        _open_or_end(spec)
    gc.collect()
    threads = os.environ.get(THREADS)
    try:
        connection.sendall(SIGN)
        request, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, DESCRIPTORS)
        if not request or json.loads(request)["environ"].get(THREADS) != threads:
            os._exit(0)  # the threads of this process exist already
        connection.sendall(SIGN)
        is_awaited = connection.recv(1) == SIGN
    except OSError:
        is_awaited = False
    if not is_awaited:  # the parent has ended, or has forked another process for this request
        os._exit(0)
    connection.close()
    carry_out(request, descriptors, supervisor)


def _open_or_end(spec: TrainerSpec) -> None:
    is_open = False
    with suppress(BaseException):  # the user's code can raise anything
        is_open = process.open_task(spec)
    if not is_open:
        os._exit(0)


def prepare(spec: TrainerSpec) -> None:
    """Calls the function `prepare` of the module of the strategy's engine, if it has one."""
    module = sys.modules.get((spec.strategy.engine or "").partition(":")[0])
    if module is not None and "prepare" in module.__dict__:
        module.__dict__["prepare"](spec)


def carry_out(request: bytes, descriptors: list[int], supervisor: int) -> NoReturn:
    """Runs the process of the request in this fork. The descriptors after those for stdout and stderr have their numbers in the variables
    `passed`."""
    document = json.loads(request)
    passed = dict(zip(document["passed"], map(str, descriptors[2:]), strict=True))
    become({**document["environ"], **passed}, descriptors[:2], supervisor)
    if arguments := document.get("arguments"):
        for descriptor in descriptors[2:]:
            os.set_inheritable(descriptor, True)  # as in a program that is started cold
        program.run(arguments)
    process.main()


def become(environ: dict[str, str], streams: list[int], parent: int) -> None:
    """Takes over the environment `environ` in this fork.

    `streams` are the descriptors for stdout and stderr. The process ends when `parent` ends.
    """
    die_with(parent)
    stdout, stderr = streams
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    for descriptor in (null, stdout, stderr):
        if descriptor > 2:
            os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    if environ.get(RANK, "").isdecimal():
        name_fork(int(environ[RANK]))


if __name__ == "__main__":
    main()
