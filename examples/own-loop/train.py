"""A PyTorch DDP program with a loop of its own. Five lines of muster_training give it progress, verified resume and saves on SIGTERM.

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

STEPS, SAVE_EVERY, BATCH = 200, 20, 64
PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0  # seconds after each step, to have time to watch it


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    images, labels = load_digits(return_X_y=True)
    data, target = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    done = 0
    if newest := muster.latest():
        state = torch.load(newest / "state.pt", map_location=device, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = newest.step

    while done < STEPS:
        # The samples depend on the step alone, so a resumed run sees the same ones.
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(done))[:BATCH][rank::world]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data[order].to(device)), target[order].to(device))
        loss.backward()
        optimizer.step()
        done += 1
        time.sleep(PAUSE)
        muster.report(step=done, total=STEPS, loss=loss.item(), samples=BATCH)
        stop = muster.should_stop()
        if stop or muster.should_save() or done % SAVE_EVERY == 0 or done == STEPS:
            with muster.checkpoint(done) as folder:
                if rank == 0:
                    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
        if stop:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
