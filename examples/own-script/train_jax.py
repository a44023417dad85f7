"""A JAX program that knows nothing of Muster: it trains a small network on handwritten digits, data parallel over all processes."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

EPOCHS = 5
BATCH = 64


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

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    train, test = slice(0, 1437), slice(1437, None)

    def init() -> dict[str, jax.Array]:
        first, second = jax.random.split(jax.random.key(0))
        return {"w1": jax.random.normal(first, (64, 64)) / 8, "w2": jax.random.normal(second, (64, 10)) / 8}

    def logits(parameters, x):
        return jax.nn.relu(x @ parameters["w1"]) @ parameters["w2"]

    def loss(parameters, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(logits(parameters, x), y).mean()

    optimizer = optax.adam(0.005)
    parameters = jax.jit(init, out_shardings=whole)()
    state = jax.jit(optimizer.init, out_shardings=whole)(parameters)

    @jax.jit
    def step(parameters, state, x, y):
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)  # XLA adds them up over the devices
        changes, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, changes), state, value

    size = BATCH // world
    for epoch in range(EPOCHS):
        shuffled = np.random.default_rng(epoch).permutation(1437)
        for start in range(0, 1437 - BATCH + 1, BATCH):
            own = shuffled[start + rank * size : start + (rank + 1) * size]
            x, y = (jax.make_array_from_process_local_data(shared, part[train][own]) for part in (images, labels))
            parameters, state, value = step(parameters, state, x, y)
        if rank == 0:
            print(f"epoch {epoch}: loss {float(value):.4f}", flush=True)

    if rank == 0:
        local = jax.tree.map(lambda one: np.asarray(one), parameters)
        accuracy = float(jnp.mean(jnp.argmax(logits(local, images[test]), axis=1) == labels[test]))
        print(f"test accuracy {accuracy:.4f} with {world} processes", flush=True)
    if world > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()
