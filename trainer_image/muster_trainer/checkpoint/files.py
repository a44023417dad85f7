"""Durable file operations, in folders and in object stores, and storage errors said in words.

A file is on disk only after fsync of it and of the directory that names it; every write here does both. An object is durable
once it is written. Frameworks write and read on this machine: for an object store in a folder of their own (`workplace`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

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
    errno.ELOOP: "a symbolic link stands where a file is needed: remove it",
}

_NO_DETOUR = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for files in the storage: a symbolic link is an error, and a pipe is not waited for."""

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
    with create(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


def create(path: Path) -> BinaryIO:
    """Opens a file of this machine for writing, from its start. Raises OSError where a symbolic link or a pipe has its name: what is
    written must not go elsewhere, nor wait for a reader."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_DETOUR, 0o666), "wb")


def open_regular(path: Path) -> BinaryIO:
    """Opens a file of this machine for reading. Raises ValueError where it is not a regular file: reading a pipe or a device may never
    end, and a symbolic link leads elsewhere."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | _NO_DETOUR), "rb")
    except IsADirectoryError:
        raise ValueError(f"{path.name} is not a regular file") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG):
            raise ValueError(f"{path.name} is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path.name} is not a regular file")
    return file


def read(path: Place, *, limit: int) -> bytes:
    """The content of a regular file or object. Raises ValueError where it is longer than `limit` bytes, or of another kind."""
    if isinstance(path, ObjectPath):
        content = path.read_bytes() if path.size() <= limit else None
    else:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    if content is None or len(content) > limit:
        raise ValueError(f"{path.name} is longer than {limit} bytes")
    return content


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


def is_folder(path: Place) -> bool:
    """Whether it is a folder itself, and not a symbolic link to one."""
    return path.is_dir() and not (isinstance(path, Path) and path.is_symlink())


def size(path: Place) -> int:
    """Bytes of a regular file or object. Raises ValueError for a file of another kind."""
    if isinstance(path, ObjectPath):
        return path.size()
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size


def sha256(path: Place) -> str:
    """Raises ValueError for a file of another kind than a regular one."""
    with path.open("rb") if isinstance(path, ObjectPath) else open_regular(path) as file:
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
