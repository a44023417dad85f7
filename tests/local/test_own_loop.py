"""Programs that use `muster_training`: real processes, killed, stopped and resumed. The final state equals that of an undisturbed run."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.local_jobs import LocalJob, away, finish, job, storage_of
from tests.support.waiting import DEADLINE, wait_until

REPOSITORY = Path(__file__).parents[2]
PLAIN = '''
"""Adds numbers as a training would, each rank its own. Every 5 steps, and when it is to stop, all ranks save.
Its steps take time in its first attempt only."""
import json, sys, time
import muster_training as muster

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
place = muster.environment()
print("rank", place.rank, "of", place.world, "attempt", place.attempt, flush=True)
done, value = 0, 1.0
if (found := muster.latest()) and "--forget" not in sys.argv:
    done, value = found.step, json.loads((found / f"rank-{place.rank}.json").read_text())
while done < steps:
    time.sleep(0 if place.attempt else seconds)
    done += 1
    value = (value * 1.37 + done * (place.rank + 1)) % 97
    muster.report(step=done, total=steps, loss=value, accuracy=1 / done)
    stop = muster.should_stop()
    if stop or done % 5 == 0 or done == steps:
        with muster.checkpoint(done) as folder:
            (folder / f"rank-{place.rank}.json").write_text(json.dumps(value))
            if place.rank == 0:
                (folder / "shared.txt").write_text(str(done))
    if stop:
        print("rank", place.rank, "stops at", done, flush=True)
        break
'''

REGISTERED = '''
"""Registers what it adds up. All ranks meet in each step, as in a collective. Its steps take time in its first attempt only."""
import random, sys, time
print("preloaded:", "wave" in sys.modules, flush=True)
import muster_training as muster
from muster_training.session import current

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
random.seed(7)
total = [1.0]
state = muster.register(total=(lambda: list(total), lambda saved: total.__setitem__(slice(None), saved)))
while state.step < steps:
    current().ranks.gather("")
    time.sleep(0 if muster.environment().attempt else seconds)
    total[0] = (total[0] * 1.37 + random.random()) % 97
    if state.finish_step(total=steps, loss=total[0]):
        break
'''

LOADED = '''
"""Trains with DDP on a loader with workers. Each step takes two batches, which may be of two epochs of seven batches."""
import sys, time
import torch, torch.distributed as dist
from torch import nn
import muster_training as muster

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1)))
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(102, 4, generator=torch.Generator().manual_seed(1))
loader = muster.data_loader(data, 8, shuffle=True, num_workers=2, prefetch_factor=3)
state = muster.register(model=model, optimizer=optimizer, loader=loader)
batches, ends = 0, state.step >= steps
while not ends:
    for batch in loader:
        loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        batches += 1
        if batches % 2:
            continue
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0 if muster.environment().attempt else seconds)
        if ends := state.finish_step(total=steps, loss=loss.item()):
            break
dist.destroy_process_group()
'''

MISSED = """
from contextlib import contextmanager
import muster_training

@contextmanager
def missed(step):
    try:
        yield
    except muster_training.StorageUnavailable:
        print("rank", muster_training.environment().rank, "has missed", step, flush=True)
