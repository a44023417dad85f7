"""Divides the files that a training library has saved among the ranks, which copy them into a checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from muster_trainer.checkpoint import files
from muster_trainer.training.agreement import gather
from muster_training.ranks import Ranks

Seen = dict[str, list[int]]
"""By name, what tells a file from another one of this name."""


def copy_share(ranks: Ranks, source: Path, target: Path) -> None:
    """Copies this rank's share of the files below `source` to `target`. Every rank calls it, after all have written.

    The files are not linked, because a library that saves the same step again writes into its files. Raises StorageUnavailable.
    """

    def look() -> Seen:
        with files.storage(source):
            return _seen(source)

    for name in share_of(ranks.rank, gather(ranks, look)):
        with files.storage(target):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)


def share_of(rank: int, seen: list[Seen]) -> list[str]:
    """The files that a rank copies, of those that each rank sees.

    Ranks of one machine see the same file, which one of them copies. Where ranks see several files of one name, as on machines without a
    common folder, that of the lowest rank counts.
    """
    share = []
    for number, name in enumerate(sorted({name for each in seen for name in each})):
        first = next(each[name] for each in seen if name in each)
        able = [each for each, names in enumerate(seen) if names.get(name) == first]
        if able[number % len(able)] == rank:
            share.append(name)
    return share


def _seen(folder: Path) -> Seen:
    seen = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            status = path.stat()
            seen[path.relative_to(folder).as_posix()] = [status.st_ino, status.st_size, status.st_mtime_ns]
    return seen
