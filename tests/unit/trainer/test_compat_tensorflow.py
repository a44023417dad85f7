"""The private parts of TensorFlow and Keras that `muster_trainer.tensorflow.compat` relies on are still there and do the same.

A test that fails here after an upgrade names the private part. Look at the function in `compat` that uses it.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from muster_trainer.tensorflow import compat


def test_the_coordination_service_accepts_time_outs_and_a_leader() -> None:
    from tensorflow.python.eager import context  # type: ignore[attr-defined]

    taken = inspect.signature(context.Context.configure_coordination_service).parameters
    needed = {"service_type", "service_leader", "heartbeat_timeout_in_ms", "cluster_register_timeout_in_ms"}
    assert needed <= taken.keys(), "tensorflow.python.eager.context: configure_coordination_service has other parameters"
    assert callable(context.context), "tensorflow.python.eager.context.context is gone"


HAS_DEVICES = """
import tensorflow as tf
from muster_trainer.tensorflow import compat, host
assert host.unfit() == "", "TensorFlow initialises its devices when it is imported"
tf.constant(1.0)
assert compat.has_devices() and host.unfit(), "tensorflow.python.eager.context: _initialized no longer says that devices are initialised"
"""


def test_a_process_may_be_forked_until_tensorflow_has_initialised_its_devices() -> None:
    finished = subprocess.run([sys.executable, "-c", HAS_DEVICES], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr


RELEASED = """
import keras
import tensorflow as tf
from muster_trainer.tensorflow import compat
name = keras.layers.Dense(1).name
tf.function(lambda: tf.constant(1.0))()
compat.release_devices()
assert not compat.has_devices(), "tensorflow.python.eager.context: _reset_context no longer gives up the devices"
assert keras.layers.Dense(1).name == name, "keras.utils.clear_session no longer resets the names of layers"
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
assert len(tf.config.list_logical_devices("CPU")) == 2
"""


def test_a_process_can_set_up_other_devices_after_it_has_released_its_own() -> None:
    finished = subprocess.run([sys.executable, "-c", RELEASED], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr


ABORTED = """
import threading, time
import tensorflow as tf
from tensorflow.python.ops import collective_ops
from muster_trainer.tensorflow import compat

def sum_with_a_peer_that_never_comes(instance):
    with tf.device("/CPU:0"):
        return collective_ops.all_reduce_v2(tf.constant(1.0), group_size=2, group_key=1, instance_key=instance, merge_op="Add")

threading.Timer(1.0, compat.abort_collectives, ["ordered to leave"]).start()
for instance in (1, 2):
    try:
        sum_with_a_peer_that_never_comes(instance)
    except tf.errors.UnavailableError as error:
        assert "ordered to leave" in str(error), error
    else:
        raise AssertionError("abort_collective_ops does not end a collective")
