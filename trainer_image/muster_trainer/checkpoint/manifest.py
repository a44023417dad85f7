"""The manifest of a checkpoint, and committed checkpoint directories."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from muster_contract.checkpoint_layout import CLAIM, MANIFEST, MARKER, Fence, parse_checkpoint_name
from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_contract.events import CommitReason, commit_reason_of
from muster_contract.wire import decode, document, fields_of, wire_field
from muster_trainer.checkpoint import documents, files
from muster_trainer.checkpoint.objects import Location, ObjectPath

FORMAT = 1
PICKLED_INDEX = ".metadata"
"""The index of PyTorch checkpoints in older versions of Muster. It is a pickle, so reading it could run code."""
LARGEST_MANIFEST = 16 << 20
_LARGEST_MARKER = 1 << 10
_OWN = (MANIFEST, MARKER, CLAIM)
"""Files that Muster writes into a checkpoint beside those of the training."""
_LARGEST_IDENTITY_DEPTH = 8
_LONGEST_NAME, _LONGEST_PART, _MOST_PARTS, _LONGEST_TEXT = 1024, 255, 64, 200


@document
class _File:
    """An entry of `Manifest.files`."""

    bytes: int = wire_field(minimum=0, maximum=2**63 - 1)
    sha256: str = wire_field(max_length=64)


@document
class Manifest:
    """The content of a checkpoint.

    `step` is the number of steps done, `world` the number of processes, and `samplesSeen` the number of samples since step 0. `identity`
    has the settings that a job must have to resume from the checkpoint, by the names of the job's fields. `files` has `bytes` and `sha256`
    of each file, by its path below the checkpoint.
    """

    step: int = wire_field(minimum=0)
    epoch: int = wire_field(minimum=0)
    seed: int = wire_field(minimum=-(2**64), maximum=2**64)
    samplesSeen: int = wire_field(minimum=0)  # noqa: N815 (the names in the file)
    world: int = wire_field(minimum=1)
    strategy: str = wire_field(max_length=_LONGEST_TEXT)
    attempt: int = wire_field(minimum=0)
    versions: Mapping[str, str] = wire_field(max_length=_LONGEST_TEXT)
    identity: Mapping[str, Any]
    reason: CommitReason = wire_field(max_length=_LONGEST_TEXT, convert=commit_reason_of)
    createdAt: str = wire_field(max_length=_LONGEST_TEXT)  # noqa: N815
    files: Mapping[str, Mapping[str, Any]] = wire_field(default_factory=dict, max_items=LARGEST_MANIFEST)
    format: int = wire_field(default=FORMAT, minimum=1)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=2, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Parses a manifest. One of a newer format may have more fields. Raises ValueError."""
        values = documents.parse(content)
        manifest = decode(cls, values)
        names = {field.wire_name for field in fields_of(cls)}
        if missing := sorted(name for name in names if values.get(name) is None):
            raise ValueError(f"it has no {missing[0]}")
        if manifest.format == FORMAT and (unknown := sorted(values.keys() - names)):
            raise ValueError(f"it has a field {documents.shown(unknown[0])}, which format {FORMAT} does not have")
        if not documents.shallow(manifest.identity, depth=_LARGEST_IDENTITY_DEPTH):
            raise ValueError("its identity is nested too deeply")
        for name, entry in manifest.files.items():
            _check_file(name, entry)
        _check_folders(manifest.files)
        return manifest

    @property
    def unreadable(self) -> str | None:
        """The reason why this version of Muster cannot read the checkpoint; None if it can."""
        if self.format > FORMAT:
            return f"was written by a newer version of Muster (format {self.format}, this version reads {FORMAT})"
        if PICKLED_INDEX in self.files:
            return f"was written by an older version of Muster, whose index {PICKLED_INDEX} can run code and is not read any more"
        return None


def _check_file(name: str, entry: Mapping[str, Any]) -> None:
    """Raises ValueError unless `name` is a plain path below the checkpoint, and `entry` has a size and a SHA-256."""
    parts = name.split("/")
    plain = name.isprintable() and "\\" not in name and not any(part in ("", ".", "..") for part in parts)
    if (
        not plain
        or len(parts) > _MOST_PARTS
        or len(name.encode()) > _LONGEST_NAME
        or any(len(part.encode()) > _LONGEST_PART for part in parts)
    ):
        raise ValueError(f"it lists {documents.shown(name)}, which is not a plain relative path")
    if name in _OWN:
        raise ValueError(f"it lists {name}, which is not a file of the training")
    if not re.fullmatch("[0-9a-f]{64}", decode(_File, entry, name).sha256):
        raise ValueError(f"the sha256 of {name} is not 64 hexadecimal digits")


def _check_folders(names: Collection[str]) -> None:
    """Raises ValueError if a file is below another file."""
    all_names = {*names, *_OWN}
    for name in names:
        above = next((each for each in accumulate(name.split("/")[:-1], "{}/{}".format) if each in all_names), None)
        if above is not None:
            raise ValueError(f"it lists {documents.shown(name)} below the file {documents.shown(above)}")


