"""Ray Data as the input of a TorchTrainer. The training workers leave CPUs for Ray Data."""

import os
import tempfile
from pathlib import Path

import pandas as pd
import ray
import ray.data
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

EPOCHS = 4


def with_target(batch):
    batch["y"] = 3 * batch["x"] + 1
    return batch


def train(config):
    rows = ray.train.get_dataset_shard("train")
    torch.manual_seed(0)
    model = prepare_model(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begun = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.module.load_state_dict(state["model"])
        begun = state["epoch"]
    for epoch in range(begun + 1, EPOCHS + 1):
        count = 0
        for batch in rows.iter_torch_batches(batch_size=50, dtypes=torch.float32):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch["x"].unsqueeze(1)), batch["y"].unsqueeze(1))
            loss.backward()
            optimizer.step()
            count += len(batch["x"])
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, Path(folder) / "state.pt")
            first = ray.train.get_context().get_world_rank() == 0
            figures = {"loss": loss.item(), "total": EPOCHS, "rows": count}
            ray.train.report(figures, checkpoint=Checkpoint.from_directory(folder) if first else None)


ray.init()
numbers = ray.data.from_pandas(pd.DataFrame({"x": [number / 400 for number in range(400)]}))
TorchTrainer(
    train,
    datasets={"train": numbers.repartition(4).map_batches(with_target, batch_format="pandas").random_shuffle(seed=1)},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.environ["MUSTER_CHECKPOINT_DIR"] + "/ray"),
).fit()
