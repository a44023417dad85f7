"""Losses and metrics of Keras on two devices: the training of one device, or refused with what to write."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow
TRAINED = """
import json
import keras
import numpy as np
import tensorflow as tf
from muster_contract.config import COMMON_KEYS
from muster_contract.errors import TrainerError
from muster_contract.options import Options
from muster_contract.trainer_spec import BatchSpec, TrainerSpec
from muster_trainer.data import Order
from muster_trainer.tasks.config import read_config
from muster_trainer.tasks.module import Task
from muster_trainer.tensorflow import compat, synchronous
from tests.support.descriptors import runtime

numbers = np.random.default_rng(0)
INPUTS, CLASSES = numbers.normal(size=(48, 5)).astype("float32"), numbers.integers(0, 3, 48).astype("int32")
DATA = [(one, kind) for one, kind in zip(INPUTS, CLASSES)]
BUILT = []

def model(*added, **options):
    def build(config):
        dense = keras.layers.Dense(4, activation="tanh", **options)
        BUILT[:] = [keras.Sequential([keras.Input((5,)), dense, *[layer() for layer in added], keras.layers.Dense(3)])]
        return BUILT[0]
    return build

class Adds(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(self.reduce(inputs))
        return inputs

class AddsMean(Adds):
    reduce = staticmethod(lambda one: 0.1 * tf.reduce_mean(one ** 2))

class AddsSum(Adds):
    reduce = staticmethod(lambda one: 0.1 * tf.reduce_sum(one ** 2))

class AddsShare(Adds):
    reduce = staticmethod(lambda one: tf.reduce_mean(one ** 2) / tf.distribute.get_strategy().num_replicas_in_sync)

def of_object(reduction, weights=None):
    def loss(outputs, batch):
        own = None if weights is None else tf.gather(weights, batch[1])
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)(batch[1], outputs, sample_weight=own)
    return loss

def each(outputs, batch):
    return keras.losses.sparse_categorical_crossentropy(batch[1], outputs, from_logits=True)

def mask(batch):
    return tf.cast(batch[1] > 0, tf.float32)

def pair(outputs, batch):
    return each(outputs, batch) * mask(batch), mask(batch)

def scaled_by_hand(outputs, batch):
    penalty = tf.add_n([tf.nn.l2_loss(one.value) for one in BUILT[0].trainable_variables])
    return tf.nn.compute_average_loss(each(outputs, batch)) + tf.nn.scale_regularization_loss(0.1 * penalty)

def counts(metric):
    return lambda outputs, batch: {"accuracy": metric()(batch[1], outputs)}

WEIGHTS = [1.0, 2.0, 5.0]
CASES = {
    "object, mean": {"loss": of_object("sum_over_batch_size")},
    "object, class weights": {"loss": of_object("sum_over_batch_size", WEIGHTS)},
    "object, none": {"loss": of_object("none"), "metrics": counts(lambda: keras.metrics.sparse_categorical_accuracy)},
    "scaled by hand": {"loss": scaled_by_hand},
    "pair, regulariser": {"loss": pair, "metrics": lambda *two: {"masked": pair(*two)}, "build": model(kernel_regularizer="l2")},
    "added mean": {"loss": each, "build": model(AddsMean)},
    "object, sum": {"loss": of_object("sum")},
    "object, mean with weights": {"loss": of_object("mean_with_sample_weight", WEIGHTS)},
    "sum over a fixed size": {"loss": lambda *two: tf.nn.compute_average_loss(each(*two), global_batch_size=15)},
    "added sum": {"loss": each, "build": model(AddsSum)},
    "added share": {"loss": each, "build": model(AddsShare)},
    "added mean, pair": {"loss": pair, "build": model(AddsMean)},
    "new metric object": {"loss": each, "metrics": counts(keras.metrics.SparseCategoricalAccuracy)},
    "old metric object": {"loss": each, "metrics": "old"},
}

def trained(case, devices):
    compat.release_devices()
    spec = TrainerSpec(strategy=runtime("Mirrored"), batch=BatchSpec(15), module="m", options=Options(logical_devices=devices))
    old = None
    def count_on(outputs, batch):
        return {"accuracy": old(batch[1], outputs)}
    metrics = case.get("metrics", lambda outputs, batch: {})
    task = Task(
        title="module m", config=read_config({"optimizer": "SGD", "learningRate": 0.5}, COMMON_KEYS, others_allowed=True),
        train=DATA, test=DATA, build_model=case.get("build", model()), loss=case["loss"],
        metrics=count_on if metrics == "old" else metrics, optimizer=None, identity={},
    )
    engine = synchronous.Mirrored(task, spec)
    old = keras.metrics.SparseCategoricalAccuracy() if metrics == "old" else None
    order = Order(0, len(DATA), 15)
    engine.expect(order, range(4))
    losses = [engine.step(np.asarray(order.batch_indices(step)), step=step, stop=False, save=False, busy=False).loss for step in range(4)]
    return [*losses, *engine.evaluate([np.arange(0, 15), np.arange(15, 48)]).values()]

results = {}
for name, case in CASES.items():
    try:
        results[name] = [trained(case, 2), trained(case, 1)]
    except TrainerError as error:
        results[name] = str(error)
print(json.dumps(results))
"""
ACCEPTED = ("object, mean", "object, class weights", "object, none", "scaled by hand", "pair, regulariser", "added mean")
REFUSED = {
    "object, sum": "loss is not the mean over the samples",
    "object, mean with weights": "or the pair (sum of the values, sum of their weights)",
    "sum over a fixed size": "loss is not the mean over the samples",
    "added sum": "Add the mean: add_loss(ops.mean(values))",
    "added share": "divides a loss that it adds by the number of devices",
    "added mean, pair": "Return that loss as an output of the model",
    "new metric object": "Call a function that returns a value per sample",
    "old metric object": "Call a function that returns a value per sample",
}


def test_two_devices_train_as_one_or_refuse_the_loss_with_what_to_write() -> None:
    finished = subprocess.run([sys.executable, "-c", TRAINED], capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stderr
    results = json.loads(finished.stdout.splitlines()[-1])
    for name in ACCEPTED:
        two, one = results[name]
        assert two == pytest.approx(one, rel=2e-6), name
    for name, sentence in REFUSED.items():
        assert sentence in results[name], (name, results[name])
