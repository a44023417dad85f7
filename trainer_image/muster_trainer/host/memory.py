"""How much memory a process may still take, and how much it has taken."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from muster_contract.environment import NAMES
from muster_contract.strategy import Framework
from muster_trainer.host.framework import hook

MACHINE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")
_LEFT_FREE = 0.2
"""Of what is there: steps need some too, and not always as much."""


def spare_bytes(machine: Path = MACHINE, container: Path = CONTAINER) -> int:
    """This process's share of what the machine and its container (a cgroup of version 2) have left, as far as they tell."""
    spare = [*_of_machine(machine), *_of_container(container), sys.maxsize]
    return int(min(spare) * (1 - _LEFT_FREE)) // int(os.environ.get(NAMES["processes"]) or 1)


def peak_bytes(framework: Framework) -> int:
    """The most that this process has had at once: in the memory of its host, and on its device where the framework says so."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (hook(framework, "device_bytes") or 0)


def _of_machine(path: Path) -> list[int]:
    table = _table(path)
    return [table["MemAvailable:"] * 1024] if "MemAvailable:" in table else []


def _of_container(folder: Path) -> list[int]:
    """Cached files count as used, and can go."""
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return []
    return [int(limit) - int(used) + _table(folder / "memory.stat").get("inactive_file", 0)] if limit.isdecimal() else []


def _table(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
