"""The warm parent of a replica's processes: `python -m muster_trainer.warm SOCKET`, started by the supervisor. Linux only.

It imports the modules that every process of the job needs, and initialises nothing. For each request on the socket it forks a
process. So an attempt does not wait for the import of a framework, and processes share the memory of imported modules. It forks
twice: the child forks the process and exits at once. The supervisor is the nearest subreaper, so it becomes the parent.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress

from muster_contract.environment import ReplicaEnvironment
from muster_contract.strategy import Framework, StrategyRuntime
from muster_trainer import process
from muster_trainer.host.framework import hook, named, set_quiet
from muster_trainer.host.parent import die_with
from muster_trainer.training.summaries import import_writer

LONGEST_REQUEST = 1 << 21
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/accel", "/dev/vfio")
DESCRIPTORS = 5
"""The most descriptors of a request: stdout, stderr, and those whose numbers are in variables (`passed`)."""


def main() -> None:
    """Reports whether processes may be forked from this one, then forks them until the supervisor closes the socket."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    supervisor = os.getppid()
    env = ReplicaEnvironment.from_environment(os.environ)
    strategy = env.trainer_spec.strategy
    import_all(strategy, summaries=env.tensorboard_dir is not None)
    connection.sendall(json.dumps({"unfit": unfit(strategy.framework)}).encode())
    gc.collect()
    gc.freeze()  # otherwise a collection in a child would copy every page with an object
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, DESCRIPTORS)
        if not request:
            return
        pid = _fork(**json.loads(request), descriptors=descriptors, connection=connection, supervisor=supervisor)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(json.dumps({"pid": pid}).encode())


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


def _fork(*, environ: dict[str, str], passed: list[str], descriptors: list[int], connection: socket.socket, supervisor: int) -> int:
    """Forks a process and returns its pid. `passed` are the variables that get the numbers of the descriptors after stdout and stderr."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        parent = os.getpid()  # read before the fork, because the child may have a new parent by then
        child = os.fork()
        if child == 0:
            connection.close()
            os.setsid()
            while os.getppid() == parent:  # until that process has exited and the supervisor is the parent
                time.sleep(0.001)
            become({**environ, **dict(zip(passed, map(str, descriptors[2:]), strict=True))}, descriptors[:2], supervisor)
        os.write(writer, str(child).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(between, 0)
    pid = int(os.read(reader, 32))
    os.close(reader)
    return pid


def become(environ: dict[str, str], streams: list[int], parent: int) -> None:
    """Runs the training process of the environment `environ` in this fork. Does not return.

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
    process.main()


if __name__ == "__main__":
    main()
