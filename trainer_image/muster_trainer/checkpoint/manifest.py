"""A checkpoint's manifest, and a checkpoint directory that has been committed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from muster_trainer.checkpoint import files
from muster_trainer.checkpoint.fence import Fence
from muster_trainer.contract import BadConfiguration
from muster_trainer.objects import Place

FORMAT = 1
MANIFEST = "manifest.json"
MARKER = "COMMITTED"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds. `step` counts steps done, `world` processes, `samplesSeen` samples since step 0;
    `identity` is what a job must share with the checkpoint to go on from it, by the names of the job's fields."""

    step: int
    epoch: int
    seed: int
    samplesSeen: int  # noqa: N815 (the names of the file)
    world: int
    strategy: str
    attempt: int
    versions: Mapping[str, str]
    identity: Mapping[str, Any]
    reason: str
    createdAt: str  # noqa: N815
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=2, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Raises ValueError that says what is wrong."""
        document = json.loads(content)
        if not isinstance(document, dict):
            raise ValueError("it is not an object")
        if document.get("format") != FORMAT:
            raise ValueError(f"its format is {document.get('format')!r}, this version reads {FORMAT}")
        try:
            return cls(**document)
        except TypeError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True)
class Commit:
    """A checkpoint directory `step-<step>-<fence>` that has the commit marker; whether it verifies is another matter."""

    path: Place
    step: int
    fence: Fence

    @property
    def order(self) -> tuple[int, Fence]:
        """Newest last: further on counts first, then the younger attempt."""
        return (self.step, self.fence)


def directory_name(step: int, fence: Fence) -> str:
    return f"step-{step:08d}-{fence}"


def parse_directory(path: Place) -> Commit | None:
    """The step and fence in a checkpoint directory's name, or None where it is no such name."""
    prefix, _, rest = path.name.partition("-")
    step, _, fence_text = rest.partition("-")
    fence = Fence.parse(fence_text)
    if prefix != "step" or not step.isdecimal() or fence is None:
        return None
    return Commit(path, int(step), fence)


def is_committed(path: Place) -> bool:
    return (path / MARKER).is_file()


def read_verified(path: Place, *, sums: bool = True) -> Manifest:
    """The manifest of a committed checkpoint whose every file has the size and, with `sums`, the SHA-256 that were committed.

    Raises ValueError that says what is damaged, and OSError where the storage does not answer: that is no damage, and
    passing over the checkpoint for it would lose steps.
    """
    try:
        content = (path / MANIFEST).read_bytes()
        marked = (path / MARKER).read_bytes().decode("ascii", errors="replace").strip()
    except FileNotFoundError as error:
        raise ValueError(f"{Path(error.filename).name} is missing") from None
    manifest = _parsed(content)
    if marked != digest_of(content):
        raise ValueError(f"{MANIFEST} is not the one that was committed (its SHA-256 differs)")
    for name, expected in manifest.files.items():
        _verify(path / name, name, expected, sums=sums)
    return manifest


def verifies(commit: Commit) -> bool:
    """Whether it is whole as far as is cheap to tell: an object store has sums of its own, and takes money for reading."""
    try:
        return bool(read_verified(commit.path, sums=isinstance(commit.path, Path)))
    except ValueError:
        return False


@contextmanager
def read_back(path: Place) -> Iterator[Path]:
    """A checkpoint that has been verified, as a folder of this machine: itself, or a copy for as long as it is needed.

    Raises StorageUnavailable.
    """
    if isinstance(path, Path):
        yield path
        return
    with TemporaryDirectory(prefix="muster-load-") as folder:
        with files.storage(path):
            for name in Manifest.from_bytes((path / MANIFEST).read_bytes()).files:
                (path / name).download(Path(folder) / name)
        yield Path(folder)


def _parsed(content: bytes) -> Manifest:
    try:
        return Manifest.from_bytes(content)
    except ValueError as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error}") from None


def _verify(path: Place, name: str, expected: Mapping[str, Any], *, sums: bool) -> None:
    try:
        size = files.size(path)
        if size != expected["bytes"]:
            raise ValueError(f"{name} has {size} bytes in place of {expected['bytes']}")
        if sums and files.sha256(path) != expected["sha256"]:
            raise ValueError(f"{name} is damaged: its SHA-256 differs")
    except FileNotFoundError:
        raise ValueError(f"{name} is missing") from None


def digest_of(content: bytes) -> str:
    """What the commit marker holds: the SHA-256 of the manifest, which holds those of the files."""
    return hashlib.sha256(content).hexdigest()


def check_identity(manifest: Manifest, identity: Mapping[str, Any], path: Place) -> None:
    """Raises BadConfiguration where the job is another one than the checkpoint's: it would not be the same training."""
    for name in sorted(manifest.identity.keys() | identity.keys()):
        saved, now = manifest.identity.get(name), identity.get(name)
        if saved != now:
            raise BadConfiguration(
                f"{name} is {json.dumps(now)}, but the checkpoint {path} was written with {json.dumps(saved)}. "
                f"Write {name}: {json.dumps(saved)} again to go on from it, `resume: Never` to start over, "
                "or another checkpoint.name to keep both"
            )
