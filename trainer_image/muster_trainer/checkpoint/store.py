"""Writes checkpoints: registration of an attempt, commits, and retention."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from muster_contract.checkpoint_layout import ATTEMPTS, CLAIM, MANIFEST, MARKER, Fence, checkpoint_name, registration_name, rescue_name
from muster_contract.errors import BadConfiguration, PeerLost, StorageUnavailable
from muster_trainer.checkpoint import files
from muster_trainer.checkpoint.manifest import Commit, Manifest, digest_of, is_committed, verifies
from muster_trainer.checkpoint.objects import Location
from muster_trainer.checkpoint.selection import Selection, checkpoints, is_void, registrations

LEAST_COMMITS = 2
_TURN = 0.05
CLOCKS_DIFFER = timedelta(days=1)
"""The largest accepted difference between the clocks of this machine and of the API server."""


@dataclass(frozen=True)
class Store:
    """The checkpoint directory, for writes by the attempt with this `fence`. Only rank 0 uses it, except for `flush` and in a rescue.

    Every method raises StorageUnavailable if the storage fails, and PeerLost if a higher fence is registered. It raises
    BadConfiguration if the creation time in that fence is in the future.
    """

    directory: Location
    fence: Fence
    keep: int

    def register(self, selection: Selection) -> None:
        """Registers this attempt and the commit from which it resumes. Call it before any other write.

        It makes newer commits of older fences void.
        """
        self._register(selection.step, selection.commit.path.name if selection.commit else None)

    def register_step(self, step: int) -> None:
        """Does what `register` does, for an attempt that resumes at `step` from a state in memory."""
        self._register(step, None)

    def _register(self, step: int, path: str | None) -> None:
        with files.storage(self.directory):
            files.make_directory(self.directory / ATTEMPTS)
            self._check_fence()
            record = {"fence": str(self.fence), "resumedStep": step, "resumedPath": path}
            files.write_file(self.directory / ATTEMPTS / registration_name(self.fence), json.dumps(record).encode() + b"\n")

    def begin(self, step: int) -> Location:
        """Creates an empty directory for a checkpoint at `step`. Removes files that this fence has left there."""
        path = self.directory / checkpoint_name(step, self.fence)
        with files.storage(path):
            self._check_fence()
            self._remove(path)
            files.make_directory(path)
        return path

    def rescue_directory(self, step: int, number: int = 0) -> Location:
        """The directory of a rescue at `step`, by one rank. Other ranks may still write to that of `begin`, and to
        those with a lower `number`."""
        return self.directory / rescue_name(step, self.fence, number)

    def begin_rescue(self, path: Location) -> bool:
        """Creates the `rescue_directory` at `path`, and claims it for this rank. Returns False if another rank saves this step already."""
        with files.storage(path):
            self._check_fence()
            files.make_directory(path)
            return files.claim(path / CLAIM)

    def await_rescue(self, path: Location, *, seconds: float) -> bool:
        """Waits for the commit of the `rescue_directory` at `path`, which another rank has claimed. Returns False if there is none within
        `seconds`, because that rank may be lost too, or if that rank has failed."""
        limit = time.monotonic() + seconds
        with files.storage(path):
            while not is_committed(path):
                if time.monotonic() > limit or not (path / CLAIM).exists():
                    return False
                time.sleep(_TURN)
        return True

    def flush(self, folder: Path, names: Iterable[str], path: Location) -> dict[str, dict[str, Any]]:
        """Stores the files `names` of the staging folder `folder` durably in the checkpoint at `path`. Any rank may call it.

        Returns their sizes and SHA-256, in the form of `Manifest.files`.
        """
        listing = {}
        with files.storage(path):
            for name in names:
                listing[name] = {"bytes": files.size(folder / name), "sha256": files.sha256(folder / name)}
                files.store_file(folder / name, path / name)
        return listing

    def commit(self, path: Location, manifest: Manifest) -> tuple[Commit, int]:
        """Commits the files that `manifest` lists. Every rank must have flushed its files. Returns the commit and its size in bytes."""
        with files.storage(path):
            for name, written in manifest.files.items():
                self._check_shared(path / name, written["bytes"])
            content = manifest.to_bytes()
            files.write_file(path / MANIFEST, content)
            self._check_fence()
            files.write_file(path / MARKER, digest_of(content).encode() + b"\n")
        return Commit(path, manifest.step, self.fence), sum(entry["bytes"] for entry in manifest.files.values())

    @staticmethod
    def _check_shared(path: Location, size: int) -> None:
        if not path.is_file() or files.size(path) != size:
            raise StorageUnavailable(
                f"checkpoint storage {path}: files of another replica are missing here: let all replicas mount "
                "the same storage (a claim that is ReadWriteMany)"
            )

    def abandon(self, path: Location) -> None:
        """Removes the files of a save that failed, because otherwise a full disk would stay full. Ignores errors.

        A committed save stays, because the failure may have come after the commit.
        """
        with suppress(OSError):
            if not is_committed(path):
                self._remove(path)

    def retain(self, newest: Commit | None = None) -> list[Location]:
        """Removes checkpoints that are not needed any more, and returns their directories.

        It retains the newest `keep` valid commits (at least two), and more if fewer than two of them verify. It also retains
        unfinished checkpoints of this and higher fences, but not of saves that this fence began before `newest`: they have failed, and
        could not be removed then. It removes nothing if a higher fence is registered, because the directory then belongs to that
        attempt. It does not verify `newest`, because that was written just now.
        """
        removed: list[Location] = []
        with files.storage(self.directory):
            resumed = registrations(self.directory)
            if any(fence > self.fence for fence in resumed):
                return removed
            present = checkpoints(self.directory)
            valid = [one for one in present if is_committed(one.path) and not is_void(one, resumed)]
            retained = self._retained(valid, newest)
            for one in present:
                finished_or_old = is_committed(one.path) or one.fence < self.fence
                has_failed = newest is not None and one.step < newest.step and one.path.name == checkpoint_name(one.step, self.fence)
                if one not in retained and (finished_or_old or has_failed):
                    self._remove(one.path)
                    removed.append(one.path)
        return removed

    def _retained(self, valid: list[Commit], newest: Commit | None) -> list[Commit]:
        retained: list[Commit] = []
        intact = 0
        for one in reversed(valid):
            if len(retained) >= max(self.keep, LEAST_COMMITS) and intact >= LEAST_COMMITS:
                break
            retained.append(one)
            if intact < LEAST_COMMITS:
                intact += one == newest or verifies(one)
        return retained

    def _check_fence(self) -> None:
        """Raises PeerLost if a newer attempt is registered.

        Raises BadConfiguration if its fence is in the future, because that registration would block the job for ever.
        """
        newest = max(registrations(self.directory), default=self.fence)
        path = self.directory / ATTEMPTS / registration_name(newest)
        if newest.created > max(datetime.now(UTC), self.fence.created) + CLOCKS_DIFFER:
            raise BadConfiguration(
                f"{path} registers an attempt of a job that will be created in the future, so no other attempt may save: remove that file"
            )
        if newest > self.fence:
            raise PeerLost(
                f"attempt {newest} has taken over {self.directory}; this one ({self.fence}) may not save. If there is no such attempt, "
                f"remove {path}"
            )

    @staticmethod
    def _remove(path: Location) -> None:
        """Removes the marker first, because a half removed directory must not be a valid commit. Removes a link, but not its target."""
        if isinstance(path, Path) and path.is_symlink():
            path.unlink()
        elif path.is_dir():
            with suppress(IsADirectoryError):
                files.remove_file(path / MARKER)
            files.remove_tree(path)
