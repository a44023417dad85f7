"""The memory that a process may still allocate, and the peak of what it used."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from muster_contract.environment import MEMORY_REQUEST, NAMES
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


def most_for_snapshots(environ: Mapping[str, str], machine: Path = MACHINE, container: Path = CONTAINER) -> int:
    """The most bytes that snapshots may take in this replica, if the job does not say it: half of the memory limit of its container, or of
    its request if it has no limit, but at most half of the free memory of the machine."""
    limit = _limit(container)
    request = int(environ.get(MEMORY_REQUEST) or 0)
    allowed = [limit] if limit is not None else [request] if request else []
    return min([*allowed, *_of_machine(machine), sys.maxsize]) // 2


def room_for_snapshots(environ: Mapping[str, str], *, pods: int, machine: Path = MACHINE, container: Path = CONTAINER) -> int:
    """The bytes of snapshots for which this process has room now: half of its share of the memory that is free within the limit of its
    container, or within the request if there is no limit, and on the machine, which `pods` of the job share."""
    processes = int(environ.get(NAMES["processes"]) or 1)
    request = int(environ.get(MEMORY_REQUEST) or 0)
    free = [each // pods for each in _of_machine(machine)] + _of_container(container, without_limit=request or None)
    return int(min([*free, sys.maxsize]) * (1 - _UNUSED_SHARE)) // 2 // processes


def peak_bytes(framework: Framework) -> int:
    """The peak of the bytes that this process used: on the host, and on its device if the framework reports that."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (hook(framework, "device_bytes") or 0)


def _of_machine(path: Path) -> list[int]:
    table = _table(path)
    return [table["MemAvailable:"] * 1024] if "MemAvailable:" in table else []


def _of_container(folder: Path, *, without_limit: int | None = None) -> list[int]:
    """The free bytes by the limit of a cgroup, or by another one if it has none. Cached files count as free, because the kernel can drop
    them."""
    limit = _limit(folder)
    limit = without_limit if limit is None else limit
    try:
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return []
    return [] if limit is None else [limit - used + _table(folder / "memory.stat").get("inactive_file", 0)]


def _limit(folder: Path) -> int | None:
    """The limit of a cgroup in bytes. None if it has none."""
    try:
        text = (folder / "memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _table(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1 and fields[1].isdecimal()}
