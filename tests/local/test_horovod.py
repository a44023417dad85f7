"""Jobs of the strategy Horovod. Whatever is killed, the job goes on from its newest commit, to the bit."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import horovod
from tests.support.local_jobs import LocalJob, job

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="Horovod is built on Linux only")]
EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 40
PLACES = """
import json, os
import torch, horovod.torch as hvd
hvd.init()
place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum).item()
print("place", json.dumps([*place, total]), flush=True)
"""
MISMATCH = """
import torch, horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.zeros(2 + hvd.rank()), name="shares")
"""


@pytest.fixture(scope="module")
def library() -> dict[str, str]:
    """The variables with which programs find Horovod."""
    return {"PYTHONPATH": str(horovod.library())}


def horovod_job(trainer: Mapping[str, Any], *, processes: int = 1, **spec: Any) -> dict[str, Any]:
    document = job(strategy="Horovod", trainer=trainer, **spec)
    document["spec"]["roles"]["worker"]["processesPerReplica"] = processes
    return document


def run_of(folder: Path, name: str = "tiny", program: str = "horovod/train_torch.py") -> LocalJob:
    shutil.copy(EXAMPLES / program, folder)
    return LocalJob(folder, name)


def losses_with_ddp(folder: Path) -> dict[int, str]:
    """The loss of each step of the same training with the strategy DDP, undisturbed."""
    ddp = folder / "ddp"
    ddp.mkdir()
    run = run_of(ddp, program="mpi/train_torch.py")
    with run.running(run.write(job(trainer={"script": "train_torch.py"})), "--run-dir", "runs/tiny", env={"STEPS": str(STEPS)}):
        assert run.wait_for_end() == "Succeeded", run.story()
    assert len(run.losses()) == STEPS
    return run.losses()


VICTIMS: dict[str, Callable[[LocalJob], int]] = {
    "rank 1": lambda run: run.pid_of("worker-1"),
    "rank 0": lambda run: run.pid_of("worker-0"),
    "worker pod": lambda run: run.supervisor_of("worker-1"),
    "pod of rank 0": lambda run: run.supervisor_of("worker-0"),
}


@pytest.mark.parametrize("victim", ["rank 1", *(pytest.param(name, marks=pytest.mark.thorough) for name in VICTIMS if name != "rank 1")])
def test_a_job_of_horovod_has_the_losses_of_ddp_also_after_the_loss_of_a(victim: str, library: dict[str, str], tmp_path: Path) -> None:
    run = run_of(tmp_path)
    with run.running(
        run.write(horovod_job({"script": "train_torch.py"})),
        "--run-dir",
        "runs/tiny",
        env={**library, "STEPS": str(STEPS), "STEP_SECONDS": "0.1"},
    ):
        run.wait_for_event("commit")
        os.kill(VICTIMS[victim](run), signal.SIGKILL)
        assert run.wait_for_end() == "Succeeded", run.story()
    assert run.losses() == losses_with_ddp(tmp_path)
    assert run.resumed_step(1) >= 10
    assert run.status["restarts"]["applicationCount"] == 0, run.status


def test_a_program_without_muster_training_finds_its_places_in_replicas_of_two_processes(library: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "places.py").write_text(PLACES)
    run = LocalJob(tmp_path)
    document = horovod_job({"command": [sys.executable, "places.py"]}, processes=2)
    with run.running(run.write(document), "--run-dir", "runs/tiny", env=library):
        assert run.wait_for_end() == "Succeeded", run.story()
    assert sorted(line.partition("place ")[2] for line in run.logs().splitlines() if "place " in line) == [
        f"[{rank}, 4, {rank % 2}, 2, {rank // 2}, 2, 6.0]" for rank in range(4)
    ]


@pytest.mark.thorough
def test_tensors_that_do_not_fit_together_are_an_error_of_the_program_and_no_lost_peer(library: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mismatch.py").write_text(MISMATCH)
    run = LocalJob(tmp_path)
    document = horovod_job({"script": "mismatch.py"}, recovery={"application": {"limit": 0}})
    with run.running(run.write(document), "--run-dir", "runs/tiny", env=library):
        assert run.wait_for_end() == "Failed", run.story()
    assert "Mismatched ALLREDUCE tensor shapes" in run.attempts[0]["message"], run.status
    assert run.status["restarts"]["infrastructureCount"] == 0, run.status


@pytest.mark.thorough
def test_an_environment_without_horovod_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    code, output = run.muster_run(run.write(horovod_job({"script": "train_torch.py"})), "--run-dir", "runs/tiny")
    assert code == 11, output
    assert "the package horovod is not in this image" in output
