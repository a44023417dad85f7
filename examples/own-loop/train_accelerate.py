"""A loop with Hugging Face Accelerate. `save_state` keeps the model, the optimizer and the random state of every process."""

import sys
import time

import torch
from accelerate import Accelerator
from torch import nn

import muster_training as muster

STEPS, SAVE_EVERY, BATCH = 60, 10, 64
PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0  # seconds after each step, to have time to watch it


def main() -> None:
    # It finds the world in torchrun's variables, which Muster sets. Without cpu=True, processes on CPUs would train each on its own.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    rank, world = accelerator.process_index, accelerator.num_processes
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    done = 0
    if newest := muster.latest():
        accelerator.load_state(str(newest.folder))
        done = newest.step

    while done < STEPS:
        # The samples depend on the step alone, so a resumed run sees the same ones.
        x = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(done))[rank::world].to(accelerator.device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        accelerator.backward(loss)
        optimizer.step()
        done += 1
        time.sleep(PAUSE)
        muster.report(step=done, total=STEPS, loss=loss.item(), samples=BATCH)
        stop = muster.should_stop()
        if stop or muster.should_save() or done % SAVE_EVERY == 0 or done == STEPS:
            with muster.checkpoint(done) as folder:
                accelerator.save_state(str(folder))
        if stop:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
