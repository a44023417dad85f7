"""Losses of JAX on two devices: the training of one device, or refused with what to write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from muster.local.ports import reserve_ports
from muster_contract.config import COMMON_KEYS
from muster_contract.errors import UserError
from muster_trainer.jax.model import Model
from muster_trainer.tasks.config import read_config
from muster_trainer.tasks.module import Task

pytestmark = pytest.mark.jax
NUMBERS = np.random.default_rng(0)
SAMPLES = NUMBERS.normal(size=(8, 5)).astype("float32"), np.array([0, 1, 0, 1, 2, 2, 1, 1], np.int32)


class Linear:
    def init(self, key: Any, inputs: Any) -> Any:
        return {"w": jax.random.normal(key, (5, 3))}

    def apply(self, parameters: Any, inputs: Any) -> Any:
        return inputs @ parameters["w"]


def each(outputs: Any, batch: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch[1])


def mask(batch: Any) -> Any:
    return (batch[1] > 0).astype(jnp.float32)


def model(loss: Callable[[Any, Any], Any], metrics: Callable[[Any, Any], Any] = lambda *_: {}) -> Model:
    return Model(
        Task(
            title="module m",
            config=read_config({}, COMMON_KEYS, others_allowed=True),
            train=[0],
            test=[0],
            build_model=lambda _: Linear(),
            loss=loss,
            metrics=metrics,
            optimizer=None,
            identity={},
        )
    )


@pytest.mark.parametrize(
    "loss",
    [each, lambda *two: each(*two) * mask(two[1]), lambda *two: (each(*two) * mask(two[1]), mask(two[1]))],
    ids=["values", "masked values", "pair"],
)
def test_losses_of_each_sample_alone_are_accepted(loss: Any) -> None:
    made = model(loss)
    made.check(made.model.init(jax.random.key(0), None), SAMPLES)


@pytest.mark.parametrize(
    "loss",
    [
        lambda *two: each(*two) * mask(two[1]) / mask(two[1]).mean(),
        lambda *two: jnp.full(len(two[0]), each(*two).sum()),
        lambda *two: optax.softmax_cross_entropy_with_integer_labels(two[0] @ two[0].T, jnp.arange(len(two[0]))),
    ],
    ids=["divided by the mask of the batch", "the sum for each sample", "samples compared"],
)
def test_values_that_depend_on_other_samples_are_refused_with_what_to_write(loss: Any) -> None:
    made = model(loss)
    with pytest.raises(UserError, match=r"loss is not the mean over the samples.*or the pair"):
        made.check(made.model.init(jax.random.key(0), None), SAMPLES)


def test_a_metric_that_depends_on_other_samples_is_refused_by_its_name() -> None:
    made = model(each, lambda outputs, _: {"largest": jnp.full(len(outputs), outputs.max())})
    with pytest.raises(UserError, match="metrics returns a largest"):
        made.check(made.model.init(jax.random.key(0), None), SAMPLES)


TRAINED = """
import json
from dataclasses import replace
import numpy as np
from muster_contract.trainer_spec import BatchSpec, TrainerSpec
from muster_trainer.data import Order
from muster_trainer.jax.engine import DataParallel
from tests.support.descriptors import runtime
from tests.unit.trainer.test_averages_jax import SAMPLES, each, mask, model

def pair(outputs, batch):
    return each(outputs, batch) * mask(batch), mask(batch)

task = model(pair, lambda *two: {"masked": pair(*two)}).task
data = list(zip(*SAMPLES))
task = replace(task, train=data, test=data, config=task.config.replaced(optimizer="SGD", momentum=0.0))
engine = DataParallel(task, TrainerSpec(strategy=runtime("JAX"), batch=BatchSpec(7, 2), module="m"))
assert engine.devices == 2
first = np.asarray(engine._state.parameters["w"].addressable_data(0))
order = Order(0, 8, 7)
engine.expect(order, range(2))
losses = [engine.step(np.asarray(order.batch_indices(step)), step=step, stop=False, save=False, busy=False).loss for step in range(2)]

def whole(w, indices):
    # the loss of softmax regression on the samples whose class is not 0, and its gradient
    inputs, classes = (one[indices] for one in SAMPLES)
    odds = np.exp(inputs.astype(np.float64) @ w)
    shares, counted = odds / odds.sum(1, keepdims=True), classes > 0
    value = -np.log(shares[np.arange(len(classes)), classes])[counted].sum() / counted.sum()
    return value, inputs.T @ ((shares - np.eye(3)[classes]) * counted[:, None]) / counted.sum()

expected = []
for step in range(2):
    value, gradient = whole(first, np.asarray(order.batch_indices(step)))
    expected.append(value)
    first = first - task.config.learningRate * gradient
value, _ = whole(first, np.arange(8))
expected += [value, value]
print(json.dumps([[*losses, *engine.evaluate([np.arange(0, 5), np.arange(5, 8)]).values()], expected]))
"""


def test_two_devices_divide_by_the_weight_of_the_whole_batch() -> None:
    with reserve_ports(1) as ports:
        env = {
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_PLATFORMS": "cpu",
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{ports.numbers[0]}",
            "JAX_PROCESS_ID": "0",
            "JAX_NUM_PROCESSES": "1",
        }
        finished = subprocess.run([sys.executable, "-c", TRAINED], capture_output=True, text=True, timeout=400, env={**os.environ, **env})
    assert finished.returncode == 0, finished.stderr
    trained, expected = json.loads(finished.stdout.splitlines()[-1])
    assert trained == pytest.approx(expected, rel=1e-5)
