"""Durable file operations, and storage errors said in words.

A file is on disk only after fsync of it and of the directory that names it; every write here does both.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from muster_trainer.contract import StorageUnavailable

_REMEDIES = {
    errno.ENOSPC: "no space is left: free some, keep fewer checkpoints (checkpoint.keep), or use a larger volume",
    errno.EDQUOT: "the quota is used up: free some space, or keep fewer checkpoints (checkpoint.keep)",
    errno.EROFS: "the file system is read-only: mount it writable",
    errno.EACCES: "permission is denied: give the user of the training container write access",
    errno.EPERM: "permission is denied: give the user of the training container write access",
    errno.ENOENT: "it is missing: is the volume mounted?",
    errno.ENOTDIR: "a part of the path is no directory: name another checkpoint directory",
    errno.EEXIST: "a file stands where a directory is needed: name another checkpoint directory",
}


def storage_error(path: Path, error: OSError) -> StorageUnavailable:
    """The typed error for a failed operation on `path`."""
    reason = _REMEDIES.get(error.errno or 0, f"{error.strerror or error}: is the storage reachable?")
    return StorageUnavailable(f"checkpoint storage {error.filename or path}: {reason}")


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turns every OSError inside into StorageUnavailable that names `path` and the remedy."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def make_directory(path: Path) -> None:
    """Makes `path` with its parents, durably."""
    path.mkdir(parents=True, exist_ok=True)
    sync_directory(path)
    sync_directory(path.parent)


def write_file(path: Path, content: bytes) -> None:
    """Writes a whole file durably. A crash in the middle may leave a part of it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some network file systems cannot fsync a directory (EINVAL); they order the operations themselves.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flushes every file and directory below and including `root`."""
    for directory, _, names in os.walk(root):
        for name in names:
            descriptor = os.open(Path(directory) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(directory))


def remove_file(path: Path) -> None:
    """Removes `path` durably; a missing one is fine."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def remove_tree(path: Path) -> None:
    """Removes a directory; what is gone already is fine."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
