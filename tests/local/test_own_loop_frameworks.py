"""The examples of own loops with Accelerate, JAX with Orbax, and Lightning: killed, resumed, and compared with an undisturbed run."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.local_jobs import LocalJob, finish, job
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples/own-loop"
STEPS = 60
SECONDS = 600.0
Weights = dict[str, np.ndarray[Any, Any]]


def read_accelerate(folder: Path) -> Weights:
    from safetensors.numpy import load_file

    return dict(load_file(folder / "model.safetensors"))


def read_lightning(folder: Path) -> Weights:
    import torch

    state = torch.load(folder / "lightning.ckpt", map_location="cpu", weights_only=True)
    assert state["global_step"] == STEPS
    return {name: tensor.numpy() for name, tensor in state["state_dict"].items()}


def read_orbax(folder: Path) -> Weights:
    import jax
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        saved = checkpointer.metadata(folder / "state").item_metadata.tree
        arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved)
        tree = checkpointer.restore(folder / "state", restore_args=arguments)
    return {str(number): value for number, value in enumerate(jax.tree.leaves(tree))}


def run(folder: Path, name: str, strategy: str, *, kill: str | None, number: signal.Signals = signal.SIGKILL) -> LocalJob:
    """A whole run of an example. After a commit, one process gets the signal."""
    folder.mkdir()
    program = f"train_{name}.py"
    shutil.copy(EXAMPLES / program, folder)
    local_job = LocalJob(folder)
    local_job.write(job(trainer={"script": f"{program} {0.15 if kill else 0}"}, strategy=strategy))
    with local_job.running("job.yaml") as process:
        if kill:
            local_job.wait_for_commit()
            wait_until(lambda: local_job.step >= 13, "steps after the commit", SECONDS)
            os.kill(local_job.pid_of(kill) if number == signal.SIGKILL else local_job.supervisor_of(kill), number)
        code, output = finish(process, SECONDS)
    assert code == 0, output
    return local_job


def final_weights(local_job: LocalJob, read: Callable[[Path], Weights]) -> Weights:
    [folder] = (local_job.run / "checkpoints/default" / local_job.name).glob(f"step-{STEPS:08d}-*")
    assert (folder / "COMMITTED").is_file()
    return read(folder)


def check(tmp_path: Path, name: str, strategy: str, read: Callable[[Path], Weights], **fault: Any) -> LocalJob:
    """The disturbed run, which has resumed at a commit and ended with the weights of the undisturbed one."""
    disturbed = run(tmp_path / "disturbed", name, strategy, **fault)
    assert disturbed.status["phase"] == "Succeeded"
    first, second = disturbed.status["attempts"]
    assert second["stepResumed"] == second["stepFound"] >= 10
    assert second["stepsLost"] == first["lastStep"] - second["stepResumed"]
    calm = run(tmp_path / "calm", name, strategy, kill=None)
    assert disturbed.losses() == calm.losses()
    weights, expected = final_weights(disturbed, read), final_weights(calm, read)
    assert weights.keys() == expected.keys()
    for each, value in expected.items():
        np.testing.assert_array_equal(weights[each], value, err_msg=each)
    return disturbed


CASES = [
    pytest.param("accelerate", "DDP", read_accelerate, marks=pytest.mark.torch),
    pytest.param("orbax", "JAX", read_orbax, marks=pytest.mark.jax),
    pytest.param("lightning", "DDP", read_lightning, marks=[pytest.mark.torch, pytest.mark.chaos]),
]


@pytest.mark.parametrize(("name", "strategy", "read"), CASES)
def test_an_example_whose_worker_is_killed_ends_with_the_weights_of_an_undisturbed_run(
    tmp_path: Path, name: str, strategy: str, read: Callable[[Path], Weights]
) -> None:
    check(tmp_path, name, strategy, read, kill="worker-1")


@pytest.mark.chaos
@pytest.mark.parametrize(("name", "strategy", "read"), CASES)
def test_an_example_that_is_asked_to_stop_loses_no_step(tmp_path: Path, name: str, strategy: str, read: Callable[[Path], Weights]) -> None:
    disturbed = check(tmp_path, name, strategy, read, kill="worker-1", number=signal.SIGTERM)
    first, second = disturbed.status["attempts"]
    assert (first["class"], second["stepsLost"]) == ("Preemption", 0)
