"""Checkpoint folders that others have written: bad files are damaged or refused. Nothing hangs, and nothing is written elsewhere."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster_contract.errors import BadConfiguration, CheckpointDamaged, StorageUnavailable
from muster_contract.events import CommitReason
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Fence, Manifest, Store, read_back, select
from muster_trainer.checkpoint.files import sha256
from muster_trainer.checkpoint.manifest import LARGEST_MANIFEST, read_verified
from muster_trainer.checkpoint.objects import ObjectPath

CREATED = datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC)
OTHER_NAMES = [
    *("/etc/passwd", "../weights", "sub/../../weights", "..", ".", "", "sub//weights", "./weights", "sub/", "weights\0", "sub\\weights"),
    *("\ud800", "line\nbreak", "\x1b]0;title\x07", "a" * 256, "a/" * 600 + "a", "a/" * 64 + "a", "manifest.json", "COMMITTED"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
pytestmark = pytest.mark.timeout(300)


def store(directory: Path, attempt: int = 0, *, resume: str = "Auto") -> Store:
    made = Store(directory, Fence(CREATED, attempt), keep=2)
    made.register(select(CheckpointSpec(str(directory), resume=resume), made.fence))
    return made


def save(directory: Path, step: int) -> Path:
    made = Store(directory, Fence(CREATED, 0), keep=2)
    path = made.begin(step)
    (path / "weights").write_text(f"weights of {step}")
    listing = made.flush(path, ["weights"], path)
    made.commit(path, Manifest(step, 0, 0, step, 1, "DDP", 0, {"torch": "2"}, {"seed": 1}, CommitReason.PERIODIC, "now", listing))
    return path


def rewrite(path: Path, content: bytes) -> None:
    """Writes `content` as the manifest, with its marker."""
    (path / "manifest.json").write_bytes(content)
    (path / "COMMITTED").write_text(hashlib.sha256(content).hexdigest())


def changed(path: Path, **fields: Any) -> None:
    rewrite(path, json.dumps({**json.loads((path / "manifest.json").read_bytes()), **fields}).encode())


def chosen(directory: Path) -> tuple[int, str]:
    """The step from which training resumes, and why the newest commit was skipped."""
    selection = select(CheckpointSpec(str(directory)), Fence(CREATED, 9))
    return selection.step, " ".join(reason for _, reason in selection.skipped)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def listener(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


@pytest.mark.parametrize("make", [fifo, device, link, listener, Path.mkdir])
@pytest.mark.parametrize("name", ["weights", "manifest.json", "COMMITTED"])
def test_only_regular_files_are_read(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    if name == "weights":
        changed(path, files={name: {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}})
    (path / name).unlink()
    make(path / name)
    step, reason = chosen(tmp_path)
    assert step == 10
    if path.joinpath("COMMITTED").is_file():
        assert f"{name} is not a regular file" in reason


def test_no_file_is_hashed_if_one_has_another_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    listing = json.loads((path / "manifest.json").read_bytes())["files"]
    (path / "last").touch()
    changed(path, files={**listing, "last": {"bytes": 1, "sha256": "0" * 64}})
    hashed: list[str] = []
    monkeypatch.setattr(
        "muster_trainer.checkpoint.files.sha256", lambda path, **options: hashed.append(str(path)) or sha256(path, **options)
    )
    assert chosen(tmp_path) == (10, "last has 0 bytes instead of 1")
    assert hashed == [str(tmp_path / f"step-00000010-{Fence(CREATED, 0)}" / "weights")]


def test_a_file_that_grows_without_end_is_not_hashed_without_end(tmp_path: Path) -> None:
    path = save(tmp_path, 10) / "weights"
    content = path.read_bytes()
    path.write_bytes(content * 3)
    assert sha256(path, limit=len(content)) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_manifest_may_name_only_plain_relative_paths(tmp_path: Path, name: str) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    changed(path, files={**files, name: files["weights"]})
    step, reason = chosen(tmp_path)
    assert step == 10
    assert "is not a plain relative path" in reason or "is not a file of the training" in reason
    assert reason.isprintable()


@pytest.mark.parametrize("name", ["weights/part", "manifest.json/part", "COMMITTED/a/b"])
def test_a_manifest_lists_no_file_below_another_file(tmp_path: Path, name: str) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    changed(path, files={**files, name: files["weights"]})
    step, reason = chosen(tmp_path)
    assert step == 10
    assert "below the file" in reason


def test_a_link_instead_of_a_checkpoint_is_removed_and_its_target_stays(tmp_path: Path) -> None:
    elsewhere = save(tmp_path / "other", 20)
    store = Store(tmp_path / "own", Fence(CREATED, 0), keep=2)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / elsewhere.name).symlink_to(elsewhere)
    path = store.begin(20)
    assert path.is_dir()
    assert not path.is_symlink()
    assert (elsewhere / "COMMITTED").is_file()


def test_a_loop_of_links_is_damage(tmp_path: Path) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    (path / "loop").symlink_to("loop")
    changed(path, files={**files, "loop/a": files["weights"]})
    step, _ = chosen(tmp_path)
    assert step == 10


def test_a_file_of_another_folder_is_not_read_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "weights").write_text("weights of 20")
    save(tmp_path / "store", 10)
    path = save(tmp_path / "store", 20)
    (path / "sub").symlink_to(outside)
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    changed(path, files={"sub/weights": files["weights"]})
    assert chosen(tmp_path / "store") == (10, "sub/weights is not below the checkpoint")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"[{}]", b"1", b"null", b'"text"', b"{}", b'{"a":5}', b'{"format":1}', b'{"format":1e400}', b"\xff\xfe\x00", b"nul"),
        *(b"[" * 200_000, b'{"a":' * 200_000, b'{"format":' + b"9" * 10_000 + b"}", b'{"format":NaN}'),
    ],
)
def test_a_manifest_of_any_shape_is_damage(tmp_path: Path, content: bytes) -> None:
    save(tmp_path, 10)
    rewrite(save(tmp_path, 20), content)
    step, reason = chosen(tmp_path)
    assert step == 10
    assert "manifest.json cannot be read" in reason


@pytest.mark.parametrize("name", ["manifest.json", "COMMITTED"])
def test_a_file_of_100_megabytes_is_not_read(tmp_path: Path, name: str) -> None:
    save(tmp_path, 10)
    os.truncate(save(tmp_path, 20) / name, 100 << 20)
    step, reason = chosen(tmp_path)
    assert step == 10
    assert f"{name} is longer than" in reason
    assert LARGEST_MANIFEST < 100 << 20


@given(content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bad_content_of_a_manifest_raises_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (with any message)
        Manifest.from_bytes(content)


VALID = json.loads(
    replace(
        Manifest(1, 0, 0, 1, 1, "DDP", 0, {"torch": "2"}, {"seed": 1}, CommitReason.FINAL, "now"),
        files={"w": {"bytes": 1, "sha256": "0" * 64}},
    ).to_bytes()
)


@given(field=st.sampled_from(sorted(VALID)), value=JSON)
@example(field="reason", value="Nightly")
def test_a_manifest_with_one_changed_field_is_damage_or_is_read_as_written(field: str, value: Any) -> None:
    document = {**copy.deepcopy(VALID), field: value}
    try:
        manifest = Manifest.from_bytes(json.dumps(document).encode())
    except ValueError:
        return
    unknown_reason = field == "reason" and value not in set(CommitReason)
    assert json.loads(manifest.to_bytes())[field] == (CommitReason.PERIODIC if unknown_reason else value)
    assert manifest.unreadable is None or field == "format"


@given(value=JSON)
def test_a_bad_entry_of_a_file_does_not_fail_the_selection(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), 10)
        changed(save(Path(folder), 20), files={"weights": value})
        assert chosen(Path(folder))[0] == 10


@given(content=st.binary(max_size=50) | JSON.map(lambda value: json.dumps({"resumedStep": value}).encode()))
def test_a_registration_of_any_shape_does_not_stop_a_job(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        save(directory, 10)
        (directory / "attempts").mkdir(exist_ok=True)
        (directory / "attempts" / f"{Fence(CREATED, 1)}.json").write_bytes(content)
        assert chosen(directory)[0] in (0, 10)  # 0 where it says that attempt 1 has resumed below


@pytest.mark.parametrize("make", [fifo, device, link, Path.mkdir])
def test_a_registration_that_is_not_a_file_is_ignored(tmp_path: Path, make: Callable[[Path], None]) -> None:
    save(tmp_path, 10)
    (tmp_path / "attempts").mkdir()
    make(tmp_path / "attempts" / f"{Fence(CREATED, 1)}.json")
    assert chosen(tmp_path)[0] == 10


def test_a_registration_from_the_future_ends_the_job_and_removes_nothing(tmp_path: Path) -> None:
    made = store(tmp_path)
    path = save(tmp_path, 10)
    file = tmp_path / "attempts" / "99991231T235959Z-0000.json"
    file.write_text('{"resumedStep": 0}')
    with pytest.raises(BadConfiguration, match=rf"{file} registers .* remove that file"):
        made.begin(20)
    with pytest.raises(BadConfiguration, match="remove that file"):
        store(tmp_path, 1)
    assert made.retain() == []
    file.unlink()
    assert (chosen(tmp_path)[0], path.is_dir()) == (10, True)


def test_a_job_that_a_slow_clock_sees_in_the_future_may_save(tmp_path: Path) -> None:
    made = Store(tmp_path, Fence(datetime.now(UTC).replace(microsecond=0) + timedelta(days=300), 0), keep=2)
    made.register(select(CheckpointSpec(str(tmp_path)), made.fence))
    made.begin(10)


def test_a_link_to_a_folder_is_not_a_checkpoint_and_its_target_stays(tmp_path: Path) -> None:
    elsewhere = save(tmp_path / "elsewhere", 30)
    made = store(tmp_path / "store")
    save(tmp_path / "store", 10)
    (tmp_path / "store" / elsewhere.name).symlink_to(elsewhere)
    assert chosen(tmp_path / "store")[0] == 10
    made.retain()
    assert read_verified(elsewhere).step == 30


def test_a_checkpoint_whose_folder_was_renamed_is_damaged(tmp_path: Path) -> None:
    store(tmp_path)
    path = save(tmp_path, 10)
    renamed = shutil.copytree(path, path.with_name(path.name.replace("00000010", "00000090")))
    assert chosen(tmp_path) == (10, "its folder was renamed: manifest.json is of step 10")
    (tmp_path / "newest").symlink_to(renamed)
    with pytest.raises(CheckpointDamaged, match="renamed"):
        select(CheckpointSpec(str(tmp_path / "other"), resume=str(tmp_path / "newest")), Fence(CREATED, 0))


def test_a_checkpoint_with_a_folder_as_marker_is_removed(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    (path / "COMMITTED").unlink()
    (path / "COMMITTED").mkdir()
    store(tmp_path, 1).retain()
    assert not path.exists()


@pytest.mark.parametrize("make", [fifo, link])
def test_a_registration_is_not_written_through_a_link_or_a_pipe(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "attempts").mkdir()
    make(tmp_path / "attempts" / f"{Fence(CREATED, 0)}.json")
    with pytest.raises(StorageUnavailable, match="attempts/"):
        store(tmp_path)


# checkpoints of other versions


def outdated(directory: Path, step: int) -> Path:
    path = save(directory, step)
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    (path / ".metadata").write_bytes((path / "weights").read_bytes())
    changed(path, files={**files, ".metadata": files["weights"]})
    return path


def newer(directory: Path, step: int) -> Path:
    path = save(directory, step)
    changed(path, format=2, more=[1, 2, 3])
    return path


@pytest.mark.parametrize(("write", "version"), [(outdated, "older version"), (newer, "newer version")])
def test_a_checkpoint_of_another_version_is_refused_with_remedies(tmp_path: Path, write: Callable[[Path, int], Path], version: str) -> None:
    save(tmp_path, 10)
    path = write(tmp_path, 20)
    for resume in ("Auto", str(path)):
        with pytest.raises(BadConfiguration, match=rf"{path} .*{version}.*checkpoint.name.*resume: Never"):
            store(tmp_path, 1, resume=resume)
    assert path.is_dir()
    assert not (tmp_path / "attempts").exists()  # no attempt is registered below it


def test_a_damaged_checkpoint_of_another_version_is_skipped(tmp_path: Path) -> None:
    save(tmp_path, 10)
    (outdated(tmp_path, 20) / "weights").write_text("other weights")
    assert chosen(tmp_path)[0] == 10


def test_a_named_checkpoint_with_a_hostile_manifest_is_damaged(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    changed(path, files={"/etc/passwd": {"bytes": 1, "sha256": "0" * 64}})
    with pytest.raises(CheckpointDamaged, match="relative path"):
        store(tmp_path / "other", resume=str(path))


# object stores


@pytest.fixture
def bucket() -> ObjectPath:
    import fsspec

    fsspec.filesystem("memory").store.clear()
    return ObjectPath("memory://bucket/step-00000010-20261121T111614Z-0000")


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/muster-escaped", "sub/../../escaped"])
def test_an_object_is_downloaded_only_below_the_folder(
    bucket: ObjectPath, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    document = {**VALID, "files": {name: {"bytes": 5, "sha256": hashlib.sha256(b"curl ").hexdigest()}}}
    (bucket / "manifest.json").write_bytes(json.dumps(document).encode())
    (bucket / name).write_bytes(b"curl ")
    with pytest.raises(StorageUnavailable, match="relative path"), read_back(bucket):
        pass
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not Path("/tmp/muster-escaped").exists()


def test_an_object_that_has_grown_since_it_was_verified_is_not_downloaded(bucket: ObjectPath) -> None:
    document = {**VALID, "files": {"sub/weights": {"bytes": 5, "sha256": hashlib.sha256(b"12345").hexdigest()}}}
    (bucket / "manifest.json").write_bytes(json.dumps(document).encode())
    (bucket / "sub/weights").write_bytes(b"12345")
    with read_back(bucket) as folder:
        assert (folder / "sub" / "weights").read_bytes() == b"12345"
        assert (folder / "manifest.json").is_file()
    (bucket / "sub/weights").write_bytes(b"1234567890")
    with pytest.raises(StorageUnavailable, match=r"sub/weights .*10 bytes"), read_back(bucket):
        pass
