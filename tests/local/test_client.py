"""The Python client with backend="local": it trains on this machine, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.local.rundir import pid_of_run
from tests.support.local_jobs import TRAIN, LocalJob
from tests.support.waiting import wait_until

SECONDS = 240.0


@pytest.fixture
def local_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalJob]:
    monkeypatch.chdir(tmp_path)  # where the processes run
    (tmp_path / "train.py").write_text(TRAIN)
    job = LocalJob(tmp_path)
    yield job
    if job.run.exists():
        wait_until(lambda: pid_of_run(job.run) is None, "the run to end", seconds=SECONDS)
        job.assert_nothing_left()


@pytest.fixture
def client(local_job: LocalJob) -> Iterator[muster.Client]:
    with muster.Client(backend="local", directory=local_job.folder / "runs") as client:
        yield client


def tiny(script: str, **spec: Any) -> muster.TrainingJob:
    return muster.job("tiny", strategy="DDP", trainer=muster.Trainer(script=script), roles={"worker": muster.Role(replicas=2)}, **spec)


def test_a_job_runs_in_the_background_and_has_progress_logs_and_an_explanation(client: muster.Client, local_job: LocalJob) -> None:
    job = client.submit(tiny("train.py 40 0.01"), code=local_job.folder)
    seen: list[muster.Progress] = []
    status = job.wait(timeout=SECONDS, on_progress=seen.append)
    assert status.phase is muster.Phase.SUCCEEDED
    assert (seen[-1].step, seen[-1].total_steps, seen[-1].loss) == (40, 40, 1 / 40)
    assert job.logs(replica="worker-1") == ["[worker-1] rank 1 goes on from step 0"]
    assert sorted(job.follow_logs()) == [f"[worker-{rank}] rank {rank} goes on from step 0" for rank in range(2)]
    assert str(job.explain()).startswith("tiny is Succeeded")
    report = job.report()
    page = report.save(local_job.folder / "report.html").read_text()
    assert page == report.html
    assert "tiny: Succeeded" in page
    assert "data-plot=" in page
    assert [each.name for each in client.list()] == ["tiny"]
    with pytest.raises(muster.RefusedError, match="has succeeded"):
        job.restart()
    with pytest.raises(muster.ConflictError, match="a run tiny exists"):
        client.submit(tiny("train.py 40 0.01"), code=local_job.folder)
    job.delete()
    assert (local_job.folder / "runs/tiny.1/status.json").exists()
    with pytest.raises(muster.NoJobError, match="there is no run tiny"):
        client.get("tiny")


def greet(word: str) -> None:
    import os

    print(f"{word} from rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)


def test_a_function_trains_in_each_process_without_a_file_of_its_own(client: muster.Client, local_job: LocalJob) -> None:
    with pytest.raises(muster.RefusedError, match="greet cannot be called"):
        client.train(greet, name="tiny", strategy="DDP", arguments={"words": 1})
    job = client.train(greet, name="tiny", strategy="DDP", roles={"worker": muster.Role(replicas=2)}, arguments={"word": "hello"})
    assert job.wait(timeout=SECONDS).phase is muster.Phase.SUCCEEDED
    assert sorted(job.logs()) == [f"[worker-{rank}] hello from rank {rank} of 2" for rank in range(2)]
    assert sorted(path.name for path in local_job.folder.glob("*.py")) == ["train.py"]
    with pytest.raises(muster.ConflictError, match="a run tiny exists"):
        client.train(greet, name="tiny", strategy="DDP", arguments={"word": "bye"})
    assert "hello" in (local_job.folder / "runs/tiny.code/muster_function.py").read_text()
    job.delete()
    assert "hello" in (local_job.folder / "runs/tiny.1/code/muster_function.py").read_text()


def test_a_job_is_suspended_resumed_scaled_and_goes_on_from_its_commit(client: muster.Client, local_job: LocalJob) -> None:
    job = client.submit(tiny("train.py 1000 0.01 0.01"), code=local_job.folder)
    local_job.wait_for_commit()
    job.suspend()
    job.suspend()  # once more does no harm
    assert job.wait(until="Suspended", timeout=SECONDS).phase is muster.Phase.SUSPENDED
    with pytest.raises(muster.JobStoppedError, match=r"was stopped at step \d+: resume it"):
        job.wait(timeout=SECONDS)
    job.resume()
    job.scale(1)
    status = job.wait(timeout=SECONDS)
    assert (status.attempts[-1].step_resumed or 0) >= 5
    assert status.world
    assert status.world.size == 1


def test_a_job_that_cannot_run_and_one_that_fails_are_errors_with_their_reason(client: muster.Client, local_job: LocalJob) -> None:
    with pytest.raises(muster.RefusedError, match=r"spec\.trainer\.script: there is no file 'missing\.py'"):
        client.submit(tiny("missing.py"), code=local_job.folder)  # its name stays free
    job = client.submit(
        muster.job(
            "tiny",
            strategy="DDP",
            trainer=muster.Trainer(command=["sh", "-c", "echo broken >&2; exit 1"]),
            recovery=muster.Recovery.model_validate({"application": {"limit": 0}}),
        )
    )
    with pytest.raises(muster.JobFailedError, match="broken") as failed:
        job.wait(timeout=SECONDS)
    assert failed.value.reason == "ApplicationLimitExceeded"


PROGRAM = """
import sys, muster
client = muster.Client(backend="local", detach=sys.argv[1] == "detached")
job = client.submit("job.yaml")
print("submitted", flush=True)
job.wait()
"""


@pytest.mark.parametrize("how", ["attached", pytest.param("detached", marks=pytest.mark.thorough)])
def test_a_run_ends_with_the_program_that_submitted_it_unless_it_is_detached(
    local_job: LocalJob, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_job.write({**tiny("train.py 1000 0.01").manifest(), "apiVersion": "muster.dev/v1beta1"})
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, how], cwd=local_job.folder, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout
        assert program.stdout.readline() == "submitted\n"
        local_job.wait_for_commit()
    finally:
        program.send_signal(signal.SIGKILL)
        program.communicate()
    monkeypatch.chdir("/")  # the run knows where it was submitted
    with muster.Client(backend="local", directory=local_job.folder / "runs") as client:
        job = client.get("tiny")
        if how == "attached":
            wait_until(lambda: pid_of_run(local_job.run) is None, "the run to end", seconds=SECONDS)
            assert job.status.phase is muster.Phase.SUSPENDED
            assert job.status.checkpoint
            job.resume()
        assert job.wait(timeout=SECONDS).phase is muster.Phase.SUCCEEDED
        assert len(job.status.attempts) == (2 if how == "attached" else 1)


def test_a_client_that_is_closed_lets_its_runs_save(local_job: LocalJob) -> None:
    with muster.Client(backend="local", directory=local_job.folder / "runs") as client:
        client.submit(tiny("train.py 4000 0.01"), code=local_job.folder)
        local_job.wait_for_commit()
    assert pid_of_run(local_job.run) is None
    assert local_job.status["phase"] == "Suspended"
    assert os.path.exists(local_job.run / "checkpoints")
