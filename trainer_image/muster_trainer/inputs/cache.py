"""The cache of inputs: a folder that the pods of a node, or the runs of a user, may share.

KEY.partial     an unfinished input; a later process keeps its complete files and fetches the rest
KEY             a complete input: the folder `files`, and the file COMPLETE, which is written last
KEY.lock        locked while a process fetches the input, so that other processes wait

KEY is a digest of the source and its revision. An input in the cache never changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from muster_contract.errors import InputUnavailable
from muster_trainer.checkpoint import documents, files
from muster_trainer.inputs.remote import Listing, RemoteFile

COMPLETE = "COMPLETE"
PART = ".part"
"""The ending of the names of unfinished files of a bucket. They are beside `files`."""
CLIENT_FOLDER = ".cache/huggingface"
"""The folder below `files` where the client of a hub writes unfinished files and metadata."""
_LARGEST_MARKER = 512 << 20
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Entry:
    """The place of one input in the cache."""

    root: Path
    key: str

    @classmethod
    def of(cls, root: Path, identity: tuple[str, ...], revision: str) -> Entry:
        return cls(root, hashlib.sha256(json.dumps([*identity, revision]).encode()).hexdigest()[:40])

    @property
    def folder(self) -> Path:
        return self.root / self.key

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def partial(self) -> Path:
        return self.root / f"{self.key}.partial"

    @property
    def partial_files(self) -> Path:
        return self.partial / "files"

    def complete(self) -> Listing | None:
        """The listing of the input if it is complete, else None. It is complete if its marker exists and every file has its size."""
        try:
            marker = documents.parse(files.read(self.folder / COMPLETE, limit=_LARGEST_MARKER))
            listing = Listing(str(marker["revision"]), tuple(RemoteFile(path, size) for path, size in marker["files"]))
            sizes = all((self.files / file.path).lstat().st_size == file.size for file in listing.files)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return listing if sizes else None

    @contextmanager
    def locked(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Holds the lock of the input during the block. Calls `waiting` repeatedly while another process has the lock."""
        lock = os.open(self.root / f"{self.key}.lock", os.O_RDWR | os.O_CREAT | files.NO_DETOUR, 0o666)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    waiting()
                    time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(lock)

    def begin(self) -> None:
        """Prepares a fetch. Complete files of an earlier fetch stay. Its unfinished files are removed, because the clients cannot continue
        them. An input that was complete and is damaged is removed too."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.partial_files.mkdir(parents=True, exist_ok=True)
        for path in (*self.partial.glob(f"*{PART}"), *(self.partial_files / CLIENT_FOLDER).rglob("*.incomplete")):
            path.unlink()

    def discard(self) -> None:
        """Removes the files that were fetched so far."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def finish(self, listing: Listing) -> None:
        """Makes the fetched files the complete input, durably."""
        for each in self.partial.iterdir():
            if each != self.partial_files:
                each.unlink()
        files.sync_tree(self.partial)
        self.partial.rename(self.folder)
        files.sync_directory(self.root)
        content = json.dumps({"revision": listing.revision, "files": [[file.path, file.size] for file in listing.files]})
        marker = self.folder / COMPLETE
        temporary = marker.with_suffix(".new")
        files.write_file(temporary, content.encode())
        temporary.rename(marker)
        files.sync_directory(self.folder)

    def fetched_bytes(self) -> int:
        """The size in bytes of the files that were fetched so far, including unfinished ones."""
        size = 0
        for parent, _, names in os.walk(self.partial):
            for name in names:
                with suppress(FileNotFoundError):
                    size += os.lstat(os.path.join(parent, name)).st_size
        return size


def open_cache(root: Path) -> Path:
    """Creates the folder of the cache. Raises InputUnavailable if it cannot be created or written."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission is denied; the administrator creates it with mode 1777")
    except OSError as error:
        raise InputUnavailable(f"the cache {root} cannot be written: {error.strerror}") from None
    return root
