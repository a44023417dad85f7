"""Starting, reaping and ending the operating system's processes."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from muster_contract.environment import EVENTS_FD, MEMORY_FD, ORDERS_FD
from muster_contract.errors import BadConfiguration, UserError
from muster_contract.process_title import titled
from muster_contract.programs import why_not_started
from muster_trainer.host.parent import die_with
from muster_trainer.supervisor.environment import Launch

PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass
class Process:
    """A started process, which leads a session and process group of its own with the number `pid`.

    `stdout`, `stderr` and `events` are the reading ends of its pipes. `orders` is the writing end of the pipe of its orders, if it can wait
    for the next world. `waiting` is True if it waits for that. `wait_status` is the status of waitpid, and None while the process runs.
    `stopped_since` is when the supervisor found it stopped by a signal, in monotonic seconds, and None if it is not.
    """

    rank: int
    pid: int
    stdout: int
    stderr: int
    events: int
    orders: int | None = None
    wait_status: int | None = None
    waiting: bool = False
    stopped_since: float | None = None
    closed: set[int] = field(default_factory=set)
    """The descriptors that are closed."""

    def close(self, *descriptors: int | None) -> None:
        """Closes descriptors of this process, each once."""
        for descriptor in descriptors:
            if descriptor is not None and descriptor not in self.closed:
                self.closed.add(descriptor)
                os.close(descriptor)

    @property
    def running(self) -> bool:
        return self.wait_status is None

    @property
    def exit_code(self) -> int | None:
        """The exit code. None while the process runs, and if a signal ended it."""
        return None if self.wait_status is None or self.killed_by else os.waitstatus_to_exitcode(self.wait_status)

    @property
    def killed_by(self) -> int | None:
        """The signal that ended the process, if any."""
        if self.wait_status is None or not os.WIFSIGNALED(self.wait_status):
            return None
        return os.WTERMSIG(self.wait_status)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process alone, because it ends its own helpers, such as data loaders."""
        if self.running:
            _signal_if_running(os.kill, self.pid, number)

    def handles(self, number: signal.Signals) -> bool:
        """Whether the process has a handler for the signal. Without one, the signal may end it."""
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
        return False

    def kill_group(self) -> None:
        if self.running:
            _signal_if_running(os.killpg, self.pid, signal.SIGKILL)


def oom_kills() -> int:
    """The number of processes of this container that the kernel has ended for lack of memory (cgroup v2 or v1). 0 if it cannot be read."""
    for file in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with suppress(OSError, ValueError):
            for line in Path(file).read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


def become_subreaper() -> None:
    """Makes this process, and not init, the parent of orphans among its descendants. Does nothing on systems other than Linux."""
    if _libc is not None:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(launch: Launch, *, takes_orders: bool = False) -> Process:
    """Starts one process. The code between fork and exec takes no lock that another thread could hold.

    Raises BadConfiguration if the program cannot be executed, and UserError if the machine has too little memory or too many processes.
    """
    events, events_of_child = os.pipe()
    orders_of_child, orders = os.pipe() if takes_orders else (None, None)
    passed = {EVENTS_FD: events_of_child, MEMORY_FD: launch.memory, ORDERS_FD: orders_of_child}
    descriptors = {name: each for name, each in passed.items() if each is not None}
    try:
        popen = subprocess.Popen(
            titled(launch.argv, launch.env, launch.title) if launch.title else launch.argv,
            env={**launch.env, **{name: str(each) for name, each in descriptors.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=list(descriptors.values()),
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        os.close(events)
        if orders is not None:
            os.close(orders)
        short = isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM)
        reason = why_not_started(launch.argv[0], error, path=launch.env.get("PATH"))
        raise (UserError if short else BadConfiguration)(f"{launch.argv[0]} cannot be started: {reason}") from None
    finally:
        os.close(events_of_child)
        if orders_of_child is not None:
            os.close(orders_of_child)
    assert popen.stdout is not None
    assert popen.stderr is not None
    process = Process(launch.rank, popen.pid, os.dup(popen.stdout.fileno()), os.dup(popen.stderr.fileno()), events, orders)
    popen.stdout.close()
    popen.stderr.close()
    popen.returncode = 0  # reap() waits for the process, and without a code the finalizer of Popen would wait too
    return process


def die_with_parent(supervisor: int) -> Callable[[], None] | None:
    """A function for a child to run between fork and exec, so that the kernel ends it with the supervisor. None if the kernel cannot."""
    return None if _libc is None else partial(die_with, supervisor)


def reap(processes: list[Process]) -> list[Process]:
    """Collects every child that has ended, also adopted orphans. Returns those of `processes` that have just ended."""
    by_pid = {process.pid: process for process in processes if process.running}
    ended: list[Process] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if pid in by_pid:
            by_pid[pid].wait_status = status
            ended.append(by_pid[pid])


def kill_all(pids: Iterable[int]) -> None:
    """Sends SIGKILL to each of these processes that still runs."""
    for pid in pids:
        _signal_if_running(os.kill, pid, signal.SIGKILL)


def terminate(pid: int) -> None:
    """Sends SIGTERM to the process, if it still runs."""
    _signal_if_running(os.kill, pid, signal.SIGTERM)


def _signal_if_running(send: Callable[[int, int], None], pid: int, number: int) -> None:
    try:
        send(pid, number)
    except (ProcessLookupError, PermissionError):
        return
