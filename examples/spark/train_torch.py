"""Data parallel training of a small network on handwritten digits with TorchDistributor. Its processes save and resume with Muster."""

import os

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

STEPS = int(os.environ.get("STEPS", "60"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))


def train(steps: int) -> float:
    import time

    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import muster_training as muster

    dist.init_process_group("gloo")
    place = muster.environment()
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    done = 0
    if found := muster.latest():
        state = torch.load(found / "state.pt", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = found.step
    loss = torch.tensor(0.0)
    for step in range(done + 1, steps + 1):
        batch = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[:64][place.rank :: place.world]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        time.sleep(STEP_SECONDS)
        muster.report(step=step, total=steps, loss=loss.item())
        if step % 20 == 0 or step == steps:
            with muster.checkpoint(step) as folder:
                if place.rank == 0:
                    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
    dist.destroy_process_group()
    return loss.item()


spark = SparkSession.builder.appName("torch").getOrCreate()
print("loss", TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(train, STEPS))
spark.stop()
