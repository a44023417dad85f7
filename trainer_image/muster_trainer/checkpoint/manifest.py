"""A checkpoint's manifest, and a checkpoint directory that has been committed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from muster_trainer.checkpoint import documents, files
from muster_trainer.checkpoint.fence import Fence
from muster_trainer.contract import BadConfiguration, StorageUnavailable
from muster_trainer.objects import ObjectPath, Place

FORMAT = 1
MANIFEST = "manifest.json"
MARKER = "COMMITTED"
PICKLED_INDEX = ".metadata"
"""The index of PyTorch checkpoints that older versions wrote. Reading it could run code."""
LARGEST_MANIFEST = 16 << 20
_LARGEST_MARKER = 1 << 10
_DIRECTORY = re.compile("step-([0-9]{1,15})-(.*)")
_LARGEST_IDENTITY_DEPTH = 8
_LONGEST_NAME, _LONGEST_PART = 1024, 255


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds. `step` counts steps done, `world` processes, `samplesSeen` samples since step 0;
    `identity` is what a job must share with the checkpoint to go on from it, by the names of the job's fields.
    `files` has `bytes` and `sha256` of each file, by its path below the checkpoint."""

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
        """The manifest of any format, of which a newer one may have fields that this version does not know.

        Raises ValueError that says what is wrong.
        """
        document = documents.parse(content)
        known = {each.name for each in fields(cls)}
        if lacking := sorted(known - document.keys()):
            raise ValueError(f"it has no {lacking[0]}")
        if documents.whole(document["format"], least=1) == FORMAT and (unknown := sorted(document.keys() - known)):
            raise ValueError(f"it has a field {documents.shown(unknown[0])}, which format {FORMAT} has not")
        for name in ("step", "epoch", "samplesSeen", "attempt"):
            documents.whole(document[name])
        documents.whole(document["seed"], least=-(2**64), most=2**64)
        documents.whole(document["world"], least=1)
        for name in ("strategy", "reason", "createdAt"):
            documents.text(document[name])
        for version in documents.mapping(document["versions"]).values():
            documents.text(version)
        if not documents.shallow(documents.mapping(document["identity"]), depth=_LARGEST_IDENTITY_DEPTH):
            raise ValueError("its identity is nested too deeply")
        listed = documents.mapping(document["files"])
        for name, entry in listed.items():
            _check_file(name, documents.mapping(entry))
        taken = {*listed, MANIFEST, MARKER}
        for name in listed:
            if above := next((each for each in map(str, PurePosixPath(name).parents) if each in taken), None):
                raise ValueError(f"it lists {documents.shown(name)} below the file {documents.shown(above)}")
        return cls(**{name: document[name] for name in known})

    @property
    def unreadable(self) -> str | None:
        """Why this version of Muster cannot go on from an intact checkpoint, which an older or newer one wrote; None where it can."""
        if self.format > FORMAT:
            return f"was written by a newer version of Muster (format {self.format}, this version reads {FORMAT})"
        if PICKLED_INDEX in self.files:
            return f"was written by an older version of Muster, whose index {PICKLED_INDEX} can run code and is not read any more"
        return None


def _check_file(name: str, entry: Mapping[str, Any]) -> None:
    """Raises ValueError unless `name` is one plain path below the checkpoint, and `entry` has its size and sum."""
    parts = name.split("/")
    plain = name.isprintable() and "\\" not in name and not any(part in ("", ".", "..") for part in parts)
    if not plain or len(name.encode()) > _LONGEST_NAME or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise ValueError(f"it lists {documents.shown(name)}, which is not a plain relative path")
    if name in (MANIFEST, MARKER):
        raise ValueError(f"it lists {name}, which is not a file of the training")
    documents.whole(entry.get("bytes"), most=2**63 - 1)
    if not re.fullmatch("[0-9a-f]{64}", documents.text(entry.get("sha256"))):
        raise ValueError(f"the sha256 of {name} is not one")


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
    match = _DIRECTORY.fullmatch(path.name)
    fence = Fence.parse(match[2]) if match else None
    return Commit(path, int(match[1]), fence) if match and fence else None


def is_committed(path: Place) -> bool:
    return (path / MARKER).is_file()


