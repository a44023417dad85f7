"""The strategies of tf.distribute on one machine: the same training as one device, resumed bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

import proofs
import pytest
from worlds import trainer, world

pytestmark = pytest.mark.tensorflow
TWO = {"logicalDevices": 2}


@pytest.mark.parametrize(
    ("strategy", "options", "communication"),
    [
        ("Mirrored", TWO, "Auto"),
        ("Mirrored", {"logicalDevices": 3}, "OneDevice"),
        ("Mirrored", {**TWO, "devices": ["CPU:1"]}, "Hierarchical"),
        ("CentralStorage", TWO, "Auto"),
    ],
)
def test_the_losses_are_those_of_one_device(strategy: str, options: dict[str, object], communication: str) -> None:
    # 1,437 samples in steps of 479: a share of 160, 160 and 159 for three devices
    one = proofs.uninterrupted("OneDevice", size=1, batch={"globalSize": 479})
    many = proofs.uninterrupted(strategy, size=1, batch={"globalSize": 479}, options=options, communication=communication)
    proofs.losses_are_equal_to_a_millionth(one, many)


@pytest.mark.parametrize("strategy", ["OneDevice", "Mirrored", "CentralStorage"])
def test_a_killed_process_resumes_and_every_loss_is_bit_equal(strategy: str, tmp_path: Path) -> None:
    options = {} if strategy == "OneDevice" else TWO
    document = trainer(tmp_path, config=proofs.SLOW, options=options)
    with world(strategy, document, size=1) as first:
        first.wait_for_step(26)
        first.kill(0)
        assert first.finish() == [-signal.SIGKILL], first.story()
    second = proofs.second_attempt(strategy, document, size=1)
    assert second.of("resumed")[0]["step"] == 20
    assert {**first.losses(), **second.losses()} == proofs.uninterrupted(strategy, size=1, options=options).losses()


@pytest.mark.parametrize(
    ("strategy", "fields", "said"),
    [
        ("OneDevice", {"options": {"devices": ["GPU:7"]}}, "spec.options.devices: there is no device GPU:7 here; there are CPU:0"),
        ("Mirrored", {"communication": "NCCL"}, "spec.communication: NCCL needs GPUs"),
        ("Mirrored", {"communication": "Ring"}, "spec.communication: 'Ring' is none of Auto, NCCL, Hierarchical, OneDevice"),
        ("Mirrored", {"options": {"loop": "Fit"}}, "spec.options.loop"),
    ],
)
def test_what_this_machine_cannot_do_is_refused_by_name(strategy: str, fields: dict[str, object], said: str) -> None:
    with world(strategy, trainer(None, **fields), size=1) as refused:
        assert refused.finish() == [11], refused.story()
    assert said in proofs.last_error(refused)["message"]


def test_the_gradient_is_clipped_by_its_norm_over_all_devices() -> None:
    clipped = {"gradientClipNorm": 0.1}
    one = proofs.uninterrupted("OneDevice", clipped, size=1)
    proofs.losses_are_equal_to_a_millionth(one, proofs.uninterrupted("Mirrored", clipped, size=1, options=TWO))
    assert one.losses() != proofs.uninterrupted("OneDevice", size=1).losses()


BAD_SAMPLE = """
import keras
import numpy as np

class Numbers:
    def __len__(self): return 64
    def __getitem__(self, i): return np.float32([i if i != 5 else np.nan]) / 64, np.float32([i]) / 32

def dataset(config): return Numbers()
def build_model(config): return keras.Sequential([keras.layers.Dense(1)])
def loss(outputs, batch): return keras.ops.sum((outputs - batch[1]) ** 2, axis=-1)
"""


@pytest.mark.parametrize(("policy", "code"), [("Stop", 10), ("Skip", 0), ("Continue", 0)])
def test_a_loss_that_is_no_number_stops_is_skipped_or_goes_on_as_the_job_says(policy: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "bad_sample.py").write_text(BAD_SAMPLE)
    config = {"epochs": 2, "nanLoss": policy}
    document = trainer(None, module="bad_sample", config=config, batch={"globalSize": 16}, options=TWO)
    with world("Mirrored", document, size=1, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [code], running.story()
    broken = [step for step, loss in running.losses().items() if loss == "nan"]
    if policy == "Stop":
        assert f"the loss of step {broken[0]}" in proofs.last_error(running)["message"]
        assert "5" in proofs.last_error(running)["message"]
    if policy == "Skip":
        assert len(broken) == 2  # once in each epoch: the weights were never touched by it
    if policy == "Continue":
        assert broken == list(range(broken[0], 9))
