"""A PyTorch DDP program that registers its state. It saves and restores nothing itself, and loses no finished step if a process is killed.

It runs under torchrun and by hand too: then nothing is reported, and nothing is saved.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import muster_training as muster

STEPS, BATCH = 200, 64
PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0  # seconds after each step, to have time to watch it


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    images, labels = load_digits(return_X_y=True)
    data, target = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    state = muster.register(model=model, optimizer=optimizer, scheduler=scheduler)

    while state.step < STEPS:
        # The samples depend on the step alone, so a resumed run sees the same ones.
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(state.step))[:BATCH][rank::world]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data[order].to(device)), target[order].to(device))
        loss.backward()
        optimizer.step()
        scheduler.step()
        time.sleep(PAUSE)
        if state.finish_step(total=STEPS, loss=loss.item(), samples=BATCH):
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
