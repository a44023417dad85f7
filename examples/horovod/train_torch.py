"""PyTorch with Horovod: hvd.init() finds the other ranks, whatever has started them.

It trains a small network on random numbers, reports the loss of each step, and saves.
"""

import os
import time

import horovod.torch as hvd
import torch
from torch import nn

import muster_training as muster

STEPS = int(os.environ.get("STEPS", "40"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.02"))


def main() -> None:
    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    done = 0
    if found := muster.latest():  # after DistributedOptimizer, which begins with an empty state
        state = torch.load(found / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = found.step
    # Without hvd.broadcast_optimizer_state: all ranks have the same state, and that call would count as a step of Adam.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    while done < STEPS and not muster.should_stop():
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(done * hvd.size() + hvd.rank()))
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        muster.report(step=done, total=STEPS, loss=loss.item())
        if done % 10 == 0:
            save(done, model, optimizer)
        time.sleep(STEP_SECONDS)
    if done % 10:
        save(done, model, optimizer)
    if hvd.rank() == 0:
        print(f"{done} steps with {hvd.size()} ranks", flush=True)


def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with muster.checkpoint(step) as folder:
        if hvd.rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")


if __name__ == "__main__":
    main()
