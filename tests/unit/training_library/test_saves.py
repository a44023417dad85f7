"""Checkpoints that several ranks write together, in a folder and in an object store."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from muster_contract.errors import StorageUnavailable, UserError
from muster_contract.events import CommitReason
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Store
from muster_trainer.host.ranks import OtherRank, Ranks, RankZero
from muster_trainer.training.resume_point import ResumePoint
from muster_training.saves import Saved, Saves
from tests.support.own_loops import own_replica
from tests.support.texts import absent
from tests.unit.trainer.test_ranks import fresh_address

T = TypeVar("T")
WORLD = 3


@pytest.fixture(params=["folder", "objects"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "storage") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/job"


def world(storage: str, attempt: int = 0) -> list[Saves]:
    """The ranks of an attempt."""
    address, greeting = fresh_address(), {"job": "uid", "attempt": attempt, "generation": "", "world": WORLD}
    ranks: list[Ranks] = [RankZero(address, greeting, WORLD), *(OtherRank(address, greeting, rank) for rank in range(1, WORLD))]
    return [Saves(own_replica(storage, attempt=attempt, world=WORLD), _spec(storage), each, WORLD) for each in ranks]


def _spec(storage: str) -> CheckpointSpec:
    spec = own_replica(storage).trainer_spec.checkpoint
    assert spec is not None
    return spec


def on_all(saves: list[Saves], call: Callable[[int, Saves], T]) -> list[T | Exception]:
    def called(rank: int) -> T | Exception:
        try:
            return call(rank, saves[rank])
        except Exception as error:  # noqa: BLE001
            return error

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(called, range(WORLD), timeout=60))


def test_the_files_of_all_ranks_are_one_checkpoint(storage: str) -> None:
    def save(rank: int, saves: Saves) -> str:
        saved: list[Saved] = []
        with saves.write(5, CommitReason.PERIODIC, saved) as folder:
            (folder / "parts").mkdir()
            (folder / "parts" / f"{rank}.txt").write_text(str(rank))
            (folder / "same.txt").write_text("same")
        return saved[0].name

    assert len(set(on_all(world(storage), save))) == 1

    def read(saves: Saves, resume: ResumePoint) -> dict[str, str]:
        checkpoint = saves.read(resume)
        assert checkpoint is not None
        assert checkpoint.step == 5
        files = (path for path in checkpoint.folder.rglob("*.txt"))
        return {str(path.relative_to(checkpoint.folder)): path.read_text() for path in files}

    expected = {"same.txt": "same", **{f"parts/{rank}.txt": str(rank) for rank in range(WORLD)}}
    again = world(storage, attempt=1)
    resumes = on_all(again, lambda _, saves: saves.resume_point())
    for saves, resume in zip(again, resumes, strict=True):  # one after another: open files of memory:// share their position
        assert isinstance(resume, ResumePoint), resume
        assert read(saves, resume) == expected


def test_ranks_may_write_into_one_folder(storage: str) -> None:
    """As Orbax does: rank 0 completes the files of the other ranks."""

    def save(rank: int, saves: Saves) -> None:
        with saves.write(5, CommitReason.PERIODIC, [], shared=True) as folder:
            (folder / f"{rank}.txt").write_text(str(rank))
            saves.ranks.gather("written")
            if rank == 0:
                (folder / "all.txt").write_text(" ".join(sorted(path.stem for path in folder.iterdir())))

    assert on_all(world(storage), save) == [None] * WORLD
    again = world(storage, attempt=1)
    for saves, resume in zip(again, on_all(again, lambda _, each: each.resume_point()), strict=True):
        assert isinstance(resume, ResumePoint), resume
        checkpoint = saves.read(resume)
        assert checkpoint is not None
        assert (checkpoint / "all.txt").read_text() == "0 1 2"
        assert [(checkpoint / f"{rank}.txt").read_text() for rank in range(WORLD)] == ["0", "1", "2"]


def test_the_error_of_one_rank_in_a_shared_folder_is_raised_on_all(storage: str) -> None:
    def save(rank: int, saves: Saves, step: int = 5) -> None:
        with saves.write(step, CommitReason.PERIODIC, [], shared=True) as folder:
            (folder / f"{rank}.txt").touch()
            if rank == 1 and step == 5:
                raise ZeroDivisionError("no number")

    first, failed, third = on_all(saves := world(storage), save)
    assert isinstance(failed, ZeroDivisionError)
    for error in (first, third):
        assert isinstance(error, UserError)
        assert absent(str(error), "rank 1", "ZeroDivisionError: no number") == []
    assert saves[0].newest() is None
    assert on_all(saves, lambda rank, each: save(rank, each, step=6)) == [None] * WORLD


def test_a_rank_that_does_not_see_the_shared_folder_gets_an_error(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda self: not self.name.startswith((".shared", "muster-save-")) and is_dir(self))

    def save(rank: int, saves: Saves) -> None:
        with saves.write(5, CommitReason.PERIODIC, [], shared=True):
            raise AssertionError

    for error in on_all(world(storage), save):
        assert isinstance(error, UserError)
        assert "does not see the folder" in str(error)


def test_ranks_that_write_different_files_of_one_name_save_nothing(storage: str) -> None:
    def save(rank: int, saves: Saves) -> None:
        with saves.write(5, CommitReason.PERIODIC, []) as folder:
            (folder / "state.txt").write_text(str(rank // 2))

    errors = on_all(saves := world(storage), save)
    assert all(isinstance(error, UserError) and absent(str(error), "rank 2", "state.txt") == [] for error in errors)
    assert saves[0].newest() is None


def test_a_commit_remains_if_the_removal_of_older_ones_fails(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(rank: int, saves: Saves) -> None:
        with saves.write(5, CommitReason.PERIODIC, []) as folder:
            (folder / f"{rank}.txt").touch()

    def fail(self: Store, newest: object = None) -> None:
        raise StorageUnavailable("an older checkpoint cannot be removed")

    monkeypatch.setattr(Store, "retain", fail)
    errors = on_all(saves := world(storage), save)
    assert all(isinstance(error, StorageUnavailable) for error in errors)
    assert saves[0].newest() == 5


def test_the_error_of_one_rank_is_raised_on_all_and_the_next_save_works(storage: str) -> None:
    def save(rank: int, saves: Saves, step: int = 5) -> None:
        with saves.write(step, CommitReason.PERIODIC, []) as folder:
            (folder / f"{rank}.txt").touch()
            if rank == 1 and step == 5:
                raise ZeroDivisionError("no number")

    first, failed, third = on_all(saves := world(storage), save)
    assert isinstance(failed, ZeroDivisionError)
    for error in (first, third):
        assert isinstance(error, UserError)
        assert absent(str(error), "rank 1", "ZeroDivisionError: no number") == []
    assert saves[0].newest() is None
    assert on_all(saves, lambda rank, each: save(rank, each, step=6)) == [None] * WORLD
    assert saves[0].newest() == 6


class Speechless(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


def test_no_rank_waits_for_one_whose_error_has_no_text(storage: str) -> None:
    def save(rank: int, saves: Saves) -> None:
        with saves.write(5, CommitReason.PERIODIC, []):
            if rank == 1:
                raise Speechless

    first, failed, third = on_all(world(storage), save)
    assert isinstance(failed, Speechless)
    for error in (first, third):
        assert absent(str(error), "rank 1", "Speechless") == []


def test_a_link_to_a_folder_cannot_be_saved(storage: str) -> None:
    def save(rank: int, saves: Saves) -> None:
        with saves.write(5, CommitReason.PERIODIC, []) as folder:
            (folder / f"{rank}.txt").touch()
            (folder / "newest").symlink_to(folder)

    for error in on_all(world(storage), save):
        assert isinstance(error, UserError)
        assert absent(str(error), "newest", "not a regular file") == []
