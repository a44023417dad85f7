"""The examples of own loops with other libraries: killed, resumed, and compared with an undisturbed run."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
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
FSDP_ON_CPUS = '''
"""The example with FSDP. Accelerate leaves out FSDP where there is no accelerator, although PyTorch's FSDP also works on CPUs."""
import sys
from accelerate import state
from accelerate.utils import DistributedType

def init(self, *args, fsdp_plugin=None, **named):
    original(self, *args, fsdp_plugin=fsdp_plugin, **named)
    if fsdp_plugin is not None:
        self.fsdp_plugin = fsdp_plugin
        self.distributed_type = state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP

original, state.AcceleratorState.__init__ = state.AcceleratorState.__init__, init
sys.argv.append("--fsdp")
import train_transformers
train_transformers.main()
'''
Weights = dict[str, np.ndarray[Any, Any]]


def read_safetensors(folder: Path) -> Weights:
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


def read_fsdp(folder: Path) -> Weights:
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    with tempfile.TemporaryDirectory() as whole:
        dcp_to_torch_save(folder / "pytorch_model_fsdp_0", f"{whole}/model.pt")
        state = torch.load(f"{whole}/model.pt", weights_only=True)["model"]
    return {name: tensor.numpy() for name, tensor in state.items()}


def read_keras(folder: Path) -> Weights:
    import h5py

    weights: Weights = {}
    with h5py.File(folder / "keras.weights.h5") as file:
        file.visititems(lambda name, item: weights.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    assert [name for name in weights if name.startswith("optimizer")]
    return weights


def run(folder: Path, name: str, strategy: str, *, kill: str | None, number: signal.Signals = signal.SIGKILL) -> LocalJob:
    """A whole run of an example. After a commit, one process gets the signal."""
    folder.mkdir()
    program = f"train_{name}.py"
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, folder)
    (folder / "train_fsdp.py").write_text(FSDP_ON_CPUS)
    local_job = LocalJob(folder)
    local_job.write(job(trainer={"script": f"{program} {0.15 if kill else 0}"}, strategy=strategy, replicas=1 + int(LAST[strategy][-1])))
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
    assert second["stepResumed"] == second["stepCommitted"] >= 10
    assert second["stepsLost"] == first["lastStep"] - second["stepResumed"]
    calm = run(tmp_path / "calm", name, strategy, kill=None)
    if name != "keras":  # its loss is the mean since the epoch began, or the attempt
        assert disturbed.losses() == calm.losses()
    weights, expected = final_weights(disturbed, read), final_weights(calm, read)
    assert weights.keys() == expected.keys()
    for each, value in expected.items():
        np.testing.assert_array_equal(weights[each], value, err_msg=each)
    return disturbed


CASES = [
    pytest.param("accelerate", "DDP", read_safetensors, marks=[pytest.mark.torch, pytest.mark.thorough]),
    pytest.param("transformers", "DDP", read_safetensors, marks=[pytest.mark.torch, pytest.mark.thorough]),
    pytest.param("fsdp", "FSDP", read_fsdp, marks=[pytest.mark.torch, pytest.mark.thorough]),
    pytest.param("orbax", "JAX", read_orbax, marks=[pytest.mark.jax, pytest.mark.thorough]),
    pytest.param("keras", "OneDevice", read_keras, marks=[pytest.mark.tensorflow, pytest.mark.thorough]),
    pytest.param("keras_loop", "MultiWorkerMirrored", read_keras, marks=[pytest.mark.tensorflow, pytest.mark.thorough]),
    pytest.param("lightning", "DDP", read_lightning, marks=[pytest.mark.torch, pytest.mark.thorough]),
]

RESCUES = ("lightning", "transformers")
"""The examples whose callback saves the last finished step when a peer is lost."""

LAST = {"OneDevice": "worker-0", "DDP": "worker-1", "FSDP": "worker-1", "JAX": "worker-1", "MultiWorkerMirrored": "worker-1"}
"""The last worker."""


@pytest.mark.parametrize(("name", "strategy", "read"), CASES)
def test_an_example_whose_worker_is_killed_ends_with_the_weights_of_an_undisturbed_run(
    tmp_path: Path, name: str, strategy: str, read: Callable[[Path], Weights]
) -> None:
    disturbed = check(tmp_path, name, strategy, read, kill=LAST[strategy])
    if name in RESCUES:
        assert disturbed.status["attempts"][1]["stepsLost"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "strategy", "read"), CASES)
def test_an_example_that_is_asked_to_stop_loses_no_step(tmp_path: Path, name: str, strategy: str, read: Callable[[Path], Weights]) -> None:
    disturbed = check(tmp_path, name, strategy, read, kill=LAST[strategy], number=signal.SIGTERM)
    first, second = disturbed.status["attempts"]
    assert (first["class"], second["stepsLost"]) == ("Preemption", 0)
