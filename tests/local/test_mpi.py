"""Jobs of the strategy MPI: mpirun with a daemon for each worker. Whatever is killed, the job goes on from its newest commit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.local_jobs import LocalJob, job

BESIDE_PYTHON = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
pytestmark = pytest.mark.skipif(shutil.which("mpirun", path=BESIDE_PYTHON) is None, reason="there is no mpirun")
EXAMPLES = Path(__file__).parents[2] / "examples" / "mpi"
STEPS = 60


def mpi_job(trainer: dict[str, Any], *, workers: int = 2, slots: int = 1, **roles: Any) -> dict[str, Any]:
    document = job(strategy="MPI", trainer=trainer)
    document["spec"]["roles"] = {"worker": {"replicas": workers, "processesPerReplica": slots}, **roles}
    return document


def run_of(folder: Path, name: str, program: str) -> LocalJob:
    shutil.copy(EXAMPLES / program, folder)
    return LocalJob(folder, name)


def below(run: LocalJob, replica: str) -> list[psutil.Process]:
    return psutil.Process(run.supervisor_of(replica)).children(recursive=True)


def named(run: LocalJob, replica: str, text: str) -> int:
    """The innermost process of a replica whose program or first arguments have this text."""
    return [each.pid for each in below(run, replica) if any(text in word for word in each.cmdline()[:5])][-1]


VICTIMS: dict[str, Callable[[LocalJob], int]] = {
    "rank": lambda run: named(run, "worker-1", "train_mpi4py.py"),
    "daemon": lambda run: next(each.pid for each in below(run, "worker-1") if each.name() in ("prted", "orted")),
    "worker pod": lambda run: run.supervisor_of("worker-1"),
    "launcher pod": lambda run: run.supervisor_of("launcher-0"),
}


def expected() -> dict[int, str]:
    """The loss of each step of train_mpi4py.py on two ranks, computed in one process. The sum of two numbers has no order."""
    shares = []
    for rank in range(2):
        generator = random.Random(rank)
        shares.append([(x, 3 * x - 1 + generator.gauss(0, 0.1)) for x in (generator.uniform(-1, 1) for _ in range(200))])
    slope, offset, losses = 0.0, 0.0, {}
    for step in range(1, STEPS + 1):
        sums = []
        for points in shares:
            errors = [(x, slope * x + offset - y) for x, y in points]
            sums.append((sum(e * x for x, e in errors), sum(e for _, e in errors), sum(e * e for _, e in errors), len(points)))
        by_slope, by_offset, squares, count = (first + second for first, second in zip(*sums, strict=True))
        slope, offset = slope - 0.1 * by_slope / count, offset - 0.1 * by_offset / count
        losses[step] = (squares / count).hex()
    return losses


@pytest.mark.parametrize("victim", ["rank", *(pytest.param(name, marks=pytest.mark.thorough) for name in VICTIMS if name != "rank")])
def test_a_job_of_mpi_goes_on_from_its_commit_after_the_loss_of_a(victim: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, "tiny", "train_mpi4py.py")
    with run.running(
        run.write(mpi_job({"script": "train_mpi4py.py"})), "--run-dir", "runs/tiny", env={"STEPS": str(STEPS), "STEP_SECONDS": "0.1"}
    ):
        run.wait_for_event("commit")
        os.kill(VICTIMS[victim](run), signal.SIGKILL)
        assert run.wait_for_end() == "Succeeded", run.story()
    assert run.losses() == expected()
    assert run.resumed_step(1) >= 10
    assert run.status["restarts"]["applicationCount"] == 0, run.status
    if victim == "rank":
        assert run.attempts[0]["message"].startswith("rank 1: ended by signal 9 (SIGKILL)")


def test_the_message_of_a_failed_rank_is_its_own_and_not_that_of_mpirun(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    raise ValueError('no such planet')\n")
    document = mpi_job({"script": "bad.py"}, launcher={"processesPerReplica": 1}, workers=1)
    document["spec"]["recovery"] = {"application": {"limit": 0}}
    run = LocalJob(tmp_path)
    code, output = run.muster_run(run.write(document), "--run-dir", "runs/tiny")
    assert code == 10, output
    assert run.attempts[0]["message"].endswith(": ValueError: no such planet"), run.status


@pytest.mark.thorough
def test_ddp_has_the_same_losses_under_mpirun_as_with_the_strategy_ddp(tmp_path: Path) -> None:
    losses = []
    for name, document in (("mpi", mpi_job({"script": "train_torch.py"})), ("ddp", job(trainer={"script": "train_torch.py"}))):
        run = run_of(tmp_path, name, "train_torch.py")
        with run.running(run.write(document), "--run-dir", f"runs/{name}"):
            assert run.wait_for_end() == "Succeeded", run.story()
        losses.append(run.losses())
    assert losses[0] == losses[1]
    assert len(losses[0]) == 40


@pytest.mark.thorough
def test_a_compiled_program_runs_with_slots_on_the_launcher_too(tmp_path: Path) -> None:
    if shutil.which("mpicc", path=BESIDE_PYTHON) is None:
        pytest.skip("there is no mpicc")
    for file in EXAMPLES.iterdir():
        shutil.copy(file, tmp_path)
    run = LocalJob(tmp_path)
    document = yaml.safe_load((EXAMPLES / "c.yaml").read_text())
    del document["spec"]["trainer"]["code"]
    code, output = run.muster_run(run.write(document), "--run-dir", "runs/tiny")
    assert code == 0, output
    assert "pi is about 3.1415926536 with 3 ranks" in run.logs()
