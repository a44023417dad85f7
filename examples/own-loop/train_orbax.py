"""A JAX program, data parallel over all processes, that saves with Orbax. All processes write one checkpoint, so they share its folder."""

import os
import sys
import time

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import muster_training as muster

STEPS, SAVE_EVERY, BATCH = 60, 10, 64
PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0  # seconds after each step, to have time to watch it


def main() -> None:
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # between CPUs; GPUs use NCCL
        jax.distributed.initialize(
            os.environ["JAX_COORDINATOR_ADDRESS"],
            num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
            process_id=int(os.environ["JAX_PROCESS_ID"]),
            cluster_detection_method="deactivate",
        )
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, shared = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    rank, world = jax.process_index(), jax.process_count()
    size = BATCH // world

    optimizer = optax.adam(0.01)

    def init():
        weights = jax.random.normal(jax.random.key(0), (16, 1))
        return {"weights": weights, "optimizer": optimizer.init(weights)}

    @jax.jit
    def train(state, x, y):
        loss, gradient = jax.value_and_grad(lambda weights: ((x @ weights - y) ** 2).mean())(state["weights"])
        changes, moments = optimizer.update(gradient, state["optimizer"])
        return {"weights": optax.apply_updates(state["weights"], changes), "optimizer": moments}, loss

    state = jax.jit(init, out_shardings=whole)()
    checkpointer = ocp.StandardCheckpointer()
    done = 0
    if newest := muster.latest():
        state = checkpointer.restore(newest / "state", state)
        done = newest.step

    while done < STEPS:
        samples = np.random.default_rng(done)  # they depend on the step alone, so a resumed run sees the same ones
        x = samples.normal(size=(BATCH, 16)).astype(np.float32)
        y = x.sum(axis=1, keepdims=True)
        own = slice(rank * size, (rank + 1) * size)
        state, loss = train(state, *(jax.make_array_from_process_local_data(shared, part[own]) for part in (x, y)))
        value = float(loss)  # waits for the step, which JAX computes in the background
        done += 1
        time.sleep(PAUSE)
        muster.report(step=done, total=STEPS, loss=value, samples=BATCH)
        stop = muster.should_stop()
        if stop or muster.should_save() or done % SAVE_EVERY == 0 or done == STEPS:
            with muster.checkpoint(done, shared=True) as folder:
                checkpointer.save(folder / "state", state)
                checkpointer.wait_until_finished()
        if stop:
            break
    if world > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()
