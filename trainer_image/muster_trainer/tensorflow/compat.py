"""The private parts of TensorFlow and Keras that Muster needs, each with the reason why no public API does the job.

Only this module uses private names of TensorFlow and Keras. `tests/unit/trainer/test_compat_tensorflow.py` has a test for each
function. It fails, with a message, if a release changes what the function needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context  # type: ignore[attr-defined]  # missing in the stubs

VALUE = "VARIABLE_VALUE"
"""The name of the value of a variable in a checkpoint."""
JOIN_SECONDS = 0.2
_JOIN = tf.train.Coordinator.join
_seen = threading.local()
_NUMBER = tf.distribute.Strategy.num_replicas_in_sync
_NUMBER_SEEN = property(lambda strategy: getattr(_seen, "number", None) or _NUMBER.fget(strategy))


def configure_coordination(*, leader: str, heartbeat_milliseconds: int, register_milliseconds: int) -> None:
    """Sets the time-outs of the coordination service. Call it before TensorFlow creates its context.

    There is no public API. With the defaults, it takes minutes to notice that a worker has not started.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=leader,
        heartbeat_timeout_in_ms=heartbeat_milliseconds,
        cluster_register_timeout_in_ms=register_milliseconds,
    )


def abort_collectives(message: str) -> None:
    """Makes collectives fail with UnavailableError: the ones that this process waits for, and all later ones. Any thread may call it.

    There is no public API. A collective that has to send its last values to a peer waits until the peer reads them. If the peer has died
    before that, no connection breaks.
    """
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


@contextmanager
def seen_devices(number: int) -> Iterator[None]:
    """Sets the number of devices that code in the block gets from any strategy of tf.distribute. It holds for this thread only.

    There is no other way: Keras' losses divide by this number, and so does `tf.nn.compute_average_loss`. Another strategy in the block
    would hide this device's copies of the variables.
    """
    before = getattr(_seen, "number", None)
    tf.distribute.Strategy.num_replicas_in_sync = _NUMBER_SEEN
    _seen.number = number
    try:
        yield
    finally:
        _seen.number = before


def has_devices() -> bool:
    """Whether this process has initialised its devices. Public functions cannot be used, because they initialise the devices."""
    current = context.context_safe()
    return current is not None and bool(current._initialized)


def release_devices() -> None:
    """Gives up the devices of this process, with all functions and variables, so that it can set up devices and join a cluster as if
    TensorFlow had just been imported. The caller must have dropped its models.

    There is no public API, because TensorFlow accepts settings of devices only before it uses them. Its threads stay.
    """
    keras.utils.clear_session()
    context._reset_context()


def accept_summed_gradients(optimizer: keras.optimizers.Optimizer) -> bool:
    """Makes the optimizer accept gradients that are already summed over the devices. Returns False if that is not possible.

    There is no public API, because Keras sums gradients inside its update. An optimizer that wraps another one is not changed.
    """
    if not hasattr(optimizer, "_all_reduce_sum_gradients") or hasattr(optimizer, "inner_optimizer"):
        return False
    optimizer._all_reduce_sum_gradients = lambda pairs: pairs
    return True


def checkpoint_tensors(checkpoint: tf.train.Checkpoint) -> dict[tuple[str, str], tf.Tensor]:
    """The values that `checkpoint.write` would write, by key and slice, on the current device. Some may share the memory of a variable.

    There are two public APIs. `write` blocks the training, and AsyncCheckpoint never frees its copies of the variables.
    """
    serialized, *_ = checkpoint._saver._gather_serialized_tensors()
    tensors: dict[tuple[str, str], tf.Tensor] = {}
    for entries in serialized.values():
        for key, entry in entries.items():
            for piece, value in (entry if isinstance(entry, dict) else {"": entry}).items():
                value = getattr(value, "tensor", value)
                value = tf.convert_to_tensor(value() if callable(value) else value)
                tensors[key, piece] = tf.identity(value)
    return tensors


def save_by(variable: keras.Variable, *, read: Callable[[], tf.Tensor], restore: Callable[[tf.Tensor], None]) -> None:
    """Sets the functions that save and restore the value of one variable. Trackable documents both hooks, but their names are private."""
    variable._serialize_to_tensors = lambda: {VALUE: read()}
    variable._restore_from_tensors = lambda restored: restore(restored[VALUE])


def all_layers(model: keras.Model) -> Iterable[keras.layers.Layer]:
    """The model and its layers at any depth. The public `Model.layers` leaves out layers inside other layers."""
    layers: Iterable[keras.layers.Layer] = model._flatten_layers()
    return layers


def join_tracing_threads_at_once() -> None:
    """Patches `tf.train.Coordinator.join`, which tf.distribute uses to trace each replica in a thread."""
    tf.train.Coordinator.join = join_threads


def join_threads(coordinator: tf.train.Coordinator, threads: Iterable[threading.Thread] | None = None, *more: Any, **options: Any) -> None:
    """Joins the threads before TensorFlow polls them, because it polls only once a second. From Python 3.13 on, a thread that is about
    to end is still alive at the first poll. That would take a second for each traced function."""
    threads = None if threads is None else list(threads)
    for thread in threads or ():
        thread.join(JOIN_SECONDS)
    _JOIN(coordinator, threads, *more, **options)
