"""Collects the stacks of the processes of a hung world, before these are ended.

On the signal DUMP, a process of the bundled trainer writes the stacks of all its threads to stderr (`muster_trainer.process`). C code does
this, so it also works in a collective. A user's program does the same after a call of `faulthandler.register(signal.SIGUSR1)`. The signal
is not sent to a process without a handler, because it would end the process. For such a process, only the kernel's wait channel is
reported.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from muster_contract.reports import Stack
from muster_trainer.supervisor import process_table
from muster_trainer.supervisor.output import Output
from muster_trainer.supervisor.processes import Process

DUMP = signal.SIGUSR1
MOST_SECONDS = 3.0  # the longest wait for the stacks
QUIET_SECONDS = 0.3  # once there are lines, the stacks are complete after this time without another line
FRAMES = 8
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\)")
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')
_WRAPPERS = ("wrapper", "inner_func", "_call_impl", "_wrapped_call_impl", "error_handler")


def take(processes: list[Process], output: Output, *, attempt: int, modules: Sequence[str]) -> tuple[Stack, ...]:
    """Makes all processes write their stacks to the log. Returns the stack of each running process. `modules` are those of the
    framework."""
    running = [(process, *_state(process.pid)) for process in processes if process.running]
    before = {process.rank: output.tail(process.rank) for process, _, _ in running if process.handles(DUMP)}
    for process, state, _ in running:
        if process.rank in before:
            process.send(DUMP)
            if state == process_table.STOPPED:
                process.send(signal.SIGCONT)  # the process handles DUMP when it continues
    await_lines(before, output.tail)
    for process, state, _ in running:
        if state == process_table.STOPPED:
            process.send(signal.SIGSTOP)
    return tuple(_stack(process.rank, state, channel, output, attempt=attempt, modules=modules) for process, state, channel in running)


def _stack(rank: int, state: str, channel: str, output: Output, *, attempt: int, modules: Sequence[str]) -> Stack:
    frames = main_thread(output.tail(rank))
    shown = [f"{name} ({_short(file)}:{line})" for file, line, name in frames if name not in _WRAPPERS]
    waits = bool(frames) and any(f"/{module}/" in frames[0][0] for module in modules)
    return Stack(attempt=attempt, rank=rank, state=state, frames=tuple(shown[:FRAMES]), wait_channel=channel, waits=waits)


def main_thread(lines: list[str]) -> list[tuple[str, str, str]]:
    """(file, line, function) of each frame of the main thread in the text of faulthandler, innermost first. The main thread is the last
    one in the text."""
    frames: list[tuple[str, str, str]] = []
    for line in lines:
        if _THREAD.match(line):
            frames = []
        elif match := _FRAME.match(line):
            frames.append((match["file"], match["line"], match["name"]))
    return frames


def await_lines(before: Mapping[int, list[str]], tail: Callable[[int], list[str]]) -> None:
    """Waits until each rank has more lines than `before`, and no more arrive. On a busy machine the first may take a second."""
    lines, began = before, time.monotonic()
    since = began
    while (now := time.monotonic()) < began + MOST_SECONDS:
        if now > since + QUIET_SECONDS and all(lines[rank] != before[rank] for rank in before):
            return
        time.sleep(0.02)
        if (newest := {rank: tail(rank) for rank in before}) != lines:
            lines, since = newest, time.monotonic()


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has stopped the process. False if a debugger has stopped it."""
    return process_table.state(pid) == process_table.STOPPED


def _state(pid: int) -> tuple[str, str]:
    """The state of the process, and the function of the kernel in which it waits, if that can be read."""
    channel = ""
    with suppress(OSError):
        channel = Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
    return process_table.state(pid), channel


def _short(file: str) -> str:
    """The end of the path, from the package on, or its last two parts."""
    return file.rpartition("-packages/")[2] if "-packages/" in file else "/".join(file.split("/")[-2:])