@dataclass(frozen=True)
class Commit:
    """A checkpoint directory `step-<step>-<fence>`, also of a rescue. Its files are not yet verified."""

    path: Location
    step: int
    fence: Fence

    @property
    def order(self) -> tuple[int, Fence]:
        """The key that sorts commits by step and then by fence, newest last."""
        return (self.step, self.fence)


def parse_directory(path: Location) -> Commit | None:
    """The step and fence in the name of a checkpoint directory; None for other names."""
    named = parse_checkpoint_name(path.name)
    return Commit(path, *named) if named else None


def is_committed(path: Location) -> bool:
    return (path / MARKER).is_file()


def read_verified(path: Location, *, sums: bool = True) -> Manifest:
    """Reads the manifest of a committed checkpoint, and verifies the size and, with `sums`, the SHA-256 of every file. First all sizes must
    be right, so that no more bytes are read than the manifest lists.

    Raises ValueError for a damaged checkpoint. Raises OSError if the storage does not answer, because the checkpoint may be intact then,
    and skipping it would lose steps.
    """
    try:
        content = files.read(path / MANIFEST, limit=LARGEST_MANIFEST)
        marked = files.read(path / MARKER, limit=_LARGEST_MARKER).decode("ascii", errors="replace").strip()
    except FileNotFoundError as error:
        raise ValueError(f"{Path(error.filename).name} is missing") from None
    manifest = _parsed(content)
    if marked != digest_of(content):
        raise ValueError(f"{MANIFEST} is not the one that was committed (its SHA-256 differs)")
    named = parse_checkpoint_name(path.name)
    if named is not None and named[0] != manifest.step:
        raise ValueError(f"its folder was renamed: {MANIFEST} is of step {manifest.step}")
    for name, expected in manifest.files.items():
        _verify_size(path, name, expected)
    if sums:
        for name, expected in manifest.files.items():
            _verify_sum(path, name, expected)
    return manifest


def verifies(commit: Commit) -> bool:
    """Whether the files verify. In an object store, only the sizes, because reads cost money and the store has checksums of its own."""
    try:
        return bool(read_verified(commit.path, sums=isinstance(commit.path, Path)))
    except ValueError:
        return False


@contextmanager
def read_back(path: Location) -> Iterator[Path]:
    """Gives a verified checkpoint as a folder on this machine: the folder itself, or a temporary copy from an object store.

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
        _verify_size(path, name, expected)
        target.parent.mkdir(parents=True, exist_ok=True)
        (path / name).download(target)
    (folder / MANIFEST).write_bytes(content)


def read_manifest(folder: Path) -> Manifest:
    """The manifest in a folder of `read_back`. Raises ValueError if it is invalid, and OSError."""
    return _parsed(files.read(folder / MANIFEST, limit=LARGEST_MANIFEST))


def read_listed(folder: Path, manifest: Manifest, name: str, *, limit: int) -> bytes:
    """The content of a file in a folder of `read_back`. It is read once and compared with its hash in `manifest`.

    Raises ValueError if it differs, and OSError.
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


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Turns the errors of a missing file `name` into ValueError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{name} is missing") from None
    except RuntimeError:  # a loop of symbolic links, before Python 3.13
        raise ValueError(f"{name} is not below the checkpoint") from None


def _verify_size(path: Location, name: str, expected: Mapping[str, Any]) -> None:
    with _damage(name):
        if "/" in name and isinstance(path, Path) and not (path / name).parent.resolve().is_relative_to(path.resolve()):
            raise ValueError(f"{name} is not below the checkpoint")
        size = files.size(path / name)
        if size != expected["bytes"]:
            raise ValueError(f"{name} has {size} bytes instead of {expected['bytes']}")


def _verify_sum(path: Location, name: str, expected: Mapping[str, Any]) -> None:
    with _damage(name):
        if files.sha256(path / name, limit=expected["bytes"]) != expected["sha256"]:
            raise ValueError(f"{name} is damaged: its SHA-256 differs")


def digest_of(content: bytes) -> str:
    """The SHA-256 of `content`, in hexadecimal. The commit marker has that of the manifest, and the manifest has those of the files."""
    return hashlib.sha256(content).hexdigest()


def check_identity(manifest: Manifest, identity: Mapping[str, Any], path: Location) -> None:
    """Raises BadConfiguration if a setting of the job differs from that of the checkpoint, because it is then another training."""
    for name in sorted(manifest.identity.keys() | identity.keys()):
        saved, now = manifest.identity.get(name), identity.get(name)
        if saved != now:
            field_name, written = documents.shown(name)[1:-1], documents.shown(saved)
            raise BadConfiguration(
                f"{field_name} is {documents.shown(now)}, but the checkpoint {path} was written with {written}. "
                f"Write {field_name}: {written} again to go on from it, `resume: Never` to start over, "
                "or another checkpoint.name to keep both"
            )