"""


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "plain.py").write_text(PLAIN)
    return LocalJob(tmp_path)


def final_state(local_job: LocalJob, step: int) -> dict[str, str]:
    """The sums of the files in the commit of this step."""
    [folder] = (local_job.run / "checkpoints/default" / local_job.name).glob(f"step-{step:08d}-*")
    assert (folder / "COMMITTED").is_file()
    files = (path for path in folder.iterdir() if path.name not in ("COMMITTED", "manifest.json"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()}


def undisturbed(tmp_path: Path, document: dict[str, Any], step: int) -> dict[str, str]:
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    for path in tmp_path.glob("*.py"):
        shutil.copy(path, folder)
    trainer = {key: value.replace(" 0.1", " 0") if isinstance(value, str) else value for key, value in document["spec"]["trainer"].items()}
    calm = LocalJob(folder)
    calm.write({**document, "spec": {**document["spec"], "trainer": trainer}})
    code, output = calm.muster_run("job.yaml")
    assert code == 0, output
    return final_state(calm, step)


def test_a_plain_program_that_is_killed_resumes_at_its_commit_and_ends_as_undisturbed(local_job: LocalJob, tmp_path: Path) -> None:
    document = job(trainer={"script": "plain.py 60 0.1"})
    local_job.write(document)
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        os.kill(local_job.pid_of("worker-1"), signal.SIGKILL)
        code, output = finish(run)
    assert code == 0, output
    first, second = local_job.status["attempts"]
    assert second["stepResumed"] >= 5
    assert second["stepCommitted"] == second["stepResumed"]
    assert second["stepsLost"] == first["lastStep"] - second["stepResumed"] >= 0
    assert local_job.status["progress"]["metrics"] == {"accuracy": 1 / 60}
    assert local_job.status["goodput"]["productiveSteps"] == 60
    assert final_state(local_job, 60) == undisturbed(tmp_path, document, 60)


def test_all_ranks_save_at_one_step_when_one_replica_is_asked_to_stop(local_job: LocalJob, tmp_path: Path) -> None:
    document = job(trainer={"script": "plain.py 60 0.1"}, replicas=3)
    local_job.write(document)
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        os.kill(local_job.supervisor_of("worker-2"), signal.SIGTERM)
        code, output = finish(run)
    assert code == 0, output
    stops = [line.split()[-1] for line in local_job.logs().splitlines() if "stops at" in line]
    assert len(stops) == 3
    assert len(set(stops)) == 1
    first, second = local_job.status["attempts"]
    assert (first["class"], first["reason"]) == ("Preemption", "Preempted")
    assert (second["stepResumed"], second["stepsLost"]) == (int(stops[0]), 0)
    assert final_state(local_job, 60) == undisturbed(tmp_path, document, 60)


def test_a_program_may_go_on_after_a_failed_save(local_job: LocalJob, tmp_path: Path) -> None:
    """All of its ranks raise the error at the same step."""
    plain = (tmp_path / "plain.py").read_text()
    caught = plain.replace(
        "        with muster.checkpoint(done) as folder:", "        with missed(done), muster.checkpoint(done) as folder:"
    )
    (tmp_path / "plain.py").write_text(MISSED + caught)
    document = job(trainer={"script": "plain.py 60 0.1"})
    local_job.write(document)
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        with away(storage_of(local_job)):
            wait_until(lambda: {rank for rank in (0, 1) if f"rank {rank} has missed" in local_job.logs()} == {0, 1}, "a failed save")
        code, output = finish(run)
    assert code == 0, output
    assert len(local_job.status["attempts"]) == 1
    missed = [line.partition("rank ")[2].split() for line in local_job.logs().splitlines() if "has missed" in line]
    steps = [{step for rank, _, _, step in missed if rank == str(each)} for each in (0, 1)]
    assert steps[0] == steps[1]
    assert final_state(local_job, 60) == undisturbed(tmp_path, document, 60)


def test_a_program_that_starts_over_although_it_has_commits_is_called_a_regression(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "plain.py 40 0.1 --forget"}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        os.kill(local_job.pid_of("worker-1"), signal.SIGKILL)
        code, output = finish(run)
    assert code == 0, output
    second = local_job.status["attempts"][1]
    assert second["stepResumed"] == 0
    assert second["stepCommitted"] >= 5
    [regression] = [each for each in local_job.status["conditions"] if each["type"] == "ResumeRegression"]
    assert (regression["status"], regression["reason"]) == ("True", "StartedOver")


def test_ctrl_c_saves_and_resume_continues_there(local_job: LocalJob, tmp_path: Path) -> None:
    document = job(trainer={"script": "plain.py 60 0.1"})
    local_job.write(document)
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        run.send_signal(signal.SIGINT)
        _, output = finish(run)
        assert "saved" in output
    code, output = local_job.muster_run("job.yaml", "--resume")
    assert code == 0, output
    assert local_job.status["attempts"][-1]["stepsLost"] == 0
    assert final_state(local_job, 60) == undisturbed(tmp_path, document, 60)


def attempts_after_a_kill(
    local_job: LocalJob, document: dict[str, Any], replica: str, *, seconds: float = DEADLINE
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two attempts of a job whose replica is killed at step 12 or later, before the first save."""
    local_job.write(document)
    with local_job.running("job.yaml") as run:
        wait_until(lambda: local_job.step >= 12, "step 12")
        os.kill(local_job.pid_of(replica), signal.SIGKILL)
        code, output = finish(run, seconds)
    assert code == 0, output
    first, second = local_job.status["attempts"]
    return first, second


def test_a_rank_that_loses_its_peer_saves_the_last_step_of_registered_state(local_job: LocalJob, tmp_path: Path) -> None:
    (tmp_path / "registered.py").write_text(REGISTERED)
    document = job(trainer={"script": "registered.py 60 0.1"}, checkpoint={"everySteps": 50, "gracePeriodSeconds": 10})
    first, second = attempts_after_a_kill(local_job, document, "worker-0")
    assert first["lastStep"] == second["stepResumed"] == second["stepCommitted"] >= 12
    assert second["stepsLost"] == 0
    assert final_state(local_job, 60) == undisturbed(tmp_path, document, 60)


