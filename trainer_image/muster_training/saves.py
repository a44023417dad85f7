"""Checkpoints of the user's own program, by the protocol of the bundled trainer (docs/architecture/checkpoints.md).

Each rank writes into its own folder, or all ranks write into one. When all ranks are done, their files become one checkpoint, and rank 0
commits it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muster_contract.checkpoint_layout import CLAIM, MANIFEST, MARKER
from muster_contract.environment import ReplicaEnvironment
from muster_contract.errors import TrainerError, UserError
from muster_contract.events import CommitReason
from muster_contract.text import text_of
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Fence, Manifest, Selection, Store, files, read_back, select
from muster_trainer.checkpoint.manifest import LARGEST_MANIFEST, check_identity
from muster_trainer.checkpoint.objects import Location, location_of
from muster_trainer.checkpoint.rescue import rescue
from muster_trainer.checkpoint.selection import valid_commits
from muster_trainer.host.ranks import Ranks
from muster_trainer.training.agreement import agree, gather
from muster_trainer.training.resume_point import ResumePoint, agree_on_resume_point, of_selection

_WRITING = ".rank-"
_WRITING_TOGETHER = ".shared"
NO_STORAGE = "the job has no checkpoint storage, so nothing is saved (spec.checkpoint.storage)"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. `step` is the number of steps done, and `folder` has the files.

    `checkpoint / "model.pt"` is the path of a file. Do not write to the folder. Read it before the next save, which may remove older
    checkpoints, and before the next call of `latest()`.
    """

    step: int
    folder: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def __fspath__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True)
class Saved:
    """A commit: the name of its folder, its size in bytes, and the seconds that the save took."""

    name: str
    bytes: int
    seconds: float


