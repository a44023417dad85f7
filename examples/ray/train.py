"""A Ray Train program that knows nothing of Muster: data parallel training of a small network on handwritten digits.

It reports each checkpoint to Ray Train, and begins with the one that Ray Train gives it.
"""

import os
import tempfile
import time
from pathlib import Path

import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import nn

STEPS = int(os.environ.get("STEPS", "200"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
SAVE_EVERY = 20


def train(config: dict) -> None:
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    model = prepare_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    done = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]

    for step in range(done + 1, config["steps"] + 1):
        batch = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[:64][rank::world]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        time.sleep(STEP_SECONDS)
        metrics = {"step": step, "total": config["steps"], "loss": loss.item()}
        if step % SAVE_EVERY and step != config["steps"]:
            ray.train.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, Path(folder) / "state.pt")
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)


ray.init()
trainer = TorchTrainer(
    train,
    train_loop_config={"steps": STEPS},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        storage_path=os.path.join(os.environ.get("MUSTER_CHECKPOINT_DIR", "~"), "ray"),
        checkpoint_config=CheckpointConfig(num_to_keep=2),
    ),
)
result = trainer.fit()
print(f"loss {result.metrics['loss'].hex()} after {result.metrics['step']} steps")
