"""Copies the files that a training library has saved into a checkpoint. The ranks divide the files among themselves."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from muster_trainer.checkpoint import files
from muster_trainer.host.ranks import Ranks
from muster_trainer.training.agreement import gather

FileIdentities = dict[str, list[int]]
"""Name of each file -> numbers that differ between two files of the same name."""


def copy_share(ranks: Ranks, source: Path, target: Path) -> None:
    """Copies this rank's share of the files below `source` to `target`. Every rank calls it after all ranks have written.

    It copies instead of linking, because a library that saves the same step again changes its files. Raises StorageUnavailable.
    """

    def look() -> FileIdentities:
        with files.storage(source):
            return _list_files(source)

    for name in share_of(ranks.rank, gather(ranks, look)):
        with files.storage(target):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)


def share_of(rank: int, listings: list[FileIdentities]) -> list[str]:
    """The names of the files that `rank` copies. `listings` has the files that each rank sees.

    Ranks on one machine see the same file, and one of them copies it. Ranks on machines without a common folder may see different files
    of the same name. Then the lowest rank copies its own.
    """
    share = []
    for number, name in enumerate(sorted({name for each in listings for name in each})):
        first = next(each[name] for each in listings if name in each)
        able = [each for each, names in enumerate(listings) if names.get(name) == first]
        if able[number % len(able)] == rank:
            share.append(name)
    return share


def _list_files(folder: Path) -> FileIdentities:
    identities = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            status = path.stat()
            identities[path.relative_to(folder).as_posix()] = [status.st_ino, status.st_size, status.st_mtime_ns]
    return identities
