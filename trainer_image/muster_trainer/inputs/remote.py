"""The interface of a source: it lists and fetches the files of one revision. `hub` and `bucket` implement it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from muster_contract.errors import InputNotFound, InputRefused, TrainerError
from muster_contract.inputs import is_plain

MOST_FILES = 100_000
_BLOCK = 1 << 20


@dataclass(frozen=True)
class RemoteFile:
    """A file of a source. `path` is relative and plain. `digest` is `sha256:...`, `git:...` or empty."""

    path: str
    size: int
    digest: str = ""


@dataclass(frozen=True)
class Listing:
    """The files of a source at a revision."""

    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class Remote(Protocol):
    """A source. `listing` and `fetch` may raise any exception, which `error` converts to InputRefused or InputUnavailable."""

    identity: tuple[str, ...]
    """Texts that identify the source in the cache, without its revision."""
    folder: str
    """The folder, among the fetched files, that the trainer gets."""
    fixed: str
    """The revision, if the source names one that cannot change, else empty."""

    has_revisions: bool
    """Whether `listing` can list an older revision."""

    def listing(self, revision: str) -> Listing:
        """The files at `revision`, or at the newest one if `revision` is empty or the source has no revisions."""

    def fetch(self, file: RemoteFile, listing: Listing, target: Path) -> None:
        """Writes one file below `target`. It gives the file its name when the file is complete."""

    def error(self, error: Exception) -> TrainerError:
        """Converts an exception of `listing` or `fetch` to one with a message for the user."""


def checked(name: str, listing: Listing) -> Listing:
    """Returns the listing if Muster can store it. Raises InputRefused otherwise: its names and sizes come from the network."""
    if not listing.files:
        raise InputNotFound(f"input {name}: there are no files; correct the folder or prefix in its source")
    if len(listing.files) > MOST_FILES:
        raise InputRefused(f"input {name}: has {len(listing.files)} files; at most {MOST_FILES} are possible: pack them into larger ones")
    paths = {file.path for file in listing.files}
    if len(paths) < len(listing.files):
        raise InputRefused(f"input {name}: the listing names a file twice")
    for file in listing.files:
        if not is_plain(file.path):
            raise InputRefused(f"input {name}: {file.path!r:.120} is not a plain relative path; remove it from the source")
        if any(str(parent) in paths for parent in Path(file.path).parents):
            raise InputRefused(f"input {name}: {file.path!r:.120} is below a name that is a file, too")
        if file.size < 0:
            raise InputRefused(f"input {name}: the listing has no size of {file.path!r:.120}")
    return listing


def fault(folder: Path, listing: Listing) -> str:
    """Compares names, sizes and digests of the files in the folder with the listing. Returns the first difference, or an empty text."""
    listed = {file.path: file for file in listing.files}
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            relative, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
            if stat.S_ISLNK(mode) or not (stat.S_ISDIR(mode) or relative in listed):
                return f"{relative!r:.120} is not in the listing"
    for file in listing.files:
        if problem := file_fault(folder / file.path, file):
            return problem
    return ""


def file_fault(path: Path, file: RemoteFile) -> str:
    """Compares one file with the listing. Returns the first difference, or an empty text."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return f"{file.path} is missing"
    if not stat.S_ISREG(status.st_mode):
        return f"{file.path} is not a file"
    if status.st_size != file.size:
        return f"{file.path} has {status.st_size} bytes instead of {file.size}"
    if file.digest and digest_of(path, file.digest.partition(":")[0], status.st_size) != file.digest:
        return f"the content of {file.path} does not have the listed hash"
    return ""


def digest_of(path: Path, kind: str, size: int) -> str:
    """The digest of a file of `size` bytes. `kind` is `sha256`, or `git` for the id of a blob."""
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"


def setting(variables: Mapping[str, str], name: str) -> str | None:
    """A variable of the input's Secret, else of the environment. None if neither has it."""
    return variables.get(name) or os.environ.get(name) or None
