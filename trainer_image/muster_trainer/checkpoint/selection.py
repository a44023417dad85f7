"""Finds the valid commits, and selects the one from which training resumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster_contract.checkpoint_layout import ATTEMPTS, CHECKPOINTS, MARKER, Fence
from muster_contract.errors import BadConfiguration, CheckpointDamaged
from muster_contract.trainer_spec import CheckpointSpec
from muster_contract.wire import document, parse, wire_field
from muster_trainer.checkpoint import files
from muster_trainer.checkpoint.manifest import Commit, Manifest, is_committed, parse_directory, read_verified
from muster_trainer.checkpoint.objects import Location, location_of

_LARGEST_REGISTRATION = 1 << 16


@dataclass(frozen=True)
class Selection:
    """The commit to resume from, with its manifest. Both are None if training begins at step 0.

    `newest` is the step of the newest valid commit, even if it is damaged. `skipped` has (path, reason) of each newer commit that is
    damaged.
    """

    commit: Commit | None
    manifest: Manifest | None
    newest: int | None
    skipped: tuple[tuple[Location, str], ...]

    @property
    def step(self) -> int:
        return self.commit.step if self.commit else 0


@document
class _Registration:
    """A file in the folder ATTEMPTS. The file has more fields, for people who read it."""

    resumed_step: int = wire_field(minimum=0)


def registrations(directory: Location) -> dict[Fence, int]:
    """The fence of each attempt that has begun, and the step at which it resumed. Damaged registrations are ignored."""
    resumed: dict[Fence, int] = {}
    for path in (directory / ATTEMPTS).glob("*.json"):
        fence = Fence.parse(path.stem)
        if fence is None:
            continue
        try:
            resumed[fence] = parse(_Registration, files.read(path, limit=_LARGEST_REGISTRATION)).resumed_step
        except (ValueError, FileNotFoundError):
            continue
    return resumed


def is_void(commit: Commit, resumed: Mapping[Fence, int]) -> bool:
    """Whether an attempt with a higher fence resumed from an earlier step. An older world has then written the commit too late."""
    return any(fence > commit.fence and step < commit.step for fence, step in resumed.items())


def checkpoints(directory: Location) -> list[Commit]:
    """Every checkpoint directory, finished or not, newest last."""
    named = (parse_directory(path) for path in directory.glob(CHECKPOINTS) if files.is_folder(path))
    return sorted((commit for commit in named if commit is not None), key=lambda commit: commit.order)


def valid_commits(directory: Location) -> list[Commit]:
    """Every commit that is not void, newest last."""
    resumed = registrations(directory)
    return [commit for commit in checkpoints(directory) if is_committed(commit.path) and not is_void(commit, resumed)]


def newest_step(spec: CheckpointSpec, fence: Fence) -> int | None:
    """The step of the newest valid commit, which `select` verifies first. Reads none of its files."""
    directory = location_of(spec.directory)
    with files.storage(directory):
        valid = valid_commits(directory)
    own = valid if spec.resume == "Auto" else [commit for commit in valid if commit.fence.created == fence.created]
    return own[-1].step if own else None


def select(spec: CheckpointSpec, fence: Fence) -> Selection:
    """The commit from which the attempt with this fence resumes.

    If `checkpoint.resume` is `Never` or a path, it applies to the first attempt of a job only. A later attempt resumes from the job's own
    commits. Raises CheckpointDamaged if the checkpoint at the path does not verify, and BadConfiguration if there is none.
    """
    directory = location_of(spec.directory)
    with files.storage(directory):
        valid = valid_commits(directory)
        if spec.resume == "Auto":
            return newest_verified(valid)
        own = newest_verified([commit for commit in valid if commit.fence.created == fence.created])
    if own.commit is not None or spec.resume == "Never":
        return own
    return _named(location_of(spec.resume), own)


def newest_verified(valid: Iterable[Commit]) -> Selection:
    """The newest of the `valid` commits (newest last) whose files verify.

    Raises BadConfiguration if only another version of Muster can read it. It must not be skipped, because its steps would be lost and
    retention would remove it.
    """
    newest_first = list(valid)[::-1]
    newest = newest_first[0].step if newest_first else None
    skipped: list[tuple[Location, str]] = []
    for commit in newest_first:
        try:
            manifest = read_verified(commit.path)
        except ValueError as error:
            skipped.append((commit.path, str(error)))
            continue
        refuse_other_version(manifest, commit.path)
        return Selection(commit, manifest, newest, tuple(skipped))
    return Selection(None, None, newest, tuple(skipped))


def _named(path: Location, own: Selection) -> Selection:
    if not path.is_dir():
        raise BadConfiguration(f"spec.checkpoint.resume: there is no checkpoint directory {path}; write Auto, Never or one")
    commit = parse_directory(path.resolve())
    if commit is None or not is_committed(path):
        raise BadConfiguration(
            f"spec.checkpoint.resume: {path} is not a committed checkpoint; name a directory step-<step>-<fence> that holds "
            f"a file {MARKER}, or write Auto"
        )
    try:
        with files.storage(path):
            manifest = read_verified(commit.path)
    except ValueError as error:
        raise CheckpointDamaged(
            f"spec.checkpoint.resume: {path}: {error}; name another checkpoint, or write Auto to use the newest intact one"
        ) from None
    refuse_other_version(manifest, path)
    return Selection(commit, manifest, commit.step, own.skipped)


def refuse_other_version(manifest: Manifest, path: Location) -> None:
    """Raises BadConfiguration if only another version of Muster can read the checkpoint."""
    if manifest.unreadable:
        raise BadConfiguration(
            f"checkpoint {path} {manifest.unreadable}: finish the job with that version, write another checkpoint.name to start over "
            "and keep it, or `resume: Never` to start over"
        )
