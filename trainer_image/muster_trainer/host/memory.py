"""The memory that a process may still allocate, and the peak of what it used."""

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
_UNUSED_SHARE = 0.2
"""The share of free memory that stays unused, because the memory that steps need varies."""


def spare_bytes(machine: Path = MACHINE, container: Path = CONTAINER) -> int:
    """The bytes that this process may still allocate: its share of the free memory of the machine and its container (cgroup v2)."""
    spare = [*_of_machine(machine), *_of_container(container), sys.maxsize]
    return int(min(spare) * (1 - _UNUSED_SHARE)) // int(os.environ.get(NAMES["processes"]) or 1)


def peak_bytes(framework: Framework) -> int:
    """The peak of the bytes that this process used: on the host, and on its device if the framework reports that."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (hook(framework, "device_bytes") or 0)


def _of_machine(path: Path) -> list[int]:
    table = _table(path)
    return [table["MemAvailable:"] * 1024] if "MemAvailable:" in table else []


def _of_container(folder: Path) -> list[int]:
    """The free bytes by the limits of a cgroup. Cached files count as free, because the kernel can drop them."""
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
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1 and fields[1].isdecimal()}
