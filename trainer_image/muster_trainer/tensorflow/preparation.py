"""Prepares a process for its first step, before it has a task and a world.

Much of what a process does for the first time takes longer: TensorFlow starts threads, and Keras imports modules and fills caches. The
training of a small model on the CPU does that as well. Afterwards, the process has no devices, as if TensorFlow had just been imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import tensorflow as tf

from muster_contract.options import Options
from muster_contract.trainer_spec import BatchSpec, InputSpec, TrainerSpec
from muster_trainer.data import Order
from muster_trainer.measure.rehearsal import remove_world_variables
from muster_trainer.tasks.module import Task, load_task
from muster_trainer.tensorflow import compat
from muster_trainer.training.engine import Engine

SAMPLES = 8


def train_once(spec: TrainerSpec, engine: Callable[[Task, TrainerSpec], Engine]) -> None:
    """Trains a small model for one step, in a world with only this process. Does nothing where processes train on a GPU.

    The kernels are deterministic if those of the job are, because all computations of a process share the threads that the first one
    starts, and their number depends on it."""
    if tf.config.list_physical_devices("GPU"):
        return
    remove_world_variables(spec.strategy.framework)  # a request has its own variables
    config = {"model": "mlp", "hidden": [SAMPLES], "deterministic": spec.config.get("deterministic", True)}
    small = replace(
        spec,
        batch=BatchSpec(SAMPLES),
        task="digits",
        module=None,
        config=config,
        input=InputSpec(),
        options=Options(loop=spec.options.loop),
        communication="Auto",
        checkpoint=None,
        memory=None,
    )
    task = load_task(small)
    try:
        _train(engine(task, small), Order(task.config.seed, len(task.train), SAMPLES))
    finally:
        compat.release_devices()


def _train(engine: Engine, order: Order) -> None:
    engine.expect(order, range(1))
    engine.step(np.asarray(order.batch_indices(0)), step=0, stop=False, save=False, busy=False)
    engine.close()
