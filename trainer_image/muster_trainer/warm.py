"""The warm parent of a replica's processes: `python -m muster_trainer.warm SOCKET`, started by the supervisor. Linux only.

It imports what every process of the job imports, initialises nothing, and forks a process for each request that comes through the socket.
So an attempt begins in a fraction of the seconds that importing a framework takes, and processes share the memory of what is imported.
A process is forked twice: its parent goes at once, and the supervisor, as the nearest subreaper, becomes the one that reaps it.
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

from muster_trainer import process
from muster_trainer.contract import FRAMEWORK_OF_STRATEGY, ReplicaEnv
from muster_trainer.parent import die_with
from muster_trainer.summaries import import_writer

LONGEST_REQUEST = 1 << 21
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/accel", "/dev/vfio")
DESCRIPTORS = 3
"""stdout, stderr and the events of the process, in this order."""


def main() -> None:
    """Says whether processes may be forked from here, then forks them until the supervisor closes the socket."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    supervisor = os.getppid()
    process.quiet()
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to look for CUDA without initialising it
    env = ReplicaEnv.from_environment(os.environ)
    import_all(env.strategy, summaries=env.tensorboard_dir is not None)
    connection.sendall(json.dumps({"unfit": unfit()}).encode())
    gc.collect()
    gc.freeze()  # lest a collection in a child copies every page that holds an object
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, DESCRIPTORS)
        if not request:
            return
        pid = _fork(json.loads(request), descriptors, connection, supervisor)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(json.dumps({"pid": pid}).encode())


def import_all(strategy: str, *, summaries: bool) -> None:
    """What a process of that strategy will import, as far as that is not the user's."""
    importlib.import_module(f"muster_trainer.{process.STRATEGIES[strategy].partition(':')[0]}")
    if FRAMEWORK_OF_STRATEGY[strategy] == "torch":
        importlib.import_module("torch._dynamo")  # torch itself does so when the first optimizer is made
    if summaries:
        with suppress(ImportError):
            import_writer()


def unfit() -> str:
    """Why no process may be forked from this one; empty where one may: nothing that does not survive a fork has been initialised."""
    if threading.active_count() > 1:
        return f"a thread was started: {', '.join(thread.name for thread in threading.enumerate()[1:])}"
    torch = sys.modules.get("torch")
    if (torch is not None and torch.cuda.is_initialized()) or any(path.startswith(_DEVICES) for path in _open_files()):
        return "a device is open: its driver does not survive a fork"
    eager = sys.modules.get("tensorflow.python.eager.context")
    if eager is not None and eager.context_safe() is not None and eager.context_safe()._initialized:
        return "TensorFlow has initialised its devices"
    return ""


def _open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder's own has gone by now
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def _fork(environ: dict[str, str], descriptors: list[int], connection: socket.socket, supervisor: int) -> int:
    """The pid of the process."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        parent = os.getpid()  # asked for in the child, it may be the supervisor already
        child = os.fork()
        if child == 0:
            connection.close()
            os.setsid()
            while os.getppid() == parent:  # it goes at once
                time.sleep(0.001)
            become(environ, descriptors, supervisor)
        os.write(writer, str(child).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(between, 0)
    pid = int(os.read(reader, 32))
    os.close(reader)
    return pid


def become(environ: dict[str, str], descriptors: list[int], parent: int) -> None:
    """Makes this process, a fork, the training process of that environment, which dies with `parent`; it does not return."""
    die_with(parent)
    stdout, stderr, events = descriptors
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    for descriptor in (null, stdout, stderr):
        if descriptor > 2:
            os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ, MUSTER_EVENTS_FD=str(events))
    process.main()


if __name__ == "__main__":
    main()
