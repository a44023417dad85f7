"""Finds and ends every process of a run by the mark in its environment.

Process groups and parents are not enough, because a training script may start helpers in their own sessions, or daemons that init adopts.
All of them inherit the environment. This module imports little, because the guard uses it too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil

from muster_contract import environment

RUN_MARK = environment.RUN
"""The environment variable that identifies the run and its directory (`rundir.mark_of`)."""
REPLICA_MARK = environment.NAMES["pod_uid"]
LIST_SECONDS = 0.05  # between two listings, while processes end
KILL_SECONDS = 10.0  # after this time, a process that is stuck in the kernel counts as not ended


def marked(mark: str, value: str) -> list[psutil.Process]:
    """All processes that were started with `mark` set to `value`, and their descendants, except this process."""
    processes: dict[int, psutil.Process] = {}
    for process in _started_with(mark, value):
        processes[process.pid] = process
        try:
            processes |= {child.pid: child for child in process.children(recursive=True)}
        except psutil.Error:
            continue
    processes.pop(psutil.Process().pid, None)
    return [process for process in processes.values() if _is_alive(process)]


def _started_with(mark: str, value: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(mark) == value:
                yield process
        except (psutil.Error, OSError):
            continue  # it is gone, a zombie, or another user's


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def sweep(mark: str, value: str, *, grace_seconds: float) -> int:
    """Ends every process with the mark (see `marked`) and waits for their end. Returns how many did not end, which is normally 0.

    They get SIGTERM, and SIGKILL after `grace_seconds`. Only processes without a marked parent get the SIGTERM, because a supervisor ends
    its children in the right order. A data loader that ended early would break the save. Stopped processes continue, so that they can end.
    """
    deadline = time.monotonic() + grace_seconds
    terminated: set[psutil.Process] = set()
    while (processes := marked(mark, value)) and time.monotonic() < deadline:
        pids = {process.pid for process in processes}
        for process in processes:
            if process not in terminated and _parent(process) not in pids:
                terminated.add(process)
                _end(process, kill=False)
            _continue(process)
        time.sleep(LIST_SECONDS)
    give_up = time.monotonic() + KILL_SECONDS
    while processes and time.monotonic() < give_up:
        for process in processes:
            _end(process, kill=True)
        time.sleep(LIST_SECONDS)
        processes = marked(mark, value)
    return len(processes)


def continue_stopped(mark: str, value: str) -> None:
    """Continues every process with the mark that SIGSTOP has stopped, because a stopped process handles no SIGTERM."""
    for process in marked(mark, value):
        _continue(process)


def _continue(process: psutil.Process) -> None:
    try:
        if process.status() == psutil.STATUS_STOPPED:
            process.resume()
    except psutil.Error:
        return


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
