"""One training for the tests that compare an engine with DDP, bit by bit."""

from __future__ import annotations

STEPS = 30
_PROGRAM = """
# The same training in two processes: those that Muster starts (DDP), or those of an engine. Both use muster_training.
import os, time
from pathlib import Path

STEPS = {steps}
FOLDER = os.getcwd()

def train(config=None):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import muster_training as muster

    is_own = not dist.is_initialized()
    if is_own:
        dist.init_process_group("gloo")
    place = muster.environment()
    assert (place.rank, place.world) == (dist.get_rank(), dist.get_world_size()) == (int(os.environ["RANK"]), 2)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done = 0
    if found := muster.latest():
        state = torch.load(found / "state.pt", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = found.step
    for step in range(done + 1, STEPS + 1):
        while step == STEPS // 2 and Path(FOLDER, "{hold}").exists():
            time.sleep(0.1)
        noise = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))[place.rank::2]
        optimizer.zero_grad()
        loss = model(noise).square().mean()
        loss.backward()
        optimizer.step()
        muster.report(step=step, total=STEPS, loss=loss.item())
        if step % 10 == 0:
            with muster.checkpoint(step) as folder:
                if place.rank == 0:
                    torch.save({{"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}}, folder / "state.pt")
    if is_own:
        dist.destroy_process_group()

if "{variable}" in os.environ:
{launch}
else:
    train()
"""
HOLD = "hold"
"""While the folder of the program has this file, no process goes beyond the middle."""


def program_of(variable: str, launch: str) -> str:
    """The program. Where this variable is set, the lines of `launch` have the engine call `train` in two processes."""
    lines = "\n".join(f"    {line}" for line in launch.strip().splitlines())
    return _PROGRAM.format(steps=STEPS, hold=HOLD, variable=variable, launch=lines)
