"""`options.loop: Fit`: the model's own train_step trains as Muster's own loop does, with the same checkpoints."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.local import proofs
from tests.local.test_parameter_server import end_servers
from tests.support.bare_worlds import trainer, world

pytestmark = pytest.mark.tensorflow
FIT = {"loop": "Fit"}
CLIPPED = {"gradientClipNorm": 0.5, "weightDecay": 0.001}


@pytest.mark.parametrize(
    ("strategy", "size", "devices", "pieces"),
    [
        ("OneDevice", 1, {}, 1),
        ("Mirrored", 1, {"logicalDevices": 3}, 1),
        ("CentralStorage", 1, {"logicalDevices": 2}, 3),
        ("MultiWorkerMirrored", 2, {}, 2),
    ],
)
def test_the_losses_are_those_of_the_custom_loop_on_one_device(strategy: str, size: int, devices: dict[str, int], pieces: int) -> None:
    # 1,437 samples in steps of 479: a share of 160, 160 and 159 for three devices
    custom = proofs.uninterrupted("OneDevice", CLIPPED, size=1, batch={"globalSize": 479})
    batch = {"globalSize": 479, "accumulationSteps": pieces}
    fitted = proofs.uninterrupted(strategy, CLIPPED, size=size, batch=batch, options=FIT | devices)
    proofs.losses_are_equal_to_a_millionth(custom, fitted)


@pytest.mark.parametrize(
    ("strategy", "devices", "codes"),
    [pytest.param("Mirrored", {"logicalDevices": 2}, [], marks=pytest.mark.thorough), ("MultiWorkerMirrored", {}, [20])],
)
def test_what_is_killed_and_what_is_asked_to_stop_goes_on_in_mid_epoch_bit_for_bit(
    strategy: str, devices: dict[str, int], codes: list[int], tmp_path: Path
) -> None:
    options, size = FIT | devices, len(codes) + 1
    document = trainer(tmp_path, config=proofs.SLOW, options=options)
    with world(strategy, document, size=size) as killed:
        killed.wait_for_commit(20)
        killed.kill(size - 1)
        assert killed.finish() == [*codes, -signal.SIGKILL], killed.story()
    with world(strategy, document, size=size, attempt=1) as stopped:
        stopped.wait_for_step(33)
        stopped.kill(size - 1, signal.SIGTERM)
        assert stopped.finish() == [21] * size, stopped.story()
    last = stopped.events("commit")[-1]
    proofs.resumed_at_the_last_commit(killed, stopped)
    assert (last["reason"], last["step"]) == ("Stop", max(stopped.losses()))
    with world(strategy, document, size=size, attempt=2) as third:
        assert third.finish() == [0] * size, third.story()
    assert third.events("resumed")[0]["step"] == last["step"]
    whole = proofs.uninterrupted(strategy, size=size, options=options)
    assert {**killed.losses(), **stopped.losses(), **third.losses()} == whole.losses()
    assert third.metrics() == whole.metrics()


DOUBLED = """
import keras
import numpy as np
import tensorflow as tf

class Number(keras.Model):
    def __init__(self):
        super().__init__()
        self.number = self.add_weight(name="number", shape=(), initializer="zeros")

    def call(self, inputs): return inputs[:, 0] * self.number

    def train_step(self, data):
        x, y, sample_weight = data
        with tf.GradientTape() as tape:
            loss = LOSS
        (gradient,) = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients([(2 * gradient, self.number)])
        return {}

def dataset(config): return [(np.ones(1, np.float32), np.float32(0))] * 12
def build_model(config): return Number()
def loss(outputs, batch): return outputs
"""


def test_a_model_keeps_its_own_train_step(tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(DOUBLED.replace("LOSS", "self.compute_loss(x, y, self(x), sample_weight)"))
    config = {"epochs": 2, "learningRate": 0.25, "optimizer": "SGD", "momentum": 0.0}
    document = trainer(None, module="doubled", config=config, batch={"globalSize": 4}, options=FIT | {"logicalDevices": 2})
    with world("Mirrored", document, size=1, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [0], running.story()
    assert [float(step["loss"]) for step in running.events("step")] == [-0.5 * step for step in range(6)]


def test_a_train_step_that_does_not_use_compute_loss_is_refused(tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(DOUBLED.replace("LOSS", "tf.reduce_mean(self(x))"))
    document = trainer(None, module="doubled", batch={"globalSize": 4}, options=FIT)
    with world("OneDevice", document, size=1, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [10], running.story()
    assert "self.compute_loss" in proofs.last_error(running)["message"]


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


def test_a_sample_that_cannot_be_read_ends_all_workers_with_the_data_sets_own_words(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    document = trainer(None, module="broken", config={"epochs": 2}, batch={"globalSize": 16}, options=FIT)
    with world("MultiWorkerMirrored", document, size=2, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [10, 10], running.story()
    (message,) = {error["message"] for error in running.events("error")}
    assert "sample 5 cannot be read" in message


def test_a_chief_fits_with_its_workers_until_it_is_asked_to_stop_and_the_custom_loop_goes_on(tmp_path: Path) -> None:
    document = trainer(tmp_path, config=CLIPPED | proofs.SLOW, options=FIT)
    with world("ParameterServer", document, size=4) as first:
        first.wait_for_step(26)
        first.kill(0, signal.SIGTERM)
        assert end_servers(first) == [21, 21, 21, 21], first.story()
    last = first.events("commit")[-1]
    assert (last["reason"], last["step"]) == ("Stop", max(first.losses()))
    assert max(event["staleness"] for event in first.events("step")) > 0
    with world("ParameterServer", document | {"options": {}}, size=4, attempt=1) as second:
        assert end_servers(second) == [0, 21, 21, 21], second.story()
    assert sorted([*first.losses(), *second.losses()]) == list(range(1, proofs.STEPS + 1))
    assert second.metrics()["accuracy"] > 0.8


def test_one_worker_of_a_parameter_server_fits_as_one_device_does() -> None:
    with world("ParameterServer", trainer(None, config=CLIPPED, options=FIT), size=3) as running:
        assert end_servers(running) == [0, 21, 21], running.story()
    proofs.losses_are_equal_to_a_millionth(proofs.uninterrupted("OneDevice", CLIPPED, size=1), running)
