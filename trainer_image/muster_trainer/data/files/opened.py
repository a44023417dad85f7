"""Open data files. They are read at an offset. They are not mapped, because a truncated mapped file ends the process by a signal."""

from __future__ import annotations

import glob
import io
import os
import resource
import stat
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from muster_contract.environment import expanded
from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_trainer.checkpoint.objects import Location, ObjectPath, location_of

SPARE_DESCRIPTORS = 256
_NAMED = 5
_BLOCK = 1 << 20  # the least bytes of an object that are fetched at once
_BLOCKS = 32  # blocks in the cache of a process, over all objects


class OpenFile:
    """One file, open as long as this object exists. `size` is in bytes. `changed` is a text that changes with the content. For a file it
    is the time of the last change, in nanoseconds since 1970."""

    path: Location
    size: int
    changed: int | str

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block
            weakref.finalize(self, os.close, self._descriptor).atexit = False
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise BadConfiguration(f"data file {path} cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            raise BadConfiguration(f"data file {path} is not a file; write a pattern that names files, such as {path}/*")
        self.size, self.changed = status.st_size, status.st_mtime_ns

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on. Raises BadConfiguration if the file is too short, and StorageUnavailable if a read fails."""
        try:
            content = self._read(offset, length)
        except OSError as error:
            raise StorageUnavailable(f"data file {self.path} cannot be read: {error.strerror}") from error
        if len(content) < length:
            raise BadConfiguration(
                f"data file {self.path} is truncated: it ends at byte {offset + len(content)}, and {length} bytes are wanted from "
                f"byte {offset}; write it again"
            )
        return content

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)


class OpenObject(OpenFile):
    """One object in an object store. Short reads fetch a block, and neighbouring records are read from the same block."""

    def __init__(self, path: ObjectPath) -> None:
        self.path: ObjectPath = path
        try:
            self.size, self.changed = path.status()
        except FileNotFoundError as error:
            raise BadConfiguration(f"data file {path} cannot be opened: {error.strerror}") from error
        except OSError as error:
            raise StorageUnavailable(f"data file {path} cannot be opened: {error.strerror}") from error

    def _read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if end - offset >= _BLOCK:
            return self.path.read_range(offset, end)
        blocks = range(offset // _BLOCK, -(-end // _BLOCK))
        content = b"".join(_block(self.path, number, self.size) for number in blocks)
        return content[offset - blocks.start * _BLOCK :][: end - offset]


class Stream(io.RawIOBase):
    """An open file as a file object. One read may have at most `most` bytes, unless that is None."""

    def __init__(self, file: OpenFile, most: int | None = None) -> None:
        self._file, self._most, self._position = file, most, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence])
        return self._position

    def read(self, length: int = -1) -> bytes:
        rest = max(self._file.size - self._position, 0)
        length = rest if length is None or length < 0 else min(length, rest)
        if self._most is not None and length > self._most:
            raise BadConfiguration(
                f"data file {self._file.path} has {length} bytes in one piece at byte {self._position}, and at most {self._most} are read; "
                "write smaller pages or record batches"
            )
        content = self._file.read(self._position, length)
        self._position += length
        return content


def opened(path: Location) -> OpenFile:
    return OpenObject(path) if isinstance(path, ObjectPath) else OpenFile(path)


def open_all(paths: Sequence[Location]) -> list[OpenFile]:
    """Opens all files, and raises the limit of open descriptors if needed. Raises BadConfiguration."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = sum(isinstance(path, Path) for path in paths) + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise BadConfiguration(f"{len(paths)} data files, and a process may open {hard} here; put more samples into a file")
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return [opened(path) for path in paths]


def matching(patterns: object, where: str) -> list[Location]:
    """The files that match a pattern or a list of patterns, sorted. If there are none, raises BadConfiguration, which lists the files
    that are there."""
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(one, str) and one for one in listed):
        raise BadConfiguration(
            f"{where}: a file name, a pattern such as data/train-*.csv, or a list of these is needed, found {patterns!r}"
        )
    files: list[Location] = []
    for pattern in (expanded(each, os.environ) for each in listed):
        paths = _objects(pattern, where) if "://" in pattern else [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
        if not paths:
            name = pattern if "://" in pattern else os.path.abspath(pattern)
            raise BadConfiguration(f"{where}: there is no file {name}; {_there(location_of(pattern).parent)}")
        files += [path for path in paths if path not in files]
    return files


def _objects(pattern: str, where: str) -> Sequence[Location]:
    path = ObjectPath(pattern)
    if glob.has_magic(str(path.parent)):
        raise BadConfiguration(f"{where}: {pattern} has a pattern for a folder; in an object store, only the name of a file may have one")
    try:
        return path.parent.glob(path.name)
    except OSError as error:
        raise StorageUnavailable(f"{where}: {pattern} cannot be listed: {error.strerror}; is the storage reachable?") from error


@lru_cache(maxsize=_BLOCKS)
def _block(path: ObjectPath, number: int, size: int) -> bytes:
    return path.read_range(number * _BLOCK, min((number + 1) * _BLOCK, size))


def _there(folder: Location) -> str:
    if glob.has_magic(str(folder)):
        return "check the pattern, and that the volume with the data is mounted"
    if isinstance(folder, ObjectPath):
        names = [path.name for path in folder.glob("*")]
    elif folder.is_dir():
        names = sorted(entry.name for entry in folder.iterdir())
    else:
        return f"the folder {folder.absolute()} does not exist; mount the volume with the data, or write where they are"
    return f"the folder has {', '.join(names[:_NAMED])}{' and more' if len(names) > _NAMED else ''}" if names else "the folder is empty"
