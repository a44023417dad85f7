"""MultiWorkerMirroredStrategy in the tasks of a barrier stage. `muster_spark.barrier` gives each task its TF_CONFIG and its rank."""

import os

from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

STEPS = int(os.environ.get("STEPS", "20"))


def train(_):
    from muster_spark.barrier import tf_config

    config = tf_config(BarrierTaskContext.get())

    import tensorflow as tf

    import muster_training as muster

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(0.0)

    @tf.function
    def step_of_all(target):
        def of_one():
            gradient = 2 * (weight - target)
            total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
            weight.assign_sub(0.1 * total)
            return (weight - target) ** 2

        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(of_one), axis=None)

    done = 0
    if found := muster.latest():
        weight.assign(float((found / "weight.txt").read_text()))
        done = found.step
    for step in range(done + 1, STEPS + 1):
        loss = step_of_all(tf.constant(3.0))
        muster.report(step=step, total=STEPS, loss=float(loss))
        if step % 10 == 0:
            value = float(weight.numpy())
            with muster.checkpoint(step) as folder:
                if muster.environment().rank == 0:
                    (folder / "weight.txt").write_text(repr(value))
    yield config["task"]["index"], float(weight.numpy())


spark = SparkSession.builder.appName("tensorflow").getOrCreate()
print("weights", spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(train).collect())
spark.stop()
