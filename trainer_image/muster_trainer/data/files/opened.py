"""Data files that are open: read at an offset, never mapped into memory, so that a truncated file is an error and not a signal."""

from __future__ import annotations

import glob
import os
import resource
import stat
from collections.abc import Sequence
from pathlib import Path

from muster_contract.errors import BadConfiguration, StorageUnavailable

SPARE_DESCRIPTORS = 256
_NAMED = 5


class OpenFile:
    """One file, open until the process ends. `size` is in bytes, `changed` in nanoseconds since 1970."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise BadConfiguration(f"data file {path} cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            raise BadConfiguration(f"data file {path} is no file; write a pattern that names files, such as {path}/*")
        self.size, self.changed = status.st_size, status.st_mtime_ns

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`. Raises BadConfiguration if the file is shorter, StorageUnavailable if it cannot be read."""
        try:
            content = os.pread(self._descriptor, length, offset)
        except OSError as error:
            raise StorageUnavailable(f"data file {self.path} cannot be read: {error.strerror}") from error
        if len(content) < length:
            raise BadConfiguration(
                f"data file {self.path} is truncated: it ends at byte {offset + len(content)}, and {length} bytes are wanted from "
                f"byte {offset}; write it again"
            )
        return content


def open_all(paths: Sequence[Path]) -> list[OpenFile]:
    """Opens all files, and raises the limit of descriptors if needed. Raises BadConfiguration."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(paths) + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise BadConfiguration(f"{len(paths)} data files, and a process may open {hard} here; put more samples into a file")
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return [OpenFile(path) for path in paths]


def matching(patterns: object, where: str) -> list[Path]:
    """The files that match a pattern or a list of patterns, sorted. Raises BadConfiguration that lists what is there instead."""
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(one, str) and one for one in listed):
        raise BadConfiguration(
            f"{where}: a file name, a pattern such as data/train-*.csv, or a list of these is needed, found {patterns!r}"
        )
    files: list[Path] = []
    for pattern in listed:
        paths = sorted(Path(name) for name in glob.glob(pattern, recursive=True))
        if not paths:
            raise BadConfiguration(f"{where}: there is no file {os.path.abspath(pattern)}; {_there(Path(pattern).parent)}")
        files += [path for path in paths if path not in files]
    return files


def _there(folder: Path) -> str:
    if glob.has_magic(str(folder)):
        return "check the pattern, and that the volume with the data is mounted"
    if not folder.is_dir():
        return f"the folder {folder.absolute()} does not exist; mount the volume with the data, or write where they are"
    names = sorted(entry.name for entry in folder.iterdir())
    return f"the folder has {', '.join(names[:_NAMED])}{' and more' if len(names) > _NAMED else ''}" if names else "the folder is empty"
