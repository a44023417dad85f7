"""Writing checkpoints: registration of an attempt, the commit, and what is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from muster_trainer.checkpoint import files
from muster_trainer.checkpoint.fence import Fence
from muster_trainer.checkpoint.manifest import MANIFEST, MARKER, Commit, Manifest, digest_of, directory_name, is_committed
from muster_trainer.checkpoint.selection import Selection, checkpoints, is_void, registrations
from muster_trainer.contract import PeerLost

LEAST_KEPT = 2


@dataclass(frozen=True)
class Store:
    """The checkpoint directory as one attempt (its `fence`) may write it. Rank 0 alone uses it.

    Every method raises StorageUnavailable where the storage fails, and PeerLost where a higher fence is registered.
    """

    directory: Path
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

    def begin(self, step: int) -> Path:
        """An empty directory for the files of a checkpoint at `step`; what was left there by this fence is removed."""
        path = self.directory / directory_name(step, self.fence)
        with files.storage(path):
            self._check_fence()
            self._remove(path)
            files.make_directory(path)
        return path

    def commit(self, path: Path, manifest: Manifest) -> tuple[Commit, int]:
        """Makes the files in `path` a checkpoint, once every rank has flushed its own. Returns it and its bytes."""
        with files.storage(path):
            files.sync_tree(path)
            names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
            listing = {name: {"bytes": (path / name).stat().st_size, "sha256": files.sha256(path / name)} for name in names}
            content = replace(manifest, files=listing).to_bytes()
            files.write_file(path / MANIFEST, content)
            self._check_fence()
            files.write_file(path / MARKER, digest_of(content).encode() + b"\n")
        size = sum(entry["bytes"] for entry in listing.values())
        return Commit(path, manifest.step, self.fence), size

    def retain(self) -> list[Path]:
        """Removes what is no longer needed after a commit, and returns it.

        Kept are the newest `keep` valid commits (at least two), and whatever this or a higher fence has not finished.
        With a higher fence registered nothing is removed: that attempt owns the directory now.
        """
        removed: list[Path] = []
        with files.storage(self.directory):
            resumed = registrations(self.directory)
            if any(fence > self.fence for fence in resumed):
                return removed
            found = checkpoints(self.directory)
            valid = [one for one in found if is_committed(one.path) and not is_void(one, resumed)]
            kept = valid[-max(self.keep, LEAST_KEPT) :]
            for one in found:
                finished_or_old = is_committed(one.path) or one.fence < self.fence
                if one not in kept and finished_or_old:
                    self._remove(one.path)
                    removed.append(one.path)
        return removed

    def _check_fence(self) -> None:
        newer = [fence for fence in registrations(self.directory) if fence > self.fence]
        if newer:
            raise PeerLost(f"attempt {max(newer)} has taken over {self.directory}; this one ({self.fence}) may not save")

    @staticmethod
    def _remove(path: Path) -> None:
        """The marker goes first: a directory that is half removed must not count."""
        if path.exists():
            files.remove_file(path / MARKER)
            files.remove_tree(path)
