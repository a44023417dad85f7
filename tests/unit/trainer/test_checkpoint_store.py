"""The checkpoint directory: commit, fence, selection, retention and crashes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from muster_contract.errors import BadConfiguration, CheckpointDamaged, PeerLost, StorageUnavailable
from muster_contract.events import CommitReason
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Fence, Manifest, Store, select
from muster_trainer.checkpoint.manifest import check_identity
from muster_trainer.checkpoint.selection import valid_commits

CREATED = datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC)


def fence(attempt: int = 0, *, later: int = 0) -> Fence:
    return Fence(CREATED + timedelta(seconds=later), attempt)


def manifest(step: int, **identity: object) -> Manifest:
    return Manifest(
        step=step,
        epoch=0,
        seed=0,
        samplesSeen=step,
        world=1,
        strategy="DDP",
        attempt=0,
        versions={},
        identity=identity,
        reason=CommitReason.PERIODIC,
        createdAt="2026-11-21T11:16:14+00:00",
    )


def begin_attempt(directory: Path, attempt: int, *, later: int = 0, resume: str = "Auto", keep: int = 2) -> Store:
    store = Store(directory, fence(attempt, later=later), keep)
    store.register(select(CheckpointSpec(str(directory), resume=resume), store.fence))
    return store


def save(store: Store, step: int) -> Path:
    path = store.begin(step)
    (path / "weights").write_bytes(f"{step} of {store.fence}".encode())
    commit(store, path, step)
    return path


def commit(store: Store, path: Path, step: int) -> None:
    store.commit(path, replace(manifest(step), files=store.flush(path, [file.name for file in path.iterdir()], path)))


def chosen(directory: Path, attempt: int = 9, *, resume: str = "Auto", later: int = 0) -> tuple[int, list[str]]:
    selection = select(CheckpointSpec(str(directory), resume=resume), fence(attempt, later=later))
    return selection.step, [reason for _, reason in selection.skipped]


def test_a_commit_has_step_and_fence_in_its_name_and_lists_its_files(tmp_path: Path) -> None:
    path = save(begin_attempt(tmp_path, 2), 120)
    assert path.name == "step-00000120-20261121T111614Z-0002"
    document = json.loads((path / "manifest.json").read_bytes())
    assert document["files"]["weights"]["bytes"] == (path / "weights").stat().st_size
    assert (tmp_path / "attempts" / "20261121T111614Z-0002.json").is_file()


def test_a_checkpoint_without_its_marker_does_not_exist(tmp_path: Path) -> None:
    store = begin_attempt(tmp_path, 0)
    save(store, 10)
    (save(store, 20) / "COMMITTED").unlink()
    assert chosen(tmp_path) == (10, [])


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("weights", lambda content: content[:-1], "bytes instead of"),
        ("weights", lambda content: bytes([content[0] ^ 1]) + content[1:], "SHA-256 differs"),
        ("weights", None, "weights is missing"),
        ("manifest.json", lambda content: content[:-9], "cannot be read"),
        ("manifest.json", lambda content: content.replace(b'"seed": 0', b'"seed": 1'), "not the one that was committed"),
        ("manifest.json", None, "manifest.json is missing"),
        ("COMMITTED", lambda content: b"", "not the one that was committed"),
    ],
)
def test_a_damaged_newest_commit_is_skipped_with_the_reason(tmp_path, name, damage, reason) -> None:  # type: ignore[no-untyped-def]
    store = begin_attempt(tmp_path, 0)
    save(store, 10)
    file = save(store, 20) / name
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    step, (message,) = chosen(tmp_path)
    assert step == 10
    assert reason in message


def test_storage_that_does_not_answer_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(begin_attempt(tmp_path, 0), 10)
    monkeypatch.setattr("muster_trainer.checkpoint.files.sha256", _fail(OSError(5, "Input/output error")))
    with pytest.raises(StorageUnavailable, match="Input/output error"):
        chosen(tmp_path)


def test_a_late_commit_of_an_older_world_is_void(tmp_path: Path) -> None:
    old = begin_attempt(tmp_path, 0)
    save(old, 10)
    path = old.begin(20)
    begin_attempt(tmp_path, 1)
    with pytest.raises(PeerLost, match="has taken over"):
        old.commit(path, manifest(20))
    assert not (path / "COMMITTED").exists()
    (path / "COMMITTED").write_text("written between the look and the marker")
    assert [commit.step for commit in valid_commits(tmp_path)] == [10]
    with pytest.raises(PeerLost):
        old.begin(30)


def test_a_job_that_is_created_again_resumes_and_has_a_higher_fence(tmp_path: Path) -> None:
    before = begin_attempt(tmp_path, 7)
    save(before, 10)
    again = begin_attempt(tmp_path, 0, later=60)
    assert chosen(tmp_path, 0, later=60)[0] == 10
    with pytest.raises(PeerLost):
        before.begin(20)
    save(again, 20)
    assert chosen(tmp_path, 1, later=60)[0] == 20


def test_resume_never_applies_only_to_the_first_attempt(tmp_path: Path) -> None:
    save(begin_attempt(tmp_path, 0), 50)
    fresh = begin_attempt(tmp_path, 0, later=60, resume="Never")
    assert chosen(tmp_path, 0, later=60, resume="Never")[0] == 0
    save(fresh, 10)
    assert chosen(tmp_path, 1, later=60, resume="Never")[0] == 10
    assert chosen(tmp_path, 1, later=60)[0] == 10  # the 50 of the run before is void


def test_only_the_first_attempt_resumes_from_a_named_checkpoint(tmp_path: Path) -> None:
    named = save(begin_attempt(tmp_path / "other", 0), 40)
    directory = tmp_path / "this"
    store = begin_attempt(directory, 0, later=5, resume=str(named))
    assert chosen(directory, 0, later=5, resume=str(named))[0] == 40
    save(store, 50)
    assert chosen(directory, 1, later=5, resume=str(named))[0] == 50


def test_a_named_checkpoint_must_exist_and_verify(tmp_path: Path) -> None:
    named = save(begin_attempt(tmp_path / "other", 0), 40)
    with pytest.raises(BadConfiguration, match="checkpoint directory"):
        chosen(tmp_path, resume=str(tmp_path / "nothing"))
    with pytest.raises(BadConfiguration, match="is not a committed checkpoint"):
        chosen(tmp_path, resume=str(tmp_path))
    (named / "weights").write_bytes(b"short")
    with pytest.raises(CheckpointDamaged, match="name another checkpoint"):
        chosen(tmp_path, resume=str(named))


def test_retention_removes_old_void_and_unfinished_checkpoints(tmp_path: Path) -> None:
    first = begin_attempt(tmp_path, 0)
    for step in (10, 20, 30):
        save(first, step)
    first.begin(40)
    (tmp_path / "step-00000030-20261121T111614Z-0000" / "weights").write_bytes(b"damaged")
    second = begin_attempt(tmp_path, 1)  # goes on from 20: 30 is void now
    save(second, 25)
    own_unfinished = second.begin(35)
    removed = {path.name[:13] for path in second.retain()}
    assert removed == {"step-00000010", "step-00000030", "step-00000040"}
    assert sorted(path.name[:13] for path in tmp_path.glob("step-*")) == [
        "step-00000020",
        "step-00000025",
        "step-00000035",
    ]
    assert own_unfinished.is_dir()


def test_the_next_commit_removes_a_failed_save_that_could_not_be_removed(tmp_path: Path) -> None:
    """The storage was away. A rescue by another rank, and a save of a later step, may still be written to."""
    store = begin_attempt(tmp_path, 0)
    failed, rescued, later = store.begin(20), store.rescue_directory(20), store.begin(40)
    assert store.begin_rescue(rescued)
    save(store, 30)
    (newest,) = valid_commits(tmp_path)
    assert store.retain(newest) == [failed]
    assert [path.is_dir() for path in (failed, rescued, later)] == [False, True, True]


def test_keep_below_two_keeps_two(tmp_path: Path) -> None:
    store = begin_attempt(tmp_path, 0, keep=1)
    for step in (10, 20, 30):
        save(store, step)
    store.retain()
    assert [commit.step for commit in valid_commits(tmp_path)] == [20, 30]


def test_an_older_attempt_removes_nothing_once_a_newer_one_has_begun(tmp_path: Path) -> None:
    old = begin_attempt(tmp_path, 0)
    for step in (10, 20, 30):
        save(old, step)
    begin_attempt(tmp_path, 1)
    assert old.retain() == []


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(28, "No space left on device"), "fewer checkpoints"),
        (OSError(30, "Read-only file system"), "mount it writable"),
        (OSError(13, "Permission denied"), "write access"),
        (OSError(2, "No such file or directory"), "is the volume mounted"),
    ],
)
def test_a_storage_error_names_path_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, remedy: str) -> None:
    store = begin_attempt(tmp_path, 0)
    path = store.begin(10)
    monkeypatch.setattr("muster_trainer.checkpoint.files.write_file", _fail(error))
    with pytest.raises(StorageUnavailable, match=remedy) as raised:
        store.commit(path, manifest(10))
    assert str(tmp_path) in str(raised.value)


def test_another_identity_is_refused_with_field_values_and_remedies(tmp_path: Path) -> None:
    saved = manifest(10, **{"config.seed": 1, "framework": "torch"})
    check_identity(saved, {"config.seed": 1, "framework": "torch"}, tmp_path)
    with pytest.raises(BadConfiguration, match=r"config.seed is 2, .* with 1\. .*resume: Never.*checkpoint.name"):
        check_identity(saved, {"config.seed": 2, "framework": "torch"}, tmp_path)


def _fail(error: OSError):  # type: ignore[no-untyped-def]
    def failing(*_: object, **__: object) -> None:
        raise error

    return failing
