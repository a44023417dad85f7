"""Opens files in folders that processes of a job can write to."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, mode: int = 0o666, folder: int | None = None) -> int:
    """Opens a file and returns its descriptor. `folder` is the descriptor of the folder that the path is relative to, if any.

    Raises OSError for a file of another kind, because a pipe may block, and a link may lead elsewhere.
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