class Saves:
    """The checkpoints of one attempt. Every rank calls the same methods in the same order."""

    def __init__(self, replica: ReplicaEnvironment, spec: CheckpointSpec, ranks: Ranks, world: int) -> None:
        self._replica = replica
        self._spec = spec
        self.ranks = ranks
        self._world = world
        self._store = Store(location_of(spec.directory), Fence(replica.job_created, replica.attempt), spec.keep)
        self._writes = replica.first_rank is not None
        self._registered = False
        self._open = ExitStack()

    def resume_point(self) -> ResumePoint:
        """The newest valid checkpoint whose files verify. The first call registers that the attempt resumes from it.

        Raises BadConfiguration for a checkpoint of another kind of training.
        """
        point = agree_on_resume_point(self.ranks, lambda: of_selection(self._select()))
        self._registered = True
        return point

    def newest(self) -> int | None:
        """The step of the newest valid commit. Reads no files of it, and does not involve the other ranks."""
        with files.storage(self._store.directory):
            commits = valid_commits(self._store.directory)
        return commits[-1].step if commits else None

    def read(self, point: ResumePoint) -> Checkpoint | None:
        """The checkpoint of `point` as a folder on this machine; None if there is none."""
        self._open.close()
        if point.location is None:
            return None
        return Checkpoint(point.step, self._open.enter_context(read_back(point.location)))

    def close(self) -> None:
        self._open.close()

    @contextmanager
    def write(self, step: int, reason: CommitReason, saved: list[Saved], *, shared: bool = False) -> Iterator[Path]:
        """Gives an empty folder for this rank's files, or for those of all ranks if `shared`. Commits the files in it at the end of the
        block, and appends the commit to `saved`."""
        if not self._writes:
            raise UserError(f"the role {self._replica.role} does not train with the others, so it may not save a checkpoint")
        if not self._registered:
            self.resume_point()
        began = time.monotonic()
        place = location_of(agree(self.ranks, lambda: str(self._store.begin(step))))
        folder = None
        try:
            folder = self._shared_workplace(place) if shared else self._own_workplace(place)
            try:
                yield folder
            except BaseException as error:
                self._fail(error)
                raise
            size = self._commit(place, folder, self._manifest(step, reason), shared)
        except BaseException:
            if self.ranks.rank == 0:
                self._store.abandon(place)
            raise
        finally:
            if folder and (not shared or self.ranks.rank == 0):
                shutil.rmtree(folder, ignore_errors=True)
        saved.append(Saved(place.name, size, time.monotonic() - began))

    def rescue(self, step: int, write: Callable[[Path], None], *, seconds: float) -> Saved | None:
        """This rank saves what `write` writes into a folder, because its peers are gone. None if another rank has saved this step."""
        began = time.monotonic()
        saved: list[Saved] = []

        def commit(place: Location, staging: Path, is_ready: bool) -> None:
            with files.storage(staging):
                write(staging)
            names = [name for name in _names(staging) if name != CLAIM]
            manifest = replace(self._manifest(step, CommitReason.PEER_LOST), files=self._store.flush(staging, names, place))
            _, size = self._store.commit(place, manifest)
            saved.append(Saved(place.name, size, time.monotonic() - began))

        rescue(self._store, step, seconds=seconds, stage=lambda _: True, commit=commit)
        return saved[0] if saved else None

    def _select(self) -> Selection:
        selection = select(self._spec, self._store.fence)
        if selection.manifest and selection.commit:
            check_identity(selection.manifest, {}, selection.commit.path)
        if self._writes and not self._registered:
            self._store.register(selection)
        return selection

    def _own_workplace(self, place: Location) -> Path:
        name = f"{_WRITING}{self.ranks.rank}"
        return Path(gather(self.ranks, lambda: str(_make_folder(place, name)))[self.ranks.rank])

    def _shared_workplace(self, place: Location) -> Path:
        """A folder that rank 0 creates for all ranks. Raises UserError if another rank does not see it."""
        folder = Path(agree(self.ranks, lambda: str(_make_folder(place, _WRITING_TOGETHER))))

        def look() -> None:
            if not folder.is_dir():
                raise UserError(
                    f"checkpoint(shared=True): rank {self.ranks.rank} does not see the folder {folder} of rank 0; use storage that all "
                    "nodes mount (spec.checkpoint.storage), or save without shared=True"
                )

        try:
            gather(self.ranks, look)
        except BaseException:
            if self.ranks.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _fail(self, error: BaseException) -> None:
        """Sends this rank's error to the other ranks, so that they raise it instead of waiting."""

        def raised() -> None:
            raise UserError(f"rank {self.ranks.rank} failed while it wrote a checkpoint: {type(error).__name__}: {text_of(error)}")

        with suppress(TrainerError):
            gather(self.ranks, raised)

    def _commit(self, place: Location, folder: Path, manifest: Manifest, shared: bool) -> int:
        """Stores the files of all ranks durably, then commits them. Returns the size in bytes.

        If several ranks have written a file of the same name, the contents must be equal, and the lowest rank stores its file. The ranks
        divide the files of a shared folder among themselves.
        """
        written: list[list[str]]
        if shared:
            gather(self.ranks, lambda: None)  # all ranks have written
            names = agree(self.ranks, lambda: _names(folder))
            written = [names[rank :: self._world] for rank in range(self._world)]
        else:
            written = gather(self.ranks, lambda: _names(folder))
        owners = {name: rank for rank in reversed(range(len(written))) for name in written[rank]}
        own = [name for name in written[self.ranks.rank] if owners[name] == self.ranks.rank]
        again = [name for name in written[self.ranks.rank] if owners[name] != self.ranks.rank]
        parts = gather(self.ranks, lambda: [self._flush(place, folder, own), {name: files.sha256(folder / name) for name in again}])
        return int(agree(self.ranks, lambda: self._finish(place, manifest, parts)))

    def _flush(self, place: Location, folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
        if not isinstance(place, Path):
            return self._store.flush(folder, names, place)
        with files.storage(place):
            for name in names:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(folder / name, place / name)
            listing = self._store.flush(place, names, place)
            for parent in {(place / name).parent for name in names}:
                files.sync_directory(parent)
        return listing

    def _finish(self, place: Location, manifest: Manifest, parts: list[Any]) -> int:
        listing: dict[str, Any] = {}
        for written, _ in parts:
            listing |= written
        for rank, (_, sums) in enumerate(parts):
            for name, digest in sums.items():
                if listing[name]["sha256"] != digest:
                    raise UserError(
                        f"rank {rank} wrote a {name} that differs from that of a lower rank: write a file that is the same on all ranks on "
                        "rank 0 only, and put the rank into the names of other files"
                    )
        if not listing:
            raise UserError(f"checkpoint of step {manifest.step}: no rank has written a file")
        whole = replace(manifest, files=listing)
        try:
            content = whole.to_bytes()
            if len(content) > LARGEST_MANIFEST:
                raise ValueError(f"its manifest would have {len(content)} bytes, and at most {LARGEST_MANIFEST} are read")
            Manifest.from_bytes(content)
        except ValueError as error:
            raise UserError(f"checkpoint of step {manifest.step}: {error}; write fewer files, or other names") from None
        commit, size = self._store.commit(place, whole)
        if not manifest.reason.is_urgent:
            self._store.retain(commit)
        return size

    def _manifest(self, step: int, reason: CommitReason) -> Manifest:
        return Manifest(
            step=step,
            epoch=0,
            seed=0,
            samplesSeen=0,
            world=self._world,
            strategy=self._replica.strategy,
            attempt=self._replica.attempt,
            versions={},
            identity={},
            reason=reason,
            createdAt=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _make_folder(place: Location, name: str) -> Path:
    """Creates a folder to write to: below `place`, or a temporary one on this machine for an object store."""
    if not isinstance(place, Path):
        with files.storage(Path(tempfile.gettempdir())):
            return Path(tempfile.mkdtemp(prefix="muster-save-"))
    folder = place / name
    with files.storage(place):
        folder.mkdir()
    return folder


def _names(folder: Path) -> list[str]:
    """The files in the folder and below. Raises UserError for a link or a pipe, which a checkpoint cannot hold."""
    names = []
    for parent, folders, file_names in os.walk(folder):
        for name in (*folders, *file_names):
            path = Path(parent) / name
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise UserError(f"checkpoint: {path.relative_to(folder)} is not a regular file; write its content instead")
        names += [(Path(parent) / name).relative_to(folder).as_posix() for name in file_names]
    if reserved := sorted({MANIFEST, MARKER}.intersection(names)):
        raise UserError(f"checkpoint: {reserved[0]} is a reserved name; use another name")
    return sorted(names)
