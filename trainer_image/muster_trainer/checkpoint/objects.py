"""Files in an object store (s3://bucket/prefix, by fsspec), with the methods of pathlib.Path that checkpoints and data files need.

An object store has no directories. A folder exists while there is an object below it. An object that exists is complete.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any

CONNECT_SECONDS, READ_SECONDS = 5, 15
ATTEMPTS = 3
S3_CONFIG = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": READ_SECONDS,
    "retries": {"total_max_attempts": ATTEMPTS, "mode": "standard"},
}
S3_TRIES = 2
"""How often s3fs tries a request, with all attempts of the client each time. It is needed if the content of an answer breaks off."""
WRITE_SECONDS = S3_TRIES * ATTEMPTS * READ_SECONDS
"""For a request that writes. The client waits without limit until the store asks for the content (Expect: 100-continue)."""
SLOWEST_BYTES = 1 << 20
"""Bytes in a second. A longer content has more time in proportion."""

FULL = ("InsufficientStorage", "StorageFull", "QuotaExceeded")  # of versitygw and HTTP 507, of MinIO, of Ceph


@dataclass(frozen=True)
class ObjectPath:
    """A path in an object store. `uri` has no slash at its end.

    Every method raises OSError if the store fails, FileNotFoundError for a missing object, and ValueError for a damaged one.
    """

    uri: str

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.uri}/{name}")

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    @property
    def suffix(self) -> str:
        return self.name.removeprefix(self.stem)

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.uri.rpartition("/")[0])

    def with_name(self, name: str) -> ObjectPath:
        return self.parent / name

    def resolve(self) -> ObjectPath:
        return self

    def glob(self, pattern: str) -> list[ObjectPath]:
        """The entries directly below this folder whose names match `pattern`. Empty if there is no such folder."""
        try:
            with self._store() as store:
                paths = store.ls(self.uri, detail=False)
        except FileNotFoundError:
            return []
        names = {path.rstrip("/").rpartition("/")[2] for path in paths}
        return [self / name for name in sorted(names) if fnmatchcase(name, pattern)]

    def files(self) -> list[tuple[str, int, str]]:
        """Every object below this path: its relative path, its size in bytes, and a text that changes with its content.

        The relative path of this object itself is empty. Raises FileNotFoundError if there is no such bucket.
        """
        root = self.uri.partition("://")[2]
        with self._store() as store:
            objects = store.find(self.uri, detail=True)
            if not objects and "/" not in root:
                store.ls(self.uri)  # fails if the bucket does not exist
        return [
            (path.removeprefix(root).removeprefix("/"), int(info["size"]), str(info.get("ETag") or info.get("LastModified")))
            for path, info in objects.items()
            if info["type"] == "file" and not path.endswith("/")
        ]

    def exists(self) -> bool:
        with self._store() as store:
            return bool(store.exists(self.uri))

    def is_file(self) -> bool:
        with self._store() as store:
            return bool(store.isfile(self.uri))

    def is_dir(self) -> bool:
        return bool(self.glob("*"))

    def size(self) -> int:
        with self._store() as store:
            return int(store.size(self.uri))

    def status(self) -> tuple[int, str]:
        """The size in bytes, and a text that changes with the content."""
        with self._store() as store:
            status = store.info(self.uri)
            if status["type"] != "file":
                raise FileNotFoundError
            return int(status["size"]), str(status.get("ETag") or status.get("LastModified"))

    def read_range(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end` (exclusive). There are fewer if the object is shorter."""
        with self._store() as store:
            content: bytes = store.cat_file(self.uri, start=begin, end=end) if begin < end else b""
            return content

    def read_bytes(self) -> bytes:
        with self._store() as store:
            content: bytes = store.cat_file(self.uri)
            return content

    def write_bytes(self, content: bytes) -> None:
        with self._store() as store:
            store.pipe_file(self.uri, content, timeout=_write_seconds(len(content)))

    def create(self, content: bytes) -> bool:
        """Writes the object unless it exists. Returns whether it was written. The store decides, by a PUT with If-None-Match."""
        try:
            with self._store() as store:
                store.pipe_file(self.uri, content, mode="create", timeout=_write_seconds(len(content)))
        except FileExistsError:
            return False
        return True

    @contextmanager
    def open(self) -> Iterator[BufferedReader]:
        """Opens the object for reading."""
        with self._store() as store, store.open(self.uri) as file:
            yield file

    def upload(self, source: Path) -> None:
        with self._store() as store:
            store.put_file(str(source), self.uri, timeout=_write_seconds(source.stat().st_size))

    def download(self, target: Path) -> None:
        with self._store() as store:
            store.get_file(self.uri, str(target))

    def remove(self) -> None:
        """Removes the object, or all objects below the path."""
        try:
            with self._store() as store:
                store.rm(self.uri, recursive=True, timeout=_write_seconds(0))
        except FileNotFoundError:
            pass

    @contextmanager
    def _store(self) -> Iterator[Any]:
        """Gives the file system. Turns its errors into OSErrors that name this path."""
        try:
            yield _file_system(self.uri.partition("://")[0])
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", self.uri) from error
        except FileExistsError as error:
            raise FileExistsError(errno.EEXIST, "there is such an object", self.uri) from error
        except PermissionError as error:
            raise PermissionError(errno.EACCES, str(error), self.uri) from error
        except TimeoutError as error:
            raise TimeoutError(errno.ETIMEDOUT, "the store does not answer", self.uri) from error
        except Exception as error:
            message = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
            if "Checksum" in type(error).__name__:  # the client raises it if the content is not that which was stored
                raise ValueError(f"{self.name} is damaged: {message}") from error
            raise OSError(errno.ENOSPC if any(code in message for code in FULL) else errno.EIO, message, self.uri) from error


def _write_seconds(size: int) -> float:
    return WRITE_SECONDS + size / SLOWEST_BYTES


Location = Path | ObjectPath
"""A folder or file of the checkpoint storage."""


def location_of(text: str) -> Location:
    return ObjectPath(text.rstrip("/")) if "://" in text else Path(text)


@cache
def _file_system(protocol: str) -> Any:
    """The client of a protocol. The environment has its credentials, region and endpoint (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...)."""
    try:
        import fsspec

        options = {"config_kwargs": S3_CONFIG} if protocol == "s3" else {}
        client = fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True, **options)
        if protocol == "s3":
            client.retries = S3_TRIES
        return client
    except ImportError as error:
        raise OSError(f"{error}: pip install fsspec s3fs, or use the bundled image") from error


def drop_clients() -> None:
    """Drops all clients. Later operations create new ones, which read the environment again."""
    _file_system.cache_clear()


os.register_at_fork(after_in_child=_file_system.cache_clear)  # the connections and threads of clients belong to the parent