"""


def test_a_collective_that_waits_for_a_peer_is_aborted() -> None:
    finished = subprocess.run([sys.executable, "-c", ABORTED], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr


def test_an_optimizer_accepts_summed_gradients() -> None:
    strategy = tf.distribute.MirroredStrategy(["/device:CPU:0"])
    calls = []
    with strategy.scope():
        variable = keras.Variable([1.0])
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build([variable])
        before = getattr(optimizer, "_all_reduce_sum_gradients", None)
        assert before is not None, "Keras' optimizer has no _all_reduce_sum_gradients: see where it sums gradients over devices"
        assert compat.accept_summed_gradients(optimizer)
        passed_on = optimizer._all_reduce_sum_gradients
        optimizer._all_reduce_sum_gradients = lambda pairs: calls.append(len(pairs)) or passed_on(pairs)
    strategy.run(lambda: optimizer.apply_gradients([(tf.constant([2.0]), variable)]))
    assert calls == [1], "Keras' optimizer no longer calls _all_reduce_sum_gradients once for each update"
    assert variable.numpy() == [0.0]


def test_an_optimizer_that_wraps_another_one_is_not_changed() -> None:
    assert not compat.accept_summed_gradients(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))


def test_the_tensors_of_a_checkpoint_equal_its_written_values(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    checkpoint = tf.train.Checkpoint(model=model)
    checkpoint.write(str(tmp_path / "whole"))
    written = tf.train.load_checkpoint(str(tmp_path / "whole"))
    read = compat.checkpoint_tensors(checkpoint)
    keys = {key for key, _ in read}
    assert keys == set(written.get_variable_to_shape_map()), "Checkpoint._saver._gather_serialized_tensors gives other values than write"
    for (key, _), value in read.items():
        if value.dtype != tf.string:
            assert np.array_equal(value, written.get_tensor(key)), f"Checkpoint._saver._gather_serialized_tensors: {key} differs"


def test_a_variable_is_saved_and_restored_by_the_given_functions(tmp_path: Path) -> None:
    variable, restored = keras.Variable([1.0, 2.0]), []
    compat.save_by(variable, read=lambda: tf.constant([3.0, 4.0]), restore=restored.append)
    checkpoint = tf.train.Checkpoint(variable=variable)
    checkpoint.write(str(tmp_path / "state"))
    checkpoint.read(str(tmp_path / "state")).assert_consumed()
    assert [value.numpy().tolist() for value in restored] == [[3.0, 4.0]], (
        "Keras variables are no longer saved by _serialize_to_tensors and restored by _restore_from_tensors"
    )


def divisors() -> list[int]:
    """What losses are divided by in a replica: the numbers that TensorFlow states, and those by which it and Keras divide."""
    replica, errors = tf.distribute.get_replica_context(), tf.ones((4, 1))
    mean = keras.losses.MeanAbsoluteError()(tf.zeros((4, 1)), errors)
    losses = mean, tf.nn.compute_average_loss(errors[:, 0]), tf.nn.scale_regularization_loss(tf.constant(1.0))
    return [replica.strategy.num_replicas_in_sync, replica.num_replicas_in_sync, *(round(1 / float(loss)) for loss in losses)]


def test_a_block_sees_the_given_number_of_devices_in_any_strategy() -> None:
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    seen: dict[str, list[int]] = {}

    def replica_function() -> None:
        with compat.seen_devices(3):
            seen["three"] = divisors()
            with compat.seen_devices(2):
                seen["two within"] = divisors()
            seen["three again"] = divisors()
            other = threading.Thread(target=lambda: seen.update(other=[strategy.num_replicas_in_sync]))
            other.start()
            other.join()
        seen["after"] = divisors()

    strategy.run(replica_function)
    expected = {"three": 3, "two within": 2, "three again": 3, "other": 1, "after": 1}
    assert {name: set(numbers) for name, numbers in seen.items()} == {name: {number} for name, number in expected.items()}, (
        "a loss is no longer divided by tf.distribute.Strategy.num_replicas_in_sync, which seen_devices replaces"
    )


def test_the_number_of_devices_is_restored_after_an_error() -> None:
    with pytest.raises(ValueError, match="broken"), compat.seen_devices(3):
        raise ValueError("broken")
    assert tf.distribute.get_strategy().num_replicas_in_sync == 1


class Block(keras.layers.Layer):
    """A layer within a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Embedding(4, 2)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)


def test_all_layers_includes_layers_within_layers() -> None:
    block = Block()
    layers = list(compat.all_layers(keras.Sequential([keras.Input((1,)), block])))
    assert any(layer is block.inner for layer in layers), "model._flatten_layers leaves out layers within a layer"


JOIN = tf.train.Coordinator.join


class Ending:
    """A thread that is alive until it is joined."""

    def __init__(self) -> None:
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive

    def join(self, timeout: float) -> None:
        self.alive = False


@pytest.mark.parametrize(("join", "waits"), [(JOIN, [1.0]), (compat.join_threads, [])])
def test_the_patched_join_does_not_wait_for_a_thread_that_ends_soon(join: Any, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = tf.train.Coordinator()
    thread, waited = Ending(), []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        thread.join(seconds)
        return False

    monkeypatch.setattr(coordinator, "wait_for_stop", wait)
    join(coordinator, iter([thread]), 120)
    assert waited == waits, "tf.train.Coordinator.join has changed: see whether compat.join_threads is still needed"
