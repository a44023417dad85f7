"""TensorflowTrainer with a loop of its own, because Keras 3 cannot run `fit` of a model under MultiWorkerMirroredStrategy."""

import json
import os
import tempfile
from pathlib import Path

import ray
import ray.train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

STEPS = 20


def train(config):
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = ray.train.get_context().get_world_rank()
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    begun = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            begun, weights = json.loads((Path(folder) / "state.json").read_text())
        model.set_weights([np.array(each, "float32") for each in weights])
    inputs = np.random.default_rng(rank).random((8, 4)).astype("float32")

    @tf.function
    def step_of_all():
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(inputs) - inputs.sum(1, keepdims=True))) / 16
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step), axis=None)

    for step in range(begun + 1, STEPS + 1):
        figures = {"step": step, "total": STEPS, "loss": float(step_of_all())}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps([step, [each.tolist() for each in model.get_weights()]]))
            saves = rank == 0 and step % 5 == 0
            ray.train.report(figures, checkpoint=Checkpoint.from_directory(folder) if saves else None)


ray.init()
TensorflowTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.environ["MUSTER_CHECKPOINT_DIR"] + "/ray"),
).fit()
