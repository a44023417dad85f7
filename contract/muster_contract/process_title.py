"""The words that `ps` shows in the command lines of a job's processes: `-X muster=JOB/ROLE-INDEX/rank-R`. Python ignores such an option."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from muster_contract.environment import NAMES

WARM_PARENT = "warm-parent"
"""What takes the place of the rank in the warm parent. A fork overwrites it, so it is as long as the longest rank that is shown."""
_ARG_START = 48 - 3  # the field arg_start of proc_pid_stat(5), counted after the name of the program


def titled(argv: Sequence[str], environ: Mapping[str, str], what: str) -> tuple[str, ...]:
    """The command, which begins with a Python 3, with the job and replica of `environ` and `what` it runs, such as `rank-0`. Unchanged
    if the environment does not name them."""
    names = [environ.get(NAMES[name], "") for name in ("job", "role", "index")]
    if not all(names):
        return tuple(argv)
    job, role, index = names
    return (argv[0], "-X", f"muster={job.rpartition('/')[2]}/{role}-{index}/{what}", *argv[1:])


def name_fork(rank: int) -> None:
    """Writes the rank into the command line of this fork of a warm parent. Does nothing where that is not possible."""
    before, after = f"/{WARM_PARENT}".encode(), f"/rank-{rank}".encode().ljust(len(WARM_PARENT) + 1)
    if sys.platform != "linux" or len(after) != len(before):
        return
    with suppress(OSError, ValueError, IndexError):
        place = Path("/proc/self/cmdline").read_bytes().index(before)
        address = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_ARG_START]) + place
        if ctypes.string_at(address, len(before)) == before:
            ctypes.memmove(address, after, len(after))
