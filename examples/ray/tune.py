"""Ray Tune: four trainings of a small network on handwritten digits, as many at once as the job has CPUs.

Ray Tune keeps the state of its trials in the job's storage. After a restart of the job, those that have ended are not run again, and the
others go on from their checkpoints.
"""

import os
import tempfile
import time
from pathlib import Path

import ray
import torch
from ray import tune
from sklearn.datasets import load_digits
from torch import nn

import muster_training

NAME, STORAGE = "search", os.path.join(os.environ["MUSTER_CHECKPOINT_DIR"], "tune")
SPACE = {"rate": tune.grid_search([0.01, 0.1]), "width": tune.grid_search([16, 64])}
EPOCHS = int(os.environ.get("EPOCHS", "20"))
EPOCH_SECONDS = float(os.environ.get("EPOCH_SECONDS", "0"))


def train(config: dict) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, config["width"]), nn.ReLU(), nn.Linear(config["width"], 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["rate"], momentum=0.9)

    done = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]

    for epoch in range(done + 1, EPOCHS + 1):
        for batch in torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch)).split(256):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        time.sleep(EPOCH_SECONDS)
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, Path(folder) / "state.pt")
            tune.report({"epoch": epoch, "loss": loss.item()}, checkpoint=tune.Checkpoint.from_directory(folder))


class Progress(tune.Callback):
    """Reports each trial that has ended as a step of the job, with the smallest loss so far."""

    def on_trial_complete(self, iteration: int, trials: list, trial: object, **info: object) -> None:
        ended = [each for each in trials if each is trial or each.status == "TERMINATED"]
        muster_training.report(step=len(ended), total=4, loss=min(each.last_result["loss"] for each in ended))


ray.init()
if tune.Tuner.can_restore(f"{STORAGE}/{NAME}"):
    tuner = tune.Tuner.restore(f"{STORAGE}/{NAME}", trainable=train, param_space=SPACE, resume_errored=True)
else:
    tuner = tune.Tuner(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name=NAME,
            storage_path=STORAGE,
            failure_config=tune.FailureConfig(max_failures=3),  # Ray Tune itself retries a trial whose process was lost
            callbacks=[Progress()],
        ),
    )
results = tuner.fit()
if results.errors:
    raise results.errors[0]
for result in sorted(results, key=lambda each: (each.config["rate"], each.config["width"])):
    print(f"rate {result.config['rate']}, width {result.config['width']}: loss {result.metrics['loss'].hex()}")
best = results.get_best_result()
print(f"the best of {len(results)}: rate {best.config['rate']}, width {best.config['width']}", flush=True)
