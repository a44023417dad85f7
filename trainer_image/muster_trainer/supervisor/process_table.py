"""The processes of this machine or container. Uses only the standard library, because a supervisor runs in any image."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

STOPPED = "stopped"
NO_PROCESS = "gone"
ENDED = (NO_PROCESS, "zombie", "dead")
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk-sleep",
    "U": "disk-sleep",
    "T": STOPPED,
    "t": "tracing-stop",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
}


def state(pid: int) -> str:
    """The state of a process in one word; `gone` if there is no such process."""
    if sys.platform == "linux":
        return _STATES.get(_stat(Path(f"/proc/{pid}"))[1], NO_PROCESS)
    return _STATES.get(_listed().get(pid, (0, ""))[1], NO_PROCESS)


def descendants(pid: int) -> list[int]:
    """The pids of all descendants of a process, parents before their children."""
    children: dict[int, list[int]] = {}
    for each, (parent, _) in _table().items():
        children.setdefault(parent, []).append(each)
    result, front = [], [pid]
    while front:
        front = [child for parent in front for child in children.get(parent, ())]
        result += front
    return result


def children(pid: int) -> list[int]:
    """The pids of the children of a process. Those of a subreaper include the orphans that it has adopted."""
    return [each for each, (parent, _) in _table().items() if parent == pid]


def runs(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    return state(pid) not in ENDED


def cpu_seconds(pid: int) -> float | None:
    """The time of processors that a process has used. None if there is no such process, and on systems without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # proc(5): utime and stime
    except (OSError, ValueError, IndexError):
        return None


def _table() -> dict[int, tuple[int, str]]:
    """The pid of the parent and the state of each process."""
    if sys.platform != "linux":
        return _listed()
    return {int(folder.name): _stat(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit()}


def _stat(folder: Path) -> tuple[int, str]:
    with suppress(OSError, ValueError, IndexError):
        # The name of the program is in brackets before the last ")". It may contain brackets and spaces.
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[1]), fields[0].decode()
    return 0, ""


def _listed() -> dict[int, tuple[int, str]]:
    """The same as `_table`, on systems without /proc."""
    lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=False).stdout.splitlines()
    return {int(pid): (int(parent), state[0]) for pid, parent, state in map(str.split, lines)}