@pytest.mark.torch
def test_a_ddp_program_that_is_killed_in_an_epoch_goes_on_with_the_next_samples(local_job: LocalJob, tmp_path: Path) -> None:
    (tmp_path / "loaded.py").write_text(LOADED)
    document = job(trainer={"script": "loaded.py 40 0.1"}, checkpoint={"everySteps": 500, "gracePeriodSeconds": 10})
    first, second = attempts_after_a_kill(local_job, document, "worker-1", seconds=300)
    assert first["lastStep"] == second["stepResumed"] >= 12
    assert second["stepsLost"] == 0
    # Python's and NumPy's generators, which the program does not use and does not seed, are in a file of each rank.
    assert final_state(local_job, 40)["state.muster"] == undisturbed(tmp_path, document, 40)["state.muster"]


def test_a_program_that_exits_between_two_saves_is_told_which_step_is_not_saved(local_job: LocalJob, tmp_path: Path) -> None:
    early = REGISTERED.replace("    total[0] =", "    if state.step == 7:\n        sys.exit()\n    total[0] =")
    (tmp_path / "registered.py").write_text(early)
    local_job.write(job(trainer={"script": "registered.py 60 0"}, checkpoint={"everySteps": 5}, replicas=1))
    _, output = local_job.muster_run("job.yaml")
    assert "register: the program ended after step 7, which is not saved; give finish_step the number of all steps (total=)" in output


def test_ranks_that_have_imported_different_generators_save_together(local_job: LocalJob, tmp_path: Path) -> None:
    """A prepared process has imported NumPy, and one that starts cold has not."""
    (tmp_path / "registered.py").write_text('import os\nif os.environ["RANK"] == "0":\n    import numpy\n' + REGISTERED)
    local_job.write(job(trainer={"script": "registered.py 20 0.02"}, checkpoint={"everySteps": 5, "gracePeriodSeconds": 10}))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    assert local_job.status["checkpoint"]["step"] == 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a warm parent")
def test_a_program_that_registers_goes_on_in_a_prepared_process(local_job: LocalJob, tmp_path: Path) -> None:
    (tmp_path / "registered.py").write_text(REGISTERED)
    trainer = {"script": "registered.py 400 0.1", "preload": ["wave", "missing_for_test"]}
    document = job(trainer=trainer, checkpoint={"everySteps": 500, "gracePeriodSeconds": 10})
    local_job.write(document)

    def children(replica: str) -> list[int]:
        pids = [child.pid for child in psutil.Process(local_job.supervisor_of(replica)).children()]
        return pids if len(pids) == 3 else []  # the program, the warm parent, and a prepared process

    with local_job.running("job.yaml") as run:
        first = local_job.pid_of("worker-0")
        prepared = wait_until(lambda: children("worker-0"), "a prepared process of worker-0")
        wait_until(lambda: children("worker-1"), "a prepared process of worker-1")
        wait_until(lambda at=local_job.step: local_job.step >= at + 5, "the prepared process to be ready")
        os.kill(first, signal.SIGKILL)
        assert local_job.pid_of("worker-0", attempt=1) in prepared
        code, output = finish(run)
    assert code == 0, output
    assert local_job.status["attempts"][1]["stepsLost"] == 0
    assert "spec.trainer.preload: missing_for_test cannot be imported beforehand: ModuleNotFoundError" in output
    lines = [line for line in local_job.logs().splitlines() if line.startswith("preloaded:")]
    assert lines.count("preloaded: False") == 2
    assert "preloaded: True" in lines
    # A prepared process has also imported NumPy, so each rank saves the state of its generator in a file of its own.
    assert final_state(local_job, 400)["state.muster"] == undisturbed(tmp_path, document, 400)["state.muster"]


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize(
    "trainer",
    [
        pytest.param({"script": "train.py 0.05"}, id="script"),
        pytest.param({"command": ["torchrun", "train.py", "0.05"]}, id="torchrun"),
    ],
)
def test_a_pytorch_program_that_is_killed_ends_with_the_weights_of_an_undisturbed_run(tmp_path: Path, trainer: dict[str, Any]) -> None:
    shutil.copy(REPOSITORY / "examples/own-loop/train.py", tmp_path)
    document = job(trainer=trainer)
    local_job = LocalJob(tmp_path)
    local_job.write(document)
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        wait_until(lambda: local_job.step >= 25, "steps after the commit")
        os.kill(local_job.pid_of("worker-1"), signal.SIGKILL)
        code, output = finish(run, 300)
    assert code == 0, output
    assert local_job.status["attempts"][1]["stepResumed"] >= 20
    assert final_state(local_job, 200) == undisturbed(tmp_path, document, 200)
