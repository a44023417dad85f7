"""The examples of post-training: killed within an epoch, and compared with an undisturbed run."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support.local_jobs import LocalJob, finish
from tests.support.waiting import wait_until

pytest.importorskip("trl", reason="needs the extra post-training")
EXAMPLES = Path(__file__).parents[2] / "examples/post-training"
STEPS = 60
SECONDS = 600.0


def run(folder: Path, method: str, *arguments: str, kill: str | None = None) -> LocalJob:
    """A whole run of an example, with its own job file. One process is killed after a save, and within an epoch of seven steps."""
    shutil.copytree(EXAMPLES, folder)
    document = yaml.safe_load((folder / f"{method}.yaml").read_text())
    document["spec"]["trainer"]["script"] += "".join(f" {each}" for each in arguments)
    local_job = LocalJob(folder, method)
    local_job.write(document)
    with local_job.running("job.yaml") as process:
        if kill:
            wait_until(lambda: local_job.step >= 24 or process.poll() is not None, "steps after the commit", SECONDS)
            if process.poll() is None:
                os.kill(local_job.pid_of(kill), signal.SIGKILL)
        code, output = finish(process, SECONDS)
    assert code == 0, output
    return local_job


def losses(local_job: LocalJob) -> dict[int, str]:
    return {event["step"]: event["lossHex"] for event in local_job.events("step") if "lossHex" in event}


def final_weights(local_job: LocalJob) -> dict[str, Any]:
    from safetensors.numpy import load_file

    [folder] = (local_job.run / "checkpoints/default" / local_job.name).glob(f"step-{STEPS:08d}-*")
    assert (folder / "COMMITTED").is_file()
    [weights] = folder.glob("*model.safetensors")
    return dict(load_file(weights))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("method", "arguments", "kill"),
    [
        pytest.param("sft", (), "worker-1", id="sft"),
        pytest.param("sft", ("--all-weights",), "worker-0", id="sft of all weights", marks=pytest.mark.thorough),
        pytest.param("dpo", (), "worker-1", id="dpo", marks=pytest.mark.thorough),
        pytest.param("dpo", ("--all-weights",), "worker-0", id="dpo of all weights", marks=pytest.mark.thorough),
    ],
)
def test_a_fine_tuning_whose_worker_is_killed_loses_no_step(tmp_path: Path, method: str, arguments: tuple[str, ...], kill: str) -> None:
    disturbed = run(tmp_path / "disturbed", method, *arguments, kill=kill)
    first, second = disturbed.status["attempts"]
    assert (second["stepResumed"], second["stepsLost"]) == (first["lastStep"], 0)
    calm = run(tmp_path / "calm", method, *arguments)
    assert losses(disturbed).items() <= losses(calm).items()
    assert len(losses(disturbed)) >= STEPS - 1, "rank 1 reports the step that it saves without its loss"
    weights, expected = final_weights(disturbed), final_weights(calm)
    assert weights.keys() == expected.keys()
    for each, value in expected.items():
        np.testing.assert_array_equal(weights[each], value, err_msg=each)
