"""The trained model as files: complete with every strategy, checked, and moved into place at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bare_worlds import trainer, world

EXPORTING = {"epochs": 1, "hidden": [64, 32], "export": "model"}


def checked(export: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "muster_trainer.export", str(export)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.torch
@pytest.mark.parametrize(("strategy", "size"), [("FSDP", 2), ("TensorParallel", 2), ("Pipeline", 2), ("RPC", 3)])
def test_a_model_that_was_cut_up_is_exported_whole(strategy: str, size: int, tmp_path: Path) -> None:
    import torch

    with world(strategy, trainer(tmp_path, config=EXPORTING), size=size) as running:
        assert running.finish() == [0] * size, running.story()
    *_, notice = running.events("notice")  # a pipeline has reported its cut before
    assert notice["reason"] == "ModelExported"
    state = torch.load(tmp_path / "model" / "model.pt", weights_only=True)
    assert [tuple(tensor.shape) for tensor in state.values()] == [(64, 64), (64,), (32, 64), (32,), (10, 32), (10,)]
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(("step-", "pipeline-"))) == ["attempts", "model"]


@pytest.mark.thorough
@pytest.mark.torch
def test_an_export_is_checked_in_a_fresh_process_and_written_again_by_the_next_run(tmp_path: Path) -> None:
    document = trainer(tmp_path, config=EXPORTING)
    with world("DDP", document) as first:
        assert first.finish() == [0, 0], first.story()
    weights = tmp_path / "model" / "model.pt"
    assert checked(weights.parent).returncode == 0
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    damaged = checked(weights.parent)
    assert (damaged.returncode, damaged.stdout) == (30, "")
    with world("DDP", document, attempt=1) as second:
        assert second.finish() == [0, 0], second.story()
    assert checked(weights.parent).returncode == 0


@pytest.mark.torch
def test_a_place_that_cannot_take_the_export_is_refused_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "file").touch()
    cases = [
        (trainer(None, config=EXPORTING), 11, "the job has no storage; write checkpoint.storage"),
        (trainer(tmp_path, config=EXPORTING), 11, f"{tmp_path / 'model'} exists and is not an export; name another folder"),
        (trainer(tmp_path, config={**EXPORTING, "export": f"{tmp_path}/file/model"}), 31, "there is a file instead of a directory"),
    ]
    for document, code, expected in cases:
        with world("DDP", document) as refused:
            assert refused.finish() == [code, code], refused.story()
        assert not refused.events("step")
        assert all(expected in error["message"] for error in refused.events("error")), refused.events("error")


@pytest.mark.tensorflow
@pytest.mark.parametrize(("strategy", "size"), [("Mirrored", 1), pytest.param("MultiWorkerMirrored", 2, marks=pytest.mark.thorough)])
def test_a_keras_model_is_exported_as_saved_model_and_keras_file(strategy: str, size: int, tmp_path: Path) -> None:
    options = {"logicalDevices": 2} if strategy == "Mirrored" else {}
    with world(strategy, trainer(tmp_path, config=EXPORTING, options=options), size=size) as running:
        assert running.finish() == [0] * size, running.story()
    (notice,) = running.events("notice")
    assert notice["reason"] == "ModelExported"
    again = checked(tmp_path / "model")
    assert again.returncode == 0, again.stderr
    program = "import sys, tensorflow as tf; served = tf.saved_model.load(sys.argv[1]); print(served.serve(tf.zeros((3, 64))).shape)"
    loaded = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model" / "saved_model")], capture_output=True, text=True, timeout=120, check=True
    )
    assert loaded.stdout == "(3, 10)\n"


OWN_CLASS = """
import keras
import numpy as np

class Own(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.inner, self.last = keras.layers.Dense(width), keras.layers.Dense(1)
    def call(self, inputs): return self.last(self.inner(inputs["x"]))[:, 0]

def dataset(config): return [({"x": np.float32([i, 1])}, np.float32(i)) for i in range(16)]
def build_model(config): return Own(4)
def loss(outputs, batch): return (outputs - batch[1]) ** 2
"""


@pytest.mark.tensorflow
def test_a_class_that_keras_cannot_make_again_is_exported_as_saved_model_alone(tmp_path: Path) -> None:
    (tmp_path / "own_class.py").write_text(OWN_CLASS)
    config = {"epochs": 1, "learningRate": 0.001, "export": str(tmp_path / "elsewhere" / "model")}
    document = trainer(tmp_path / "checkpoints", module="own_class", config=config, batch={"globalSize": 8})
    with world("OneDevice", document, size=1, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [0], running.story()
    exported, left_out = (notice["message"] for notice in running.events("notice"))
    assert "(saved_model)" in exported
    assert "model.keras is left out" in left_out
    assert sorted(path.name for path in (tmp_path / "elsewhere" / "model").iterdir()) == ["export.json", "saved_model"]
