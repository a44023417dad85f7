"""What a job may choose beside the strategy, in TensorFlow: warm-up, bundled tasks, weights of samples, regularisers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import BareWorld, trainer, world

pytestmark = pytest.mark.tensorflow
THREE = {"logicalDevices": 3}


def test_the_learning_rate_grows_to_the_scaled_one_and_a_killed_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    warm = {"epochs": 2, "warmupSteps": 30}
    one = proofs.uninterrupted("OneDevice", {**warm, "learningRate": 0.15}, size=1)
    linear = {"globalSize": 64, "learningRateScaling": "Linear"}
    config = {**warm, "learningRate": 0.05, **proofs.SLOW}
    many = proofs.uninterrupted("Mirrored", config, size=1, batch=linear, options=THREE)
    proofs.losses_are_equal_to_a_millionth(one, many)
    document = trainer(tmp_path, config=config, batch=linear, options=THREE)
    with world("Mirrored", document, size=1) as first:
        first.wait_for_commit(10)
        first.kill(0)
        first.finish()
    second = proofs.second_attempt("Mirrored", document, size=1)
    proofs.resumed_at_the_last_commit(first, second)
    assert {**first.losses(), **second.losses()} == many.losses()


SCHEDULED = """
import keras
import numpy as np

class Number(keras.layers.Layer):
    def build(self, shape): self.number = self.add_weight(name="number", shape=(), initializer="zeros")
    def call(self, inputs): return inputs[:, 0] * self.number

def dataset(config): return [(np.ones(1, np.float32), np.float32(0))] * 12
def build_model(config): return keras.Sequential([keras.Input((1,)), Number()])
def loss(outputs, batch): return outputs
def schedule(step, config): return config.decay ** step
"""


def scheduled(directory: Path, more: str = "", **options: Any) -> BareWorld:
    (directory / "scheduled.py").write_text(SCHEDULED + more)
    config = {"epochs": 2, "learningRate": 0.5, "optimizer": "SGD", "momentum": 0.0, "warmupSteps": 4, "decay": 0.5}
    document = trainer(None, module="scheduled", config=config, batch={"globalSize": 2}, options=options)
    with world("OneDevice", document, size=1, PYTHONPATH=str(directory)) as running:
        running.finish()
    return running


@pytest.mark.parametrize("loop", ["Custom", "Fit"])
def test_the_tasks_schedule_scales_the_rate_of_each_step_together_with_the_warm_up(loop: str, tmp_path: Path) -> None:
    losses = [float(step["loss"]) for step in scheduled(tmp_path, loop=loop).events("step")]
    rates = [0.5 * min((step + 1) / 4, 1) * 0.5**step for step in range(12)]
    assert losses == pytest.approx([-sum(rates[:step]) for step in range(12)], rel=1e-6)


@pytest.mark.parametrize(
    ("more", "code", "expected"),
    [
        (
            "def schedule(step, config): return float('nan')",
            10,
            "module scheduled: schedule must return a factor of the learning rate, 0 or more; for step 0 it returned nan",
        ),
        (
            "def optimizer(model, config): return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.5))",
            11,
            "module scheduled: schedule: module scheduled's optimizer has a schedule of its own; leave one of them out",
        ),
    ],
)
def test_rates_that_cannot_be_are_refused_in_one_line(more: str, code: int, expected: str, tmp_path: Path) -> None:
    refused = scheduled(tmp_path, more)
    assert [process.wait() for process in refused.processes] == [code], refused.story()
    assert proofs.last_error(refused)["message"] == expected


@pytest.mark.parametrize(
    ("task", "size", "config"),
    [
        pytest.param(
            *("gpt", 128, {"width": 32, "heads": 2, "context": 32, "optimizer": "AdamW", "learningRate": 0.003}),
            marks=pytest.mark.thorough,
        ),
        ("recommender", 512, {"epochs": 2, "optimizer": "Adam", "learningRate": 0.02, "gradientClipNorm": 0.5}),
        pytest.param("skewed", 128, {"gradientClipNorm": 1.0}, marks=pytest.mark.thorough),
    ],
)
def test_each_task_is_trained_alike_by_one_device_and_by_three(task: str, size: int, config: dict[str, Any]) -> None:
    runs = []
    for strategy, options in (("OneDevice", {}), ("Mirrored", THREE)):
        document = {**trainer(None, config={"epochs": 1, **config}, options=options, batch={"globalSize": size}), "task": task}
        with world(strategy, document, size=1) as running:
            assert running.finish() == [0], running.story()
        runs.append(running)
    proofs.losses_are_equal_to_a_millionth(*runs)
    assert float(runs[0].events("step")[-1]["loss"]) < float(runs[0].events("step")[0]["loss"])


WEIGHED = """
import keras
import numpy as np

def dataset(config): return [(np.full(2, i, np.float32) / 20, np.float32(i % 3), np.float32(i % 4)) for i in range(19)]

def build_model(config):
    dense = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5))
    return keras.Sequential([keras.Input((2,)), dense, keras.layers.ActivityRegularization(l2=0.1), keras.layers.Reshape(())])

def loss(outputs, batch): return (outputs - batch[1]) ** 2
"""


def weighed(directory: Path, strategy: str, *, size: int = 1, code: str = WEIGHED, **fields: Any) -> BareWorld:
    (directory / "weighed.py").write_text(code)
    document = trainer(None, module="weighed", config={"epochs": 2, "learningRate": 0.01}, batch={"globalSize": 8}, **fields)
    with world(strategy, document, size=size, PYTHONPATH=str(directory)) as running:
        assert running.finish() == [0] * size, running.story()
    return running


def test_weights_of_samples_and_regularisers_count_once_whatever_the_world(tmp_path: Path) -> None:
    from muster_trainer.data import Order

    one, three = weighed(tmp_path, "OneDevice"), weighed(tmp_path, "Mirrored", options=THREE)
    first = Order(7, 19, 8).batch_indices(0)
    outputs = {i: 2 * i / 20 for i in first}  # the kernel begins with ones
    losses = sum((i % 4) * (outputs[i] - i % 3) ** 2 for i in first) / 8
    activity = 0.1 * sum(value**2 for value in outputs.values()) / 8
    assert float(one.events("step")[0]["loss"]) == pytest.approx(losses + 0.5 * 2 + activity, rel=1e-5)
    proofs.losses_are_equal_to_a_millionth(one, three)


LOSS_OBJECT = """
import keras
import numpy as np

def dataset(config): return [(np.full(3, i % 7, np.float32) / 7, np.int32(i % 3)) for i in range(19)]
def build_model(config): return keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
def loss(outputs, batch): return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(batch[1], outputs)
"""


def test_a_loss_object_of_keras_trains_alike_on_one_worker_and_on_two(tmp_path: Path) -> None:
    """Keras divides the mean of a loss object by the number of devices that it sees."""
    one = weighed(tmp_path, "OneDevice", code=LOSS_OBJECT)
    two = weighed(tmp_path, "MultiWorkerMirrored", size=2, code=LOSS_OBJECT)
    proofs.losses_are_equal_to_a_millionth(one, two)
