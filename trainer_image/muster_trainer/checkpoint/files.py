"""Durable file operations, in folders and in object stores, and storage errors said in words.

A file is on disk only after fsync of it and of the directory that names it; every write here does both. An object is durable
once it is written. Frameworks write and read on this machine: for an object store in a folder of their own (`workplace`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from muster_trainer.contract import StorageUnavailable
from muster_trainer.objects import ObjectPath, Place

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

_OBJECT_REMEDIES = {
    errno.EACCES: "access is denied: do the credentials (checkpoint.storage.secretRef) allow to list, read, write and delete there?",
    errno.ENOENT: "it is missing: does the bucket exist?",
    errno.ENOSPC: "no space is left, or the quota is used up: free some, or keep fewer checkpoints (checkpoint.keep)",
}


def storage_error(path: Place, error: OSError) -> StorageUnavailable:
    """The typed error for a failed operation on `path`."""
    remedies = _OBJECT_REMEDIES if "://" in str(error.filename) else _REMEDIES
    reason = remedies.get(error.errno or 0, f"{error.strerror or error}: is the storage reachable?")
    return StorageUnavailable(f"checkpoint storage {error.filename or path}: {reason}")


@contextmanager
def storage(path: Place) -> Iterator[None]:
    """Turns every OSError inside into StorageUnavailable that names `path` and the remedy."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def make_directory(path: Place) -> None:
    """Makes `path` with its parents, durably."""
    if isinstance(path, ObjectPath):
        return
    path.mkdir(parents=True, exist_ok=True)
    sync_directory(path)
    sync_directory(path.parent)


def write_file(path: Place, content: bytes) -> None:
    """Writes a whole file durably. A crash in the middle may leave a part of it."""
    if isinstance(path, ObjectPath):
        path.write_bytes(content)
        return
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


def sync_file(path: Path) -> None:
    """Flushes a file that another has written; its directory is flushed with the next `write_file`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flushes every file and directory below and including `root`."""
    for directory, _, names in os.walk(root):
        for name in names:
            sync_file(Path(directory) / name)
        sync_directory(Path(directory))


def remove_file(path: Place) -> None:
    """Removes `path` durably; a missing one is fine."""
    if isinstance(path, ObjectPath):
        path.remove()
        return
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def remove_tree(path: Place) -> None:
    """Removes a directory; what is gone already is fine."""
    if isinstance(path, ObjectPath):
        path.remove()
        return
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def size(path: Place) -> int:
    return path.size() if isinstance(path, ObjectPath) else path.stat().st_size


def sha256(path: Place) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def workplace(place: Place) -> Path:
    """Where the files that shall lie at `place` are written first; `leave` removes what is none of the storage."""
    return Path(tempfile.mkdtemp(prefix="muster-save-")) if isinstance(place, ObjectPath) else place


def keep(file: Path, place: Place) -> None:
    """Makes a file of the workplace durable, and what lies at `place`."""
    if isinstance(place, ObjectPath):
        place.upload(file)
    else:
        sync_file(file)


def leave(workplace: Path, place: Place) -> None:
    if workplace != place:
        remove_tree(workplace)
