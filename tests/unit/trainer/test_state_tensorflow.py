"""A checkpoint of TensorFlow whose files have changed since they were verified: the error says so, and is no error of the user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402 (after TensorFlow, which may be absent)

from muster_contract.errors import StorageUnavailable  # noqa: E402
from muster_trainer.tensorflow.state import State  # noqa: E402
from muster_trainer.tensorflow.workers import Workers  # noqa: E402

GRAPH = ("_CHECKPOINTABLE_OBJECT_GRAPH", "")
pytestmark = pytest.mark.timeout(120)


class OneWorker:
    rank, devices = 0, 1


@pytest.fixture
def state() -> State:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return State(model, optimizer, workers=cast(Workers, OneWorker()))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["state.index", "state.data-00000-of-00001"])
@pytest.mark.parametrize("damage", [flip, lambda path: os.truncate(path, 40), lambda path: path.write_bytes(bytes(100))])
def test_damaged_files_are_an_error_of_the_storage(name: str, damage: Callable[[Path], object], state: State, tmp_path: Path) -> None:
    state.part_to_save(tmp_path, room=0).write()
    state.load(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(StorageUnavailable, match=str(tmp_path)):
        state.load(tmp_path)


@pytest.mark.parametrize("graph", [b"", b"\xff" * 50], ids=["empty", "invalid"])
def test_a_damaged_list_of_variables_is_an_error_of_the_storage(
    graph: bytes, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Any = state._read
    assert GRAPH in read()
    monkeypatch.setattr(state, "_read", lambda: {**read(), GRAPH: tf.constant(graph)})
    state.part_to_save(tmp_path, room=0).write()
    with pytest.raises(StorageUnavailable, match="is not as it was verified"):
        state.load(tmp_path)
