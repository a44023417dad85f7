"""How the GPUs of a machine are shared out to the replicas of a local run."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.local.gpus import SHARED, VISIBLE, share, visible
from muster.strategies.base import ReplicaPlan, WorldPlan


def plan(*processes: int) -> WorldPlan:
    replicas = [ReplicaPlan("worker", index, number, sum(processes[:index])) for index, number in enumerate(processes)]
    return WorldPlan(tuple(replicas), size=sum(processes))


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0,2", ("0", "2")), (" GPU-1f , 3", ("GPU-1f", "3")), ("", ()), ("-1", ())],
    ids=["numbers", "names", "none", "off"],
)
def test_the_user_names_the_gpus(value: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert visible({VISIBLE: value}, tmp_path) == expected


def test_all_gpus_of_the_machine_are_used_without_that(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible({}, tmp_path) == ("0", "1")
    assert visible({}, tmp_path / "nothing") == ()


@pytest.mark.parametrize(
    ("gpus", "processes", "expected"),
    [
        (("0", "1"), (1, 1), ["0", "1"]),
        (("0", "1", "2", "3"), (2, 2), ["0,1", "2,3"]),
        (("a", "b", "c"), (1, 2), ["a", "b,c"]),
        (("0",), (1, 1), ["0", "0"]),
        (("0", "1"), (1, 1, 1), ["0", "1", "0"]),
        (("0",), (4,), ["0"]),
        (("0", "1"), (3, 1), ["0,1", "1"]),
    ],
)
def test_each_process_gets_a_gpu_and_shares_it_only_if_there_are_too_few(
    gpus: tuple[str, ...], processes: tuple[int, ...], expected: list[str]
) -> None:
    shared = SHARED if sum(processes) > len(gpus) else {}
    given = [share(gpus, plan(*processes), "worker", index, environ={}) for index in range(len(processes))]
    assert given == [{VISIBLE: names, **shared} for names in expected]


def test_nothing_is_set_without_a_gpu() -> None:
    assert share((), plan(1, 1), "worker", 0, environ={}) == {}


def test_an_evaluator_shares_the_last_gpu() -> None:
    assert share(("0", "1"), plan(1, 1), "evaluator", 0, environ={}) == {VISIBLE: "1", **SHARED}


def test_a_launcher_takes_no_gpu_from_the_ranks_that_it_starts() -> None:
    launcher, *workers = (ReplicaPlan("launcher", 0, 1, None), *(ReplicaPlan("worker", index, 1, 2 * index, slots=2) for index in range(2)))
    world = WorldPlan((launcher, *workers), size=4)
    gpus = ("0", "1", "2", "3")
    assert [share(gpus, world, "worker", index, environ={}) for index in range(2)] == [{VISIBLE: "0,1"}, {VISIBLE: "2,3"}]
    assert share(gpus, world, "launcher", 0, environ={})[VISIBLE] == "3"


def test_the_user_decides_whether_processes_share_a_gpu() -> None:
    given = share(("0",), plan(1, 1), "worker", 1, environ=dict.fromkeys(SHARED, "0"))
    assert given == {VISIBLE: "0"}
