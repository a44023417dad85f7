"""Writing checkpoints: registration of an attempt, the commit, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from muster_trainer.checkpoint import files
from muster_trainer.checkpoint.fence import Fence
from muster_trainer.checkpoint.manifest import MANIFEST, MARKER, Commit, Manifest, digest_of, directory_name, is_committed, verifies
from muster_trainer.checkpoint.selection import Selection, checkpoints, is_void, registrations
from muster_trainer.contract import BadConfiguration, PeerLost, StorageUnavailable
from muster_trainer.objects import Place

LEAST_KEPT = 2
CLOCKS_DIFFER = timedelta(days=1)
"""At most, between the machine that trains and the API server."""


@dataclass(frozen=True)
class Store:
    """The checkpoint directory as one attempt (its `fence`) may write it. Rank 0 alone uses it, but for `flush`.

    Every method raises StorageUnavailable where the storage fails, and PeerLost where a higher fence is registered
    (BadConfiguration, if no job can have it yet).
    """

    directory: Place
    fence: Fence
    keep: int

    def register(self, selection: Selection) -> None:
        """Says, before anything is written, what this attempt resumes from: newer commits of older fences are void."""
        with files.storage(self.directory):
            files.make_directory(self.directory / "attempts")
            self._check_fence()
            record = {
                "fence": str(self.fence),
                "resumedStep": selection.step,
                "resumedPath": selection.commit.path.name if selection.commit else None,
            }
            files.write_file(self.directory / "attempts" / f"{self.fence}.json", json.dumps(record).encode() + b"\n")

    def begin(self, step: int) -> Place:
        """An empty directory for the files of a checkpoint at `step`; what was left there by this fence is removed."""
        path = self.directory / directory_name(step, self.fence)
        with files.storage(path):
            self._check_fence()
            self._remove(path)
            files.make_directory(path)
        return path

    def flush(self, folder: Path, names: Iterable[str], path: Place) -> dict[str, dict[str, Any]]:
        """Makes the files `names`, which were written to the workplace `folder`, durable files of the checkpoint at `path`; gives
        their sizes and sums, as the manifest lists them. Any rank may."""
        listing = {}
        with files.storage(path):
            for name in names:
                listing[name] = {"bytes": files.size(folder / name), "sha256": files.sha256(folder / name)}
                files.keep(folder / name, path / name)
        return listing

    def commit(self, path: Place, manifest: Manifest) -> tuple[Commit, int]:
        """Makes the files that `manifest` lists a checkpoint, once every rank has flushed its own. Returns it and its bytes."""
        with files.storage(path):
            for name, written in manifest.files.items():
                self._check_shared(path / name, written["bytes"])
            content = manifest.to_bytes()
            files.write_file(path / MANIFEST, content)
            self._check_fence()
            files.write_file(path / MARKER, digest_of(content).encode() + b"\n")
        return Commit(path, manifest.step, self.fence), sum(entry["bytes"] for entry in manifest.files.values())

    @staticmethod
    def _check_shared(path: Place, size: int) -> None:
        if not path.is_file() or files.size(path) != size:
            raise StorageUnavailable(
                f"checkpoint storage {path}: another replica wrote it, and it cannot be seen whole from here: let all replicas mount "
                "the same storage (a claim that is ReadWriteMany)"
            )

    def abandon(self, path: Place) -> None:
        """Removes what a save that failed has left, as far as that can be done: a full disk is not to be kept full."""
        with suppress(OSError):
            self._remove(path)

    def retain(self, newest: Commit | None = None) -> list[Place]:
        """Removes what is no longer needed after a commit, and returns it. `newest` was written just now, and is not read again.

        Kept are the newest `keep` valid commits (at least two), and as many more as it takes for two of those kept to verify; and
        whatever this or a higher fence has not finished. With a higher fence registered nothing is removed: that attempt owns
        the directory now.
        """
        removed: list[Place] = []
        with files.storage(self.directory):
            resumed = registrations(self.directory)
            if any(fence > self.fence for fence in resumed):
                return removed
            found = checkpoints(self.directory)
            valid = [one for one in found if is_committed(one.path) and not is_void(one, resumed)]
            kept = self._kept(valid, newest)
            for one in found:
                finished_or_old = is_committed(one.path) or one.fence < self.fence
                if one not in kept and finished_or_old:
                    self._remove(one.path)
                    removed.append(one.path)
        return removed

    def _kept(self, valid: list[Commit], newest: Commit | None) -> list[Commit]:
        kept: list[Commit] = []
        intact = 0
        for one in reversed(valid):
            if len(kept) >= max(self.keep, LEAST_KEPT) and intact >= LEAST_KEPT:
                break
            kept.append(one)
            if intact < LEAST_KEPT:
                intact += one == newest or verifies(one)
        return kept

    def _check_fence(self) -> None:
        """Raises PeerLost where a newer attempt has registered, and BadConfiguration where none can have: that fence would never yield."""
        newest = max(registrations(self.directory), default=self.fence)
        path = self.directory / "attempts" / f"{newest}.json"
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
    def _remove(path: Place) -> None:
        """The marker goes first: a directory that is half removed must not count. Of a link to one, the link alone is removed."""
        if isinstance(path, Path) and path.is_symlink():
            path.unlink()
        elif path.is_dir():
            with suppress(IsADirectoryError):
                files.remove_file(path / MARKER)
            files.remove_tree(path)
