"""The baseline for recovery: `python bench/plain_restart.py torch|tensorflow FOLDER DELAY`. It trains the digits, with a checkpoint every
20 steps.

torchrun starts it, or the caller sets TF_CONFIG. It resumes from its checkpoint. It writes a line `step seconds` for each step of rank 0
into FOLDER/steps, and never ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

SAVE_EVERY = 20
GLOBAL_BATCH = 64


def data(rank: int, world: int) -> tuple[Any, Any]:
    """The rows of a batch of this rank. They are always the same, and as many as in the trainer's task."""
    import numpy as np

    rows = GLOBAL_BATCH // world
    generator = np.random.default_rng(rank)
    return generator.random((rows, 64), dtype=np.float32), generator.integers(0, 10, rows)


def report(folder: Path, step: int, delay: float) -> None:
    time.sleep(delay)
    with (folder / "steps").open("a") as steps:
        steps.write(f"{step} {time.time()}\n")


def in_torch(folder: Path, delay: float) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    inner = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model, saved, begun = DistributedDataParallel(inner), folder / "state.pt", 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if saved.exists():
        state = torch.load(saved)
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begun = state["step"]
    inputs, labels = map(torch.from_numpy, data(rank, world))
    for step in count(begun + 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        time.sleep(delay if rank else 0.0)
        if rank == 0:
            report(folder, step, delay)
            if step % SAVE_EVERY == 0:
                torch.save({"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, folder / "new.pt")
                (folder / "new.pt").replace(saved)


def in_tensorflow(folder: Path, delay: float) -> None:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    config = json.loads(os.environ["TF_CONFIG"])
    rank, world = config["task"]["index"], len(config["cluster"]["worker"])
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(128, "relu"), tf.keras.layers.Dense(10)])
        optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)
    state, saved, begun = tf.train.Checkpoint(model=model, optimizer=optimizer), folder / f"saved-{rank}", 0
    if saved.exists():
        begun = int(saved.read_text())
        state.read(str(folder / f"state-{rank}-{begun}")).assert_consumed()
    inputs, labels = data(rank, world)

    @tf.function
    def step_of_all() -> None:
        def step_of_one() -> None:
            with tf.GradientTape() as tape:
                losses = tf.keras.losses.sparse_categorical_crossentropy(labels, model(inputs), from_logits=True)
                loss = tf.reduce_sum(losses) / GLOBAL_BATCH
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

        strategy.run(step_of_one)

    for step in count(begun + 1):
        step_of_all()
        if rank == 0:
            report(folder, step, delay)
        if step % SAVE_EVERY == 0:  # each worker saves a copy of its own, because a read of mirrored variables needs all workers
            state.write(str(folder / f"state-{rank}-{step}"))
            (folder / f"new-{rank}").write_text(str(step))
            (folder / f"new-{rank}").replace(saved)


if __name__ == "__main__":
    {"torch": in_torch, "tensorflow": in_tensorflow}[sys.argv[1]](Path(sys.argv[2]), float(sys.argv[3]))
