"""PyTorch DDP with gloo, for mpirun or any other launcher: muster_training knows the rank and the size of the world.

It trains a small network on random numbers, reports the loss of each step, and saves.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import muster_training as muster

STEPS = int(os.environ.get("STEPS", "40"))


def main() -> None:
    place = muster.environment()
    dist.init_process_group("gloo", init_method="env://", rank=place.rank, world_size=place.world)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done = 0
    if found := muster.latest():
        state = torch.load(found / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = found.step
    replica = DistributedDataParallel(model)
    while done < STEPS and not muster.should_stop():
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(done * place.world + place.rank))
        loss = nn.functional.mse_loss(replica(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        muster.report(step=done, total=STEPS, loss=loss.item())
        if done % 10 == 0 or done == STEPS:
            with muster.checkpoint(done) as folder:
                if place.rank == 0:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
