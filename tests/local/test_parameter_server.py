"""Real ParameterServer training: a chief, workers that come and go, and parameter servers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import DEADLINE, BareWorld, trainer, world

pytestmark = pytest.mark.tensorflow
PS = "ParameterServer"

COUNTING = """
import keras
import numpy as np

class Places:
    def __len__(self): return 200
    def __getitem__(self, i): return np.int64([i]), np.float32([0])

def dataset(config, split): return Places()

def build_model(config):  # of 8 MiB and more: each of two servers holds a part
    return keras.Sequential([
        keras.Input((1,), dtype="int64"), keras.layers.Embedding(200, 12_000, embeddings_initializer="zeros"), keras.layers.Flatten()
    ])

def loss(outputs, batch): return outputs[:, 0]

def metrics(outputs, batch):
    uses = -20 * outputs[:, 0]  # with a rate of 1 each use takes a 20th away, in batches of 20
    return {"uses": uses, "wrong": keras.ops.cast(keras.ops.abs(uses - 3) > 1e-3, "float32")}
"""

LISTED = """
import keras
from muster_trainer.tensorflow import digits
from muster_trainer.tensorflow.digits import loss, metrics

def dataset(config, split):
    found = digits.dataset(config, split)
    return [found[index] for index in range(len(found))]

def build_model(config):
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
"""


def end_servers(running: BareWorld) -> list[int]:
    """Asks the servers to stop, once the chief has ended."""
    running.processes[0].wait(DEADLINE)
    for rank in range(1, len(running.processes)):
        running.kill(rank, signal.SIGTERM)
    return running.finish()


def test_each_sample_is_used_once_an_epoch_by_two_workers_and_large_tables_lie_on_both_servers(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    config = {"epochs": 3, "learningRate": 1.0, "momentum": 0.0}
    document = trainer(tmp_path / "checkpoints", module="counting", config=config, batch={"globalSize": 20}, checkpoint={"everySteps": 7})
    with world(PS, document, roles=("chief", "worker", "worker", "ps", "ps"), PYTHONPATH=str(tmp_path)) as running:
        assert end_servers(running) == [0, 21, 21, 21, 21], running.story()
    assert running.metrics()["uses"] == pytest.approx(3, abs=1e-4)
    assert running.metrics()["wrong"] == 0
    staleness = [event["staleness"] for event in running.events("step")]
    assert len(staleness) == 30
    assert max(staleness) > 0
    assert running.metrics()["stalenessMost"] == max(staleness)
    assert [event["step"] for event in running.events("commit")] == [7, 14, 21, 28, 30]


@pytest.mark.parametrize(
    "task",
    [
        pytest.param("digits", id="the workers have the samples"),
        pytest.param("listed", id="the chief sends them", marks=pytest.mark.thorough),
    ],
)
def test_a_worker_that_is_lost_is_taken_back_and_a_stopped_job_goes_on_from_just_the_steps_it_reported(task: str, tmp_path: Path) -> None:
    (tmp_path / "listed.py").write_text(LISTED)
    fields: dict[str, Any] = {"checkpoint": {"everySteps": 50}, **({} if task == "digits" else {"module": task})}
    environment = {"PYTHONPATH": str(tmp_path)}
    with world(PS, trainer(tmp_path, config={"epochs": 5000, **proofs.SLOW}, **fields), size=4, **environment) as first:
        first.wait_for_step(5)
        first.kill(2)
        first.processes[2].wait(240)
        first.wait_for_step(max(first.losses()) + 5)
        first.start(2)
        first.wait_for_event("fingerprint", lambda event: event["rank"] == 1 and event["time"] > first.events("step")[0]["time"])
        first.wait_for_step(max(first.losses()) + 5)
        first.kill(0, signal.SIGTERM)
        assert end_servers(first) == [21, 21, 21, 21], first.story()
    saved = first.events("commit")[-1]
    assert (saved["reason"], saved["step"]) == ("Stop", max(first.losses()))
    epochs = saved["step"] // 23 + 4
    with world(PS, trainer(tmp_path, config={"epochs": epochs}, **fields), size=4, attempt=1, **environment) as second:
        assert end_servers(second) == [0, 21, 21, 21], second.story()
    assert second.events("resumed")[0]["step"] == saved["step"]
    assert sorted([*first.losses(), *second.losses()]) == list(range(1, epochs * 23 + 1))
    assert second.metrics()["accuracy"] > 0.93


def test_one_worker_computes_what_one_device_does_until_its_server_is_lost(tmp_path: Path) -> None:
    config = {"gradientClipNorm": 0.5}
    document = trainer(tmp_path, config={**config, **proofs.SLOW, "epochs": 500}, batch={"globalSize": 64, "accumulationSteps": 2})
    with world(PS, document, size=3) as running:
        running.wait_for_step(30)
        running.kill(2)
        assert running.processes[0].wait(DEADLINE) == 20, running.story()
    assert proofs.last_error(running)["reason"] == "PeerLost"
    assert {event["staleness"] for event in running.events("step")} == {0}
    one = proofs.uninterrupted("OneDevice", config, size=1)
    pairs = [(float.fromhex(loss), float.fromhex(running.losses()[step])) for step, loss in one.losses().items() if step <= 30]
    assert max(abs(a - b) for a, b in pairs) < 1e-6
