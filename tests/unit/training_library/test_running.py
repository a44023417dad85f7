"""`run` in one process: outside Muster, and when the state of an earlier world is saved after all."""

from __future__ import annotations

from pathlib import Path

import pytest

import muster_training as muster
from muster_contract.errors import PeerLost
from muster_training import trees
from muster_training.session import current
from muster_training.survival import Kept
from tests.unit.training_library.test_session import Enter, enter, of, own_process

__all__ = ["enter", "own_process"]


def kept(step: int = 7) -> Kept:
    content = trees.content_of({"total": trees.pack(3.5, "total")})
    return Kept(step, 10, content, bytearray(), lambda folder: (folder / "state.muster").write_bytes(content))


def test_outside_muster_a_function_is_called_once() -> None:
    calls: list[int] = []

    def train() -> int:
        calls.append(1)
        if len(calls) == 2:
            raise PeerLost("rank 1 is gone")
        return 7

    assert muster.run(train) == 7
    with pytest.raises(PeerLost):
        muster.run(train)
    assert len(calls) == 2


def test_the_content_that_ranks_send_is_that_of_a_file(tmp_path: Path) -> None:
    states = {"a": trees.pack([1, b"12345", "x"], "a"), "b": trees.pack({"c": b""}, "b")}
    trees.write(tmp_path / "states", states)
    content = trees.content_of(states)
    assert bytes(content).rstrip(b"\0") == (tmp_path / "states").read_bytes().rstrip(b"\0")
    assert {name: trees.unpack(packed) for name, (packed, _) in trees.parse(memoryview(content), "here").items()} == {
        "a": [1, b"12345", "x"],
        "b": {"c": b""},
    }


def test_the_state_of_an_earlier_world_is_saved_once_and_can_be_read(tmp_path: Path, enter: Enter) -> None:
    sent = enter(tmp_path)
    survival = current().survival
    survival.rescue()
    assert of(sent, "commit") == []
    survival.kept = kept()
    assert not survival.is_rescued
    for _ in range(2):
        survival.rescue()
    assert survival.is_rescued
    [commit] = of(sent, "commit")
    assert (commit["step"], commit["reason"]) == (7, "PeerLost")
    total: list[float] = []
    state = muster.register(total=(lambda: total[0] if total else 0.0, total.append))
    assert (state.step, total) == (7, [3.5])


def test_every_error_is_the_loss_of_a_peer_once_the_supervisor_has_ordered_to_leave(enter: Enter) -> None:
    enter()
    survival = current().survival
    assert not survival.is_about_peer(RuntimeError("some error"))
    assert survival.is_about_peer(PeerLost("rank 1 is gone"))
    survival.is_broken = True
    assert survival.is_about_peer(RuntimeError("some error"))
