"""Each rank copies a share of a library's files into a checkpoint. Later writes do not change the copy."""

from __future__ import annotations

import json
from pathlib import Path

from muster_contract.events import CommitReason
from muster_trainer.host.ranks import Ranks
from muster_training.copies import copy_share, share_of
from muster_training.saves import Saved, Saves
from tests.unit.training_library.test_saves import WORLD, on_all, world

SAME, OWN, OTHER = [7, 1, 1], [8, 1, 1], [9, 1, 1]


def test_files_that_all_ranks_see_are_divided_between_them() -> None:
    listings = [dict.fromkeys("abcd", SAME)] * 2
    assert [share_of(rank, listings) for rank in (0, 1)] == [["a", "c"], ["b", "d"]]


def test_a_file_that_only_one_rank_sees_is_copied_by_that_rank() -> None:
    assert [share_of(rank, [{}, {"a": SAME}]) for rank in (0, 1)] == [[], ["a"]]


def test_the_file_of_the_lowest_rank_is_copied_if_names_are_equal() -> None:
    listings = [{}, {"a": OWN, "b": SAME}, {"a": OTHER, "b": SAME}]
    assert [share_of(rank, listings) for rank in range(3)] == [[], ["a"], ["b"]]


def save(ranks: Ranks, saves: Saves, source: Path) -> None:
    saved: list[Saved] = []
    with saves.write(5, CommitReason.PERIODIC, saved) as folder:
        copy_share(ranks, source, folder)


def test_files_of_shared_and_own_folders_become_one_separate_checkpoint(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    for folder, names in ((near, ["state.json", "part/0", "part/1"]), (far, ["state.json", "part/2"])):
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{folder.name} {name}")
    sources = [near, near, far]
    storage = tmp_path / "storage"
    assert on_all(world(str(storage)), lambda rank, saves: save(saves.ranks, saves, sources[rank])) == [None] * WORLD
    for path in near.rglob("*"):
        if path.is_file():
            path.write_text("saved again")
    [commit] = storage.glob("step-00000005-*")
    names = json.loads((commit / "manifest.json").read_text())["files"].keys()
    assert {name: (commit / name).read_text() for name in names} == {
        "state.json": "near state.json",
        "part/0": "near part/0",
        "part/1": "near part/1",
        "part/2": "far part/2",
    }
