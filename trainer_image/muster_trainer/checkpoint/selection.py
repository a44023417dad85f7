"""Which commits count, and which of them training goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster_trainer.checkpoint import documents, files
from muster_trainer.checkpoint.fence import Fence
from muster_trainer.checkpoint.manifest import Commit, Manifest, is_committed, parse_directory, read_verified
from muster_trainer.contract import BadConfiguration, CheckpointDamaged, CheckpointSpec
from muster_trainer.objects import Place, place_of

_LARGEST_REGISTRATION = 1 << 16


@dataclass(frozen=True)
class Selection:
    """The commit to go on from with its manifest (both None: from the start). `found` is the newest committed step
    that counts, verified or not; `skipped` has (path, reason) of each newer one that was passed over."""

    commit: Commit | None
    manifest: Manifest | None
    found: int | None
    skipped: tuple[tuple[Place, str], ...]

    @property
    def step(self) -> int:
        return self.commit.step if self.commit else 0


def registrations(directory: Place) -> dict[Fence, int]:
    """The attempts that have begun, and the step each resumed at. A torn registration names no attempt that trained."""
    resumed: dict[Fence, int] = {}
    for path in (directory / "attempts").glob("*.json"):
        fence = Fence.parse(path.stem)
        if fence is None:
            continue
        try:
            resumed[fence] = documents.whole(documents.parse(files.read(path, limit=_LARGEST_REGISTRATION)).get("resumedStep"))
        except (ValueError, FileNotFoundError):
            continue
    return resumed


def is_void(commit: Commit, resumed: Mapping[Fence, int]) -> bool:
    """A commit is void when an attempt with a higher fence resumed below it: it is a write of a dead world."""
    return any(fence > commit.fence and step < commit.step for fence, step in resumed.items())


def checkpoints(directory: Place) -> list[Commit]:
    """Every checkpoint directory, finished or not, newest last."""
    named = (parse_directory(path) for path in directory.glob("step-*") if files.is_folder(path))
    return sorted((found for found in named if found is not None), key=lambda found: found.order)


def valid_commits(directory: Place) -> list[Commit]:
    """Every commit that is not void, newest last."""
    resumed = registrations(directory)
    return [found for found in checkpoints(directory) if is_committed(found.path) and not is_void(found, resumed)]


def select(spec: CheckpointSpec, fence: Fence) -> Selection:
    """What the attempt with this fence goes on from.

    `Never` and a path say where the job's first attempt begins; a later attempt goes on from the job's own commits.
    Raises CheckpointDamaged or BadConfiguration for a path that does not verify or exist.
    """
    with files.storage(spec.directory):
        valid = valid_commits(spec.directory)
        if spec.resume == "Auto":
            return newest_verified(valid)
        own = newest_verified([commit for commit in valid if commit.fence.created == fence.created])
    if own.commit is not None or spec.resume == "Never":
        return own
    return _named(place_of(spec.resume), own)


def newest_verified(valid: Iterable[Commit]) -> Selection:
    """The newest of `valid` commits (newest last) whose files verify.

    Raises BadConfiguration where only another version of Muster can read it: to pass over it would lose its steps, and retention would then
    remove it.
    """
    newest_first = list(valid)[::-1]
    found = newest_first[0].step if newest_first else None
    skipped: list[tuple[Place, str]] = []
    for commit in newest_first:
        try:
            manifest = read_verified(commit.path)
        except ValueError as error:
            skipped.append((commit.path, str(error)))
            continue
        refuse_other_version(manifest, commit.path)
        return Selection(commit, manifest, found, tuple(skipped))
    return Selection(None, None, found, tuple(skipped))


def _named(path: Place, own: Selection) -> Selection:
    if not path.is_dir():
        raise BadConfiguration(f"spec.checkpoint.resume: there is no checkpoint directory {path}; write Auto, Never or one")
    commit = parse_directory(path.resolve())
    if commit is None or not is_committed(path):
        raise BadConfiguration(
            f"spec.checkpoint.resume: {path} is no committed checkpoint; name a directory step-<step>-<fence> that holds "
            "a file COMMITTED, or write Auto"
        )
    try:
        with files.storage(path):
            manifest = read_verified(path)
    except ValueError as error:
        raise CheckpointDamaged(
            f"spec.checkpoint.resume: {path}: {error}; name another checkpoint, or write Auto to use the newest intact one"
        ) from None
    refuse_other_version(manifest, path)
    return Selection(commit, manifest, commit.step, own.skipped)


def refuse_other_version(manifest: Manifest, path: Place) -> None:
    """Raises BadConfiguration where only another version of Muster can go on from the checkpoint."""
    if manifest.unreadable:
        raise BadConfiguration(
            f"checkpoint {path} {manifest.unreadable}: finish the job with that version, write another checkpoint.name to start over "
            "and keep it, or `resume: Never` to start over"
        )
