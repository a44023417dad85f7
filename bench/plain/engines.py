"""One training for all engines: `python bench/plain/engines.py ENGINE FOLDER`. It has two ranks, and a checkpoint every five steps.

It runs with and without Muster. Rank 0 writes a line `step seconds` for each step into FOLDER/steps. Each rank writes its process id into
FOLDER/RANK.pid. It never ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

WORLD = 2
SAVE_EVERY = 5
STEP_SECONDS = 0.2


def under_muster() -> bool:
    return "MUSTER_CHECKPOINT_DIR" in os.environ


def train(config: dict[str, str]) -> None:
    """The training of one rank. Engines send this function to other processes, so that it imports what it needs."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    engine, folder = config["engine"], Path(config["folder"])
    rank = join(engine)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    replica: nn.Module = model
    if engine == "horovod":
        import horovod.torch as hvd

        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    done = 0
    if (saved := newest(engine, folder)) is not None:
        state = torch.load(saved / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    if engine != "horovod":
        replica = DistributedDataParallel(model)
    (folder / f"{rank}.new").write_text(str(os.getpid()))
    (folder / f"{rank}.new").replace(folder / f"{rank}.pid")
    for step in count(done + 1):
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(step * WORLD + rank))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(replica(inputs), torch.arange(32) % 10)
        loss.backward()
        optimizer.step()
        time.sleep(STEP_SECONDS)
        if rank == 0:
            with (folder / "steps").open("a") as steps:
                steps.write(f"{step} {time.time()}\n")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        finish_step(engine, folder, rank, state, loss.item())


def join(engine: str) -> int:
    """Joins the world of the engine. Returns the rank."""
    if engine == "horovod":
        import horovod.torch as hvd

        hvd.init()
        return int(hvd.rank())
    if engine == "ray":  # Ray Train has joined
        import ray.train

        return int(ray.train.get_context().get_world_rank())
    import torch.distributed as dist

    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"])
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=WORLD)
    return rank


def newest(engine: str, folder: Path) -> Path | None:
    """The folder of the newest checkpoint."""
    if engine == "ray":
        import ray.train

        found = ray.train.get_checkpoint()
        return None if found is None else Path(found.path)
    if under_muster():
        import muster_training

        commit = muster_training.latest()
        return None if commit is None else Path(commit.folder)
    return folder if (folder / "state.pt").exists() else None


def finish_step(engine: str, folder: Path, rank: int, state: dict[str, Any], loss: float) -> None:
    """Reports the step, and saves every five steps: in the way of Ray Train, in that of Muster, or into the folder."""
    import torch

    step, saves = state["step"], state["step"] % SAVE_EVERY == 0
    if engine == "ray":
        import ray.train

        with tempfile.TemporaryDirectory() as new:
            if saves and rank == 0:
                torch.save(state, Path(new, "state.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(new) if saves and rank == 0 else None
            ray.train.report({"step": step, "loss": loss}, checkpoint=checkpoint)
    elif under_muster():
        import muster_training

        muster_training.report(step=step, loss=loss)
        if saves:
            with muster_training.checkpoint(step) as commit:
                if rank == 0:
                    torch.save(state, commit / "state.pt")
    elif saves and rank == 0:
        torch.save(state, folder / "new.pt")
        (folder / "new.pt").replace(folder / "state.pt")


def on_ray(config: dict[str, str]) -> None:
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init()
    run = RunConfig(
        name="bench",
        storage_path=os.path.join(os.environ.get("MUSTER_CHECKPOINT_DIR", config["folder"]), "ray"),
        checkpoint_config=CheckpointConfig(num_to_keep=2),
        failure_config=FailureConfig(max_failures=int(os.environ["MAX_FAILURES"])),
    )
    TorchTrainer(train, train_loop_config=config, scaling_config=ScalingConfig(num_workers=WORLD), run_config=run).fit()


def on_spark(config: dict[str, str]) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    SparkSession.builder.getOrCreate()
    TorchDistributor(num_processes=WORLD, local_mode=False, use_gpu=False).run(train, config)


if __name__ == "__main__":
    {"ray": on_ray, "spark": on_spark}.get(sys.argv[1], train)({"engine": sys.argv[1], "folder": sys.argv[2]})
