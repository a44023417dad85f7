"""Ray Tune in one job: four trials on two CPUs."""

import json
import os
import tempfile
from pathlib import Path

import ray
from ray import tune

import muster_training


def trial(config):
    error = 1.0
    for _ in range(5):
        error *= 1 - config["rate"]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state.json").write_text(json.dumps(error))
            tune.report({"error": error}, checkpoint=tune.Checkpoint.from_directory(folder))


ray.init()
results = tune.Tuner(
    trial,
    param_space={"rate": tune.grid_search([0.1, 0.3, 0.5, 0.9])},
    tune_config=tune.TuneConfig(metric="error", mode="min"),
    run_config=tune.RunConfig(name="search", storage_path=os.environ["MUSTER_CHECKPOINT_DIR"] + "/tune"),
).fit()
best = results.get_best_result()
print(f"best of {len(results)} with {results.num_errors} errors: rate {best.config['rate']}, error {best.metrics['error']:.5f}", flush=True)
muster_training.report(step=len(results), total=len(results), loss=best.metrics["error"])
