"""The strategies of tf.distribute on one machine: the same training as one device, resumed bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from muster_contract.errors import BadConfiguration
from muster_contract.trainer_spec import TrainerSpec
from tests.local import proofs
from tests.support import descriptors
from tests.support.bare_worlds import trainer, world

pytestmark = pytest.mark.tensorflow
TWO = {"logicalDevices": 2}


@pytest.mark.parametrize(
    ("strategy", "options", "communication"),
    [
        ("Mirrored", TWO, "Auto"),
        ("Mirrored", {"logicalDevices": 3}, "OneDevice"),
        ("Mirrored", {"logicalDevices": 4}, "Hierarchical"),
        ("Mirrored", {**TWO, "devices": ["CPU:1"]}, "Hierarchical"),
        ("CentralStorage", TWO, "Auto"),
        ("CentralStorage", {"logicalDevices": 4}, "Auto"),
    ],
)
def test_the_losses_are_those_of_one_device(strategy: str, options: dict[str, object], communication: str) -> None:
    # 1,437 samples in steps of 479: a share of 160, 160 and 159 for three devices
    one = proofs.uninterrupted("OneDevice", size=1, batch={"globalSize": 479})
    many = proofs.uninterrupted(strategy, size=1, batch={"globalSize": 479}, options=options, communication=communication)
    proofs.losses_are_equal_to_a_millionth(one, many)


@pytest.mark.parametrize(
    ("strategy", "fields", "expected"),
    [
        ("OneDevice", {"options": {"devices": ["GPU:7"]}}, "spec.options.devices: there is no device GPU:7 here; there are CPU:0"),
        ("Mirrored", {"communication": "NCCL"}, "spec.communication: NCCL needs GPUs"),
        ("Mirrored", {"communication": "Ring"}, "spec.communication: 'Ring' is none of Auto, NCCL, Hierarchical, OneDevice"),
        ("MultiWorkerMirrored", {"communication": "NCCL"}, "spec.communication: NCCL needs GPUs"),
        ("MultiWorkerMirrored", {"communication": "OneDevice"}, "spec.communication: 'OneDevice' is none of Auto, NCCL, Ring"),
    ],
)
def test_what_this_machine_cannot_do_is_refused_by_name(
    strategy: str, fields: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster_trainer.tensorflow import machine, parameter_server
    from muster_trainer.tensorflow import world as cluster

    places = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": places, "task": {"type": "chief", "index": 0}}))
    joins = {
        "OneDevice": machine.one_device,
        "Mirrored": machine.mirrored,
        "MultiWorkerMirrored": cluster.join,
        "ParameterServer": parameter_server.connect,
    }
    with pytest.raises(BadConfiguration, match=re.escape(expected)):
        joins[strategy](TrainerSpec.from_json(json.dumps(trainer(None, strategy=descriptors.document("OneDevice"), **fields))))


def test_bfloat16_trains_as_well_with_variables_and_losses_in_float32() -> None:
    half = proofs.uninterrupted("Mirrored", {"precision": "BFloat16"}, size=1, options=TWO)
    assert half.metrics()["accuracy"] > 0.9
    digits = [loss.partition("p")[0].rstrip("0") for loss in half.losses().values()]
    assert max(map(len, digits)) > len("0x1.ff")  # more than the 8 bits of a bfloat16
    whole = proofs.uninterrupted("OneDevice", size=1).losses()
    first = abs(float.fromhex(half.losses()[1]) - float.fromhex(whole[1]))
    assert 0 < first < 0.05


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


@pytest.mark.parametrize(
    ("strategy", "policy", "loop", "codes"),
    [
        ("MultiWorkerMirrored", "Stop", "Custom", [10, 10]),
        ("Mirrored", "Skip", "Custom", [0]),
        ("Mirrored", "Skip", "Fit", [0]),
        ("Mirrored", "Continue", "Custom", [0]),
    ],
)
def test_a_loss_that_is_no_number_stops_is_skipped_or_goes_on_as_the_job_says(
    strategy: str, policy: str, loop: str, codes: list[int], tmp_path: Path
) -> None:
    (tmp_path / "bad_sample.py").write_text(BAD_SAMPLE)
    config, options = {"epochs": 2, "nanLoss": policy}, {"loop": loop, **(TWO if strategy == "Mirrored" else {})}
    document = trainer(None, module="bad_sample", config=config, batch={"globalSize": 16}, options=options)
    with world(strategy, document, size=len(codes), PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == codes, running.story()
    broken = [step for step, loss in running.losses().items() if loss == "nan"]
    if policy == "Stop":
        message, same = (error["message"] for error in running.events("error"))
        assert message == same
        assert {error["reason"] for error in running.events("error")} == {"LossNotFinite"}
        assert broken == [max(running.losses())]
    if policy == "Skip":
        assert len(broken) == 2  # once in each epoch: the weights were never touched by it
    if policy == "Continue":
        assert broken == list(range(broken[0], 9))
