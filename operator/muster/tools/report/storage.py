"""The checkpoint storage, for readers of histories: a folder, or a prefix of an S3 bucket.

The training code of jobs can write there. So names are single parts of a path, links are not followed, and all reads are within bounds.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from cachetools import LRUCache, TTLCache, cachedmethod

from muster.local.files import content_of, within

MOST_ENTRIES = 10_000
"""The largest number of names in a folder that are read, and of objects in a job's history."""
MOST_PAGES = 1000
"""The largest number of answers to a listing. A store may send answers without a name in them, for ever."""
LISTING_SECONDS = 30.0
"""Seconds for which a listing of a bucket is valid."""
MOST_LISTED = 200_000
"""The largest number of names in the listings in memory."""
MOST_CACHED = 64 << 20
"""The largest number of bytes of objects in memory."""
CONNECT_SECONDS, READ_SECONDS = 5, 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StorageError(ValueError):
    """The address of a storage is not valid, or its client is not installed. The message has the remedy."""


class Folder(Protocol):
    """A folder that is open. Its methods raise OSError."""

    def names(self) -> list[str]:
        """The names of the folders in this folder, sorted, without links."""

    def folder(self, name: str) -> Any:
        """A context manager with the folder of this name in this folder."""

    def content(self, name: str, limit: int) -> bytes:
        """The content of a file. Raises ValueError if it is not a regular file, or is longer than `limit` bytes."""


class Storage(Protocol):
    """The folder or prefix with the folders of the namespaces. Its methods raise OSError."""

    def names(self, *path: str) -> list[str]:
        """The names of the folders in that folder, sorted, without links."""

    def folder(self, *path: str) -> Any:
        """A context manager with the folder at this path."""


def storage_of(place: str | Path | Storage) -> Storage:
    """The storage at a path, or at an address such as s3://bucket/prefix. Raises StorageError."""
    if isinstance(place, str) and "://" in place:
        parts = urlsplit(place)
        if parts.scheme == "file":
            return Directory(Path(parts.path))
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise StorageError(f"{place}: is not an address of histories; write a folder or s3://bucket/prefix")
        return Bucket(parts.netloc, parts.path.strip("/"))
    return Directory(Path(place)) if isinstance(place, str | Path) else place


def is_plain(name: str) -> bool:
    """Whether this is one part of a path, and leads to no other folder."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and len(name) <= 253


def _checked(name: str) -> str:
    if not is_plain(name):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", name)
    return name


@dataclass(frozen=True)
class Directory:
    """A storage in a folder of this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def names(self, *path: str) -> list[str]:
        with self.folder(*path) as folder:
            return folder.names()

    @contextmanager
    def folder(self, *path: str) -> Iterator[_OpenDirectory]:
        with ExitStack() as stack:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            folder = _OpenDirectory(descriptor)
            for name in path:
                folder = stack.enter_context(folder.folder(name))
            yield folder


@dataclass(frozen=True)
class _OpenDirectory:
    descriptor: int

    def names(self) -> list[str]:
        with os.scandir(self.descriptor) as entries:
            return sorted(entry.name for entry in islice(entries, MOST_ENTRIES) if entry.is_dir(follow_symlinks=False))

    @contextmanager
    def folder(self, name: str) -> Iterator[_OpenDirectory]:
        descriptor = os.open(_checked(name), _FOLDER, dir_fd=self.descriptor)
        try:
            yield _OpenDirectory(descriptor)
        finally:
            os.close(descriptor)

    def content(self, name: str, limit: int) -> bytes:
        return content_of(name, limit, folder=self.descriptor)


@dataclass(frozen=True)
class _Listing:
    """The content of a bucket below a prefix: folders, or the objects of all folders with their ETags."""

    folders: tuple[str, ...]
    objects: dict[str, str]


