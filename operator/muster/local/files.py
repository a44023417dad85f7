"""Reads and opens files in folders that processes of a job can write to: only regular files, and within bounds."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_RUN_BYTES = 16 << 20
"""The largest number of bytes of the job and of the status in a run directory."""


def content_of(path: str | Path, limit: int, *, folder: int | None = None) -> bytes:
    """The content of a file. `folder` is the descriptor of the folder that the path is relative to, if any.

    Raises OSError, also if it is not a regular file, and ValueError if it is longer than `limit` bytes."""
    with os.fdopen(open_regular(path, folder=folder), "rb") as file:
        content = file.read(limit + 1)
    return within(path, content, limit)


def tail_of(path: Path, limit: int) -> str:
    """The last `limit` bytes of a file as text. Empty if it cannot be read, or is not a regular file."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, mode: int = 0o666, folder: int | None = None) -> int:
    """The descriptor of a regular file, opened with these `flags` of `os.open`. `folder` as in `content_of`.

    Processes of a job can write to the folders of its files. Raises OSError for a file of another kind, because a pipe may block, and a
    link may lead elsewhere.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads
            raise _irregular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(path)
    return descriptor


def _irregular(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file; remove it", str(path))


def within(name: str | Path, content: bytes, limit: int) -> bytes:
    """The content. Raises ValueError if it is longer than `limit` bytes."""
    if len(content) > limit:
        raise ValueError(f"{name} is longer than {limit} bytes")
    return content
