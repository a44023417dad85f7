"""Fetches one input into the cache. Waits for other processes, continues unfinished fetches, and retries errors of the network."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from muster_contract.errors import InputDiskFull, InputRefused, InputUnavailable, TrainerError
from muster_contract.inputs import BucketSource, InputProgress, InputRequest, amount, parse_source
from muster_trainer.inputs.bucket import Bucket
from muster_trainer.inputs.cache import CLIENT_FOLDER, Entry
from muster_trainer.inputs.hub import Hub
from muster_trainer.inputs.remote import Listing, Remote, RemoteFile, checked, fault, file_fault

T = TypeVar("T")
AT_ONCE = 4
"""The number of files that are fetched at the same time."""
SHORTEST_DELAY, LONGEST_DELAY = 0.5, 15.0
STALL_SECONDS = 60.0
"""Seconds without a new byte after which the input counts as unavailable. The job then retries after its own back-off."""
_POLL_SECONDS = 0.5
_SPARE = 64 << 20
"""Bytes that a fetch may take beyond the listed sizes, for unfinished files and the metadata of the client."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Job:
    """The fetch of one input. It calls `show` with each change of its progress, and `say` with lines for the log."""

    request: InputRequest
    remote: Remote
    cache: Path
    show: Callable[[InputProgress], None]
    say: Callable[[str], None]
    stall_seconds: float

    @property
    def name(self) -> str:
        return self.request.name

    def cached(self, revision: str) -> tuple[Entry, Listing] | None:
        """The input at this revision, if the cache has all of it."""
        entry = Entry.of(self.cache, self.remote.identity, revision)
        listing = entry.complete() if revision else None
        return (entry, listing) if listing else None

    def cached_as_named(self) -> tuple[Entry, Listing] | None:
        """The input, if the cache has the revision that the job or the source names. Needs no network."""
        return self.cached(self.request.revision) or self.cached(self.remote.fixed)

    def resolved(self, revision: str) -> Listing:
        """Fetches and checks the listing at the revision. Retries errors of the network."""
        return self._retried(lambda: checked(self.name, self.remote.listing(revision)), progress=lambda: 0)

    def fetch(self, listing: Listing) -> Entry:
        """Fetches the listed files, unless another process fetches or has fetched them. Returns the complete entry."""
        entry = Entry.of(self.cache, self.remote.identity, listing.revision)

        def show() -> None:
            self._show(listing, min(entry.fetched_bytes(), listing.total))

        with entry.locked(show):
            if entry.complete() is None:
                self._fill(entry, listing)
        self.ready(listing)
        return entry

    def ready(self, listing: Listing) -> None:
        self.show(InputProgress(self.name, "Ready", listing.revision, listing.total, listing.total))

    def _fill(self, entry: Entry, listing: Listing) -> None:
        try:
            entry.begin()
            self._make_room(entry, listing)
            self._retried(lambda: self._download(entry, listing), progress=entry.fetched_bytes)
            shutil.rmtree(entry.partial_files / CLIENT_FOLDER, ignore_errors=True)
            if not any(file.path.startswith(".cache/") for file in listing.files):
                shutil.rmtree(entry.partial_files / ".cache", ignore_errors=True)
            if problem := fault(entry.partial_files, listing):
                entry.discard()
                raise InputUnavailable(f"input {self.name}: {problem}; it is fetched again")
            if not self.remote.has_revisions and self.resolved("").revision != listing.revision:
                entry.discard()
                raise InputUnavailable(f"input {self.name}: has changed while it was fetched; it is fetched again")
            entry.finish(listing)
        except OSError as error:
            raise self._local_error(error) from error

    def _make_room(self, entry: Entry, listing: Listing) -> None:
        missing = listing.total - entry.fetched_bytes()
        free = shutil.disk_usage(self.cache).free
        if missing > free:
            raise InputDiskFull(
                f"input {self.name}: the disk is full: {amount(missing)} are missing, and {self.cache} has {amount(free)} left; "
                "free some, use larger disks, or fetch a folder of the source only"
            )

    def _download(self, entry: Entry, listing: Listing) -> None:
        target = entry.partial_files
        files = [file for file in listing.files if not _is_there(target / file.path, file)]
        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="input")
        futures: set[Future[None]] = {pool.submit(self.remote.fetch, file, listing, target) for file in files}
        try:
            while futures:
                done, futures = wait(futures, _POLL_SECONDS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                fetched = entry.fetched_bytes()
                if fetched > listing.total + _SPARE:
                    raise InputRefused(f"input {self.name}: the server sends more than the {amount(listing.total)} that it lists")
                self._show(listing, min(fetched, listing.total))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _show(self, listing: Listing, fetched: int) -> None:
        self.show(InputProgress(self.name, "Fetching", listing.revision, fetched, listing.total))

    def _retried(self, work: Callable[[], T], *, progress: Callable[[], int]) -> T:
        """The result of `work`. After an error of the network, retries with growing delays, until `progress` stays the same too long."""
        delay, last, since = SHORTEST_DELAY, progress(), time.monotonic()
        while True:
            try:
                return work()
            except TrainerError:
                raise
            except Exception as error:
                cause = self._cause(error)
                if not isinstance(cause, InputUnavailable) or _has_no_room(error):
                    raise cause from error
                if (now := progress()) > last:
                    delay, last, since = SHORTEST_DELAY, now, time.monotonic()
                if time.monotonic() + delay - since > self.stall_seconds:
                    raise cause from error
                self.say(f"{cause}; next try in {delay:g} s")
            time.sleep(delay)
            delay = min(LONGEST_DELAY, 2 * delay)

    def _cause(self, error: Exception) -> TrainerError:
        return self._local_error(error) if _has_no_room(error) else self.remote.error(error)

    def _local_error(self, error: Exception) -> InputUnavailable:
        if _has_no_room(error):
            return InputDiskFull(f"input {self.name}: the disk is full: no space is left in {self.cache}; free some, or use larger disks")
        return InputUnavailable(f"input {self.name}: the cache {self.cache} cannot be used: {error}")


def job_of(
    request: InputRequest,
    cache: Path,
    variables: Mapping[str, str],
    *,
    show: Callable[[InputProgress], None],
    say: Callable[[str], None],
    stall_seconds: float,
) -> Job:
    """The fetch of the input `request`."""
    source = parse_source(request.source)
    remote: Remote = Bucket(request.name, source, variables) if isinstance(source, BucketSource) else Hub(request.name, source, variables)
    return Job(request, remote, cache, show, say, stall_seconds)


def _is_there(path: Path, file: RemoteFile) -> bool:
    """Whether an earlier fetch has completed this file. An unfinished file has another name."""
    return path.exists() and not file_fault(path, file)


def _has_no_room(error: BaseException | None) -> bool:
    while error is not None:
        if getattr(error, "errno", None) in _NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False
