"""Keras' own fit: the training of Muster's own loop, and its checkpoints."""

from __future__ import annotations

import signal
from pathlib import Path

import proofs
import pytest
from worlds import trainer, world

pytestmark = pytest.mark.tensorflow
FIT = {"loop": "Fit"}
CLIPPED = {"gradientClipNorm": 0.5, "weightDecay": 0.001}


@pytest.mark.parametrize(
    ("strategy", "devices"), [("OneDevice", {}), ("Mirrored", {"logicalDevices": 3}), ("CentralStorage", {"logicalDevices": 2})]
)
def test_the_losses_are_those_of_the_custom_loop_on_one_device(strategy: str, devices: dict[str, int]) -> None:
    # 1,437 samples in steps of 479: a share of 160, 160 and 159 for three devices
    custom = proofs.uninterrupted("OneDevice", CLIPPED, size=1, batch={"globalSize": 479})
    fitted = proofs.uninterrupted(strategy, CLIPPED, size=1, batch={"globalSize": 479}, options=FIT | devices)
    proofs.losses_are_equal_to_a_millionth(custom, fitted)


def test_what_is_killed_and_what_is_asked_to_stop_goes_on_in_mid_epoch_bit_for_bit(tmp_path: Path) -> None:
    options = FIT | {"logicalDevices": 2}
    document = trainer(tmp_path, config=proofs.SLOW, options=options)
    with world("Mirrored", document, size=1) as killed:
        killed.wait_for_step(26)
        killed.kill(0)
        assert killed.finish() == [-signal.SIGKILL], killed.story()
    with world("Mirrored", document, size=1, attempt=1) as stopped:
        stopped.wait_for_step(33)
        stopped.kill(0, signal.SIGTERM)
        assert stopped.finish() == [21], stopped.story()
    last = stopped.of("commit")[-1]
    assert (stopped.of("resumed")[0]["step"], last["reason"], last["step"]) == (20, "Stop", max(stopped.losses()))
    with world("Mirrored", document, size=1, attempt=2) as third:
        assert third.finish() == [0], third.story()
    assert third.of("resumed")[0]["step"] == last["step"]
    whole = proofs.uninterrupted("Mirrored", size=1, options=options)
    assert {**killed.losses(), **stopped.losses(), **third.losses()} == whole.losses()
    assert third.metrics() == whole.metrics()


BROKEN = """
import keras
import numpy as np

class Numbers:
    def __len__(self): return 64
    def __getitem__(self, i):
        if i == 5: raise OSError("sample 5 cannot be read")
        return np.float32([i]) / 64, np.float32([i]) / 32

def dataset(config): return Numbers()
def build_model(config): return keras.Sequential([keras.layers.Dense(1)])
def loss(outputs, batch): return keras.ops.sum((outputs - batch[1]) ** 2, axis=-1)
"""


def test_a_sample_that_cannot_be_read_ends_the_training_with_the_data_sets_own_words(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    document = trainer(None, module="broken", config={"epochs": 2}, batch={"globalSize": 16}, options=FIT)
    with world("OneDevice", document, size=1, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [10], running.story()
    assert "sample 5 cannot be read" in proofs.last_error(running)["message"]
