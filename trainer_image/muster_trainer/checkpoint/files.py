"""Durable file operations in folders and object stores, and storage errors with their remedies.

Every write here flushes the file and its directory with fsync, because a file is durable only after both. An object is durable when it is
written. Frameworks write and read files on this machine. For an object store they use a temporary folder (`staging_folder`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from muster_contract import regular_files
from muster_contract.errors import StorageForbidden, StorageFull, StorageReadOnly, StorageUnavailable
from muster_trainer.checkpoint.objects import Location, ObjectPath

_REMEDIES = {
    errno.ENOSPC: "no space is left: free some, keep fewer checkpoints (checkpoint.keep), or use a larger volume",
    errno.EDQUOT: "the quota is used up: free some space, or keep fewer checkpoints (checkpoint.keep)",
    errno.EROFS: "the file system is read-only: mount it writable",
    errno.EACCES: "permission is denied: give the user of the training container write access",
    errno.EPERM: "permission is denied: give the user of the training container write access",
    errno.ENOENT: "it is missing: is the volume mounted?",
    errno.ENOTDIR: "a part of the path is not a directory: name another checkpoint directory",
    errno.EEXIST: "there is a file instead of a directory: name another checkpoint directory",
    errno.ELOOP: "there is a symbolic link instead of a file: remove it",
}

_KINDS: Mapping[int, type[StorageUnavailable]] = {
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
    errno.EROFS: StorageReadOnly,
    errno.EACCES: StorageForbidden,
    errno.EPERM: StorageForbidden,
}

NO_DETOUR = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for files in the storage: a symbolic link is an error, and opening a pipe does not block."""

_CHUNK = 1 << 20

_OBJECT_REMEDIES = {
    errno.EACCES: "access is denied: do the credentials (checkpoint.storage.secretRef) allow to list, read, write and delete there?",
    errno.ENOENT: "it is missing: does the bucket exist?",
    errno.ENOSPC: "no space is left, or the quota is used up: free some, or keep fewer checkpoints (checkpoint.keep)",
}


def storage_error(path: Location, error: OSError) -> StorageUnavailable:
    """The error for a failed operation on `path`, with a remedy."""
    remedies = _OBJECT_REMEDIES if "://" in str(error.filename) else _REMEDIES
    reason = remedies.get(error.errno or 0, f"{error.strerror or error}: is the storage reachable?")
    return _KINDS.get(error.errno or 0, StorageUnavailable)(f"checkpoint storage {error.filename or path}: {reason}")


@contextmanager
def storage(path: Location) -> Iterator[None]:
    """Turns an OSError that the block raises into StorageUnavailable, which names `path` and a remedy."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def make_directory(path: Location) -> None:
    """Creates `path` and its parents durably."""
    if isinstance(path, ObjectPath):
        return
    path.mkdir(parents=True, exist_ok=True)
    sync_directory(path)
    sync_directory(path.parent)


def write_file(path: Location, content: bytes) -> None:
    """Writes a whole file durably. A crash in the middle may leave a part of it."""
    if isinstance(path, ObjectPath):
        path.write_bytes(content)
        return
    with create(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


def claim(path: Location) -> bool:
    """Creates an empty file durably. Returns False if it exists already. If several processes call it, exactly one gets True."""
    if isinstance(path, ObjectPath):
        return path.create(b"")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except FileExistsError:
        return False
    sync_directory(path.parent)
    return True


def create(path: Path) -> BinaryIO:
    """Opens a file on this machine for writing, and empties it. Raises OSError for a symbolic link, which may point outside the
    checkpoint, and for a pipe, which may block."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_DETOUR, 0o666), "wb")


def open_regular(path: Path) -> BufferedReader:
    """Opens a file on this machine for reading. Raises ValueError if it is not a regular file, because a read from a pipe or a device may
    never end, and a symbolic link may point outside the checkpoint."""
    try:
        return os.fdopen(regular_files.open_regular(path), "rb")
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG):
            raise ValueError(f"{path.name} is not a regular file") from None
        raise


def read(path: Location, *, limit: int) -> bytes:
    """The content of a regular file or object. Raises ValueError for a file of another kind, or of more than `limit` bytes."""
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
        # Some network file systems cannot fsync a directory (EINVAL). They order the operations themselves.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flushes a file that other code has written. The next `write_file` flushes its directory."""
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


def remove_file(path: Location) -> None:
    """Removes `path` durably, if it exists."""
    if isinstance(path, ObjectPath):
        path.remove()
        return
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def remove_tree(path: Location) -> None:
    """Removes a directory with its content, if it exists."""
    if isinstance(path, ObjectPath):
        path.remove()
        return
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def is_folder(path: Location) -> bool:
    """Whether `path` is a folder, and not a symbolic link to one."""
    return path.is_dir() and not (isinstance(path, Path) and path.is_symlink())


def size(path: Location) -> int:
    """The size of a regular file or object in bytes. Raises ValueError for a file of another kind."""
    if isinstance(path, ObjectPath):
        return path.size()
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size


def sha256(path: Location, *, limit: int = sys.maxsize) -> str:
    """The SHA-256 of a regular file or object, in hexadecimal. Reads at most `limit` bytes, because a file may grow meanwhile.

    Raises ValueError for a file of another kind.
    """
    digest = hashlib.sha256()
    with path.open() if isinstance(path, ObjectPath) else open_regular(path) as file:
        while limit > 0 and (chunk := file.read(min(limit, _CHUNK))):
            digest.update(chunk)
            limit -= len(chunk)
    return digest.hexdigest()


def staging_folder(target: Location) -> Path:
    """The folder on this machine for writing the files of `target`: a temporary one for an object store, else `target` itself."""
    return Path(tempfile.mkdtemp(prefix="muster-save-")) if isinstance(target, ObjectPath) else target


def store_file(file: Path, target: Location) -> None:
    """Stores a file of the staging folder durably at `target`."""
    if isinstance(target, ObjectPath):
        target.upload(file)
    else:
        sync_file(file)


def remove_staging(folder: Path, target: Location) -> None:
    """Removes the staging folder of `target`, if it is a temporary one."""
    if folder != target:
        remove_tree(folder)