class Bucket:
    """A storage in a bucket. Credentials, region and address of the store come from the environment (AWS_ACCESS_KEY_ID,
    AWS_ENDPOINT_URL and others)."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._client = _client(f"s3://{bucket}/{prefix}".rstrip("/"))
        self._listings: TTLCache[object, _Listing] = TTLCache(MOST_LISTED, LISTING_SECONDS, getsizeof=_names_in)
        self._contents: LRUCache[object, bytes] = LRUCache(MOST_CACHED, getsizeof=lambda content: 100 + len(content))
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def names(self, *path: str) -> list[str]:
        return [name for name in self._listed(self._below(path), deep=False).folders if is_plain(name)]

    @contextmanager
    def folder(self, *path: str) -> Iterator[_BucketFolder]:
        """The folder. One listing covers everything below it."""
        prefix = self._below(path)
        yield _BucketFolder(self, prefix, self._listed(prefix, deep=True).objects)

    @cachedmethod(attrgetter("_contents"), lock=attrgetter("_lock"))
    def content(self, key: str, tag: str, limit: int) -> bytes:
        """The content of an object with this ETag, of at most `limit` + 1 bytes. Raises OSError."""
        with _store_errors(key):
            answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes=0-{limit}")
            with answer["Body"] as body:
                content: bytes = body.read(limit + 1)
        return content

    def _below(self, path: tuple[str, ...]) -> str:
        return "".join(f"{part}/" for part in (self._prefix, *map(_checked, path)) if part)

    @cachedmethod(attrgetter("_listings"), lock=attrgetter("_lock"))
    def _listed(self, prefix: str, *, deep: bool) -> _Listing:
        folders: list[str] = []
        objects: dict[str, str] = {}
        request: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix, **({} if deep else {"Delimiter": "/"})}
        with _store_errors(prefix):
            for _ in range(MOST_PAGES):
                answer = self._client.list_objects_v2(**request)
                folders += [str(each["Prefix"])[len(prefix) : -1] for each in answer.get("CommonPrefixes", ())]
                if deep:
                    objects |= {str(each["Key"])[len(prefix) :]: str(each.get("ETag", "")) for each in answer.get("Contents", ())}
                if not answer.get("NextContinuationToken") or len(folders) + len(objects) >= MOST_ENTRIES:
                    break
                request["ContinuationToken"] = answer["NextContinuationToken"]
        return _Listing(tuple(sorted(folders)), objects)


def _names_in(listing: _Listing) -> int:
    return 1 + len(listing.folders) + len(listing.objects)


@dataclass(frozen=True)
class _BucketFolder:
    """A folder in a listing. `objects` has the names below it, with their ETags."""

    bucket: Bucket
    prefix: str
    objects: dict[str, str]

    def names(self) -> list[str]:
        return sorted({first for name in self.objects if (first := name.partition("/")[0]) != name and is_plain(first)})

    @contextmanager
    def folder(self, name: str) -> Iterator[_BucketFolder]:
        below = f"{_checked(name)}/"
        objects = {each[len(below) :]: tag for each, tag in self.objects.items() if each.startswith(below)}
        yield _BucketFolder(self.bucket, self.prefix + below, objects)

    def content(self, name: str, limit: int) -> bytes:
        tag = self.objects.get(name)
        if tag is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", name)
        return within(name, self.bucket.content(self.prefix + name, tag, limit), limit)


def _client(uri: str) -> Any:
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise StorageError(f"{uri}: its client is not installed: in a checkout of Muster, pip install '.[history]'") from error
    config = Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries={"max_attempts": 1, "mode": "standard"})
    try:
        return Session().create_client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"{uri}: {error}; set AWS_REGION, AWS_ENDPOINT_URL and the credentials in the environment") from error


@contextmanager
def _store_errors(key: str) -> Iterator[None]:
    """Turns the errors of the client into OSErrors."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        missing = code in ("NoSuchKey", "404")
        raise OSError(errno.ENOENT if missing else errno.EIO, " ".join(str(error).split()), key) from error
    except (BotoCoreError, HTTPClientError, OSError) as error:
        raise OSError(errno.EIO, " ".join(str(error).split()), key) from error