def read_verified(path: Place, *, sums: bool = True) -> Manifest:
    """The manifest of a committed checkpoint whose every file has the size and, with `sums`, the SHA-256 that were committed.

    Raises ValueError that says what is damaged, and OSError where the storage does not answer: that is no damage, and
    passing over the checkpoint for it would lose steps.
    """
    try:
        content = files.read(path / MANIFEST, limit=LARGEST_MANIFEST)
        marked = files.read(path / MARKER, limit=_LARGEST_MARKER).decode("ascii", errors="replace").strip()
    except FileNotFoundError as error:
        raise ValueError(f"{Path(error.filename).name} is missing") from None
    manifest = _parsed(content)
    if marked != digest_of(content):
        raise ValueError(f"{MANIFEST} is not the one that was committed (its SHA-256 differs)")
    for name, expected in manifest.files.items():
        _verify(path, name, expected, sums=sums)
    return manifest


def verifies(commit: Commit) -> bool:
    """Whether it is whole as far as is cheap to tell: an object store has sums of its own, and takes money for reading."""
    try:
        return bool(read_verified(commit.path, sums=isinstance(commit.path, Path)))
    except ValueError:
        return False


@contextmanager
def read_back(path: Place) -> Iterator[Path]:
    """A checkpoint that has been verified, with its manifest, as a folder of this machine: itself, or a copy for as long as it is needed.

    Raises StorageUnavailable.
    """
    if isinstance(path, Path):
        yield path
        return
    with TemporaryDirectory(prefix="muster-load-") as folder:
        with files.storage(path):
            try:
                _download(path, Path(folder).resolve())
            except ValueError as error:
                raise StorageUnavailable(f"checkpoint {path} has changed since it was verified: {error}") from None
        yield Path(folder)


def _download(path: ObjectPath, folder: Path) -> None:
    content = files.read(path / MANIFEST, limit=LARGEST_MANIFEST)
    for name, expected in Manifest.from_bytes(content).files.items():
        target = folder / name
        if not target.resolve().is_relative_to(folder):
            raise ValueError(f"{name} is not below the checkpoint")
        _verify(path, name, expected, sums=False)
        target.parent.mkdir(parents=True, exist_ok=True)
        (path / name).download(target)
    (folder / MANIFEST).write_bytes(content)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint that `read_back` gave. Raises ValueError where it is none, and OSError."""
    return _parsed(files.read(folder / MANIFEST, limit=LARGEST_MANIFEST))


def read_listed(folder: Path, manifest: Manifest, name: str, *, limit: int) -> bytes:
    """A file of a checkpoint that `read_back` gave: it is read once, and these bytes are the ones that `manifest` lists.

    Raises ValueError where they are not, and OSError.
    """
    if name not in manifest.files:
        raise ValueError(f"{MANIFEST} lists no {name}")
    content = files.read(folder / name, limit=limit)
    if digest_of(content) != manifest.files[name]["sha256"]:
        raise ValueError(f"{name} is damaged: its SHA-256 differs")
    return content


def _parsed(content: bytes) -> Manifest:
    try:
        return Manifest.from_bytes(content)
    except ValueError as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error}") from None


def _verify(path: Place, name: str, expected: Mapping[str, Any], *, sums: bool) -> None:
    try:
        if "/" in name and isinstance(path, Path) and not (path / name).parent.resolve().is_relative_to(path.resolve()):
            raise ValueError(f"{name} is not below the checkpoint")
        size = files.size(path / name)
        if size != expected["bytes"]:
            raise ValueError(f"{name} has {size} bytes in place of {expected['bytes']}")
        if sums and files.sha256(path / name) != expected["sha256"]:
            raise ValueError(f"{name} is damaged: its SHA-256 differs")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{name} is missing") from None
    except RuntimeError:  # a loop of symbolic links, before Python 3.13
        raise ValueError(f"{name} is not below the checkpoint") from None


def digest_of(content: bytes) -> str:
    """The SHA-256 of `content`, in hexadecimal. The commit marker holds that of the manifest, which holds those of the files."""
    return hashlib.sha256(content).hexdigest()


def check_identity(manifest: Manifest, identity: Mapping[str, Any], path: Place) -> None:
    """Raises BadConfiguration where the job is another one than the checkpoint's: it would not be the same training."""
    for name in sorted(manifest.identity.keys() | identity.keys()):
        saved, now = manifest.identity.get(name), identity.get(name)
        if saved != now:
            field_name, written = documents.shown(name)[1:-1], documents.shown(saved)
            raise BadConfiguration(
                f"{field_name} is {documents.shown(now)}, but the checkpoint {path} was written with {written}. "
                f"Write {field_name}: {written} again to go on from it, `resume: Never` to start over, "
                "or another checkpoint.name to keep both"
            )
