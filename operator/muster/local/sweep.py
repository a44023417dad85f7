"""Finds and ends every process of a run, however it came about: by the mark in its environment.

Process groups and parents are not enough: a training script may start helpers in sessions of their own, or daemons that
init adopts. What they all inherit is the environment they were started with. Imports only psutil: the guard runs this too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil

RUN_MARK = "MUSTER_RUN"
"""The environment variable that names the run and its directory (`rundir.mark_of`)."""
REPLICA_MARK = "MUSTER_POD_UID"
"""The one that holds the uid of the replica."""
LOOK_SECONDS = 0.05  # between two looks, while processes take their time to end
KILL_SECONDS = 10.0  # of SIGKILL in vain (a process stuck in the kernel), before it is given up


def marked(mark: str, value: str) -> list[psutil.Process]:
    """The processes started with the environment variable `mark` at `value`, and their descendants; this process excepted."""
    found: dict[int, psutil.Process] = {}
    for process in _carriers(mark, value):
        found[process.pid] = process
        try:
            found |= {child.pid: child for child in process.children(recursive=True)}
        except psutil.Error:
            continue
    found.pop(psutil.Process().pid, None)
    return [process for process in found.values() if _alive(process)]


def _carriers(mark: str, value: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(mark) == value:
                yield process
        except (psutil.Error, OSError):
            continue  # gone, a zombie, or somebody else's


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def sweep(mark: str, value: str, *, grace_seconds: float) -> int:
    """Ends every process with the mark (see `marked`) and waits until none is left; gives back how many would not go (normally 0).

    They get SIGTERM and `grace_seconds`, then SIGKILL. Only the topmost get the SIGTERM: a supervisor knows in which order
    its own must end, and a data loader that dies early would spoil the save.
    """
    deadline = time.monotonic() + grace_seconds
    asked: set[psutil.Process] = set()
    while (found := marked(mark, value)) and time.monotonic() < deadline:
        pids = {process.pid for process in found}
        for process in found:
            if process not in asked and _parent(process) not in pids:
                asked.add(process)
                _end(process, kill=False)
        time.sleep(LOOK_SECONDS)
    give_up = time.monotonic() + KILL_SECONDS
    while found and time.monotonic() < give_up:
        for process in found:
            _end(process, kill=True)
        time.sleep(LOOK_SECONDS)
        found = marked(mark, value)
    return len(found)


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def _end(process: psutil.Process, *, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except psutil.Error:
        return
