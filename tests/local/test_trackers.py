"""One job that logs to W&B (offline), to an MLflow server and to TensorBoard, is killed, and resumes: one run, and each step once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from local_cluster.ports import free_ports
from tests.support.local_jobs import LocalJob, finish, job
from tests.support.waiting import wait_until

STEPS = 100
PROGRAM = """
import os, sys, time, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # summaries need no TensorFlow, and its import takes long
import mlflow, wandb
from torch.utils.tensorboard import SummaryWriter
import muster_training as muster

found = muster.latest()
done = found.step if found else 0
run = wandb.init(project="tests", settings=wandb.Settings(console="off", x_disable_stats=True))
board = SummaryWriter(os.environ["TENSORBOARD_LOGGING_DIR"], purge_step=done + 1)
mlflow.set_experiment("tests")
with mlflow.start_run() as tracked:
    history = mlflow.MlflowClient().get_metric_history(tracked.info.run_id, "loss")
    logged = max((metric.step for metric in history), default=0)
    while done < int(sys.argv[1]):
        time.sleep(0.05)
        done += 1
        run.log({"loss": 1 / done}, step=done)
        board.add_scalar("loss", 1 / done, done)
        board.flush()
        if done > logged:
            mlflow.log_metric("loss", 1 / done, step=done)
        muster.report(step=done, total=int(sys.argv[1]), loss=1 / done)
        if done % 10 == 0:
            with muster.checkpoint(done) as folder:
                (folder / "state").write_text(str(done))
board.close()
run.finish()
"""

READER = """
import json, sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

board = EventAccumulator(sys.argv[1])
board.Reload()
print(json.dumps([event.step for event in board.Scalars("loss")]))
"""


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tracking server."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_ports(1)[0]
    store = f"sqlite:///{folder / 'mlflow.db'}"
    command = ["-m", "mlflow", "server", "--host=127.0.0.1", f"--port={port}", f"--backend-store-uri={store}", "--workers=1"]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, *command], cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/health"), "the MLflow server", 500)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with closing(urlopen(url, timeout=5)) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_a_job_that_is_killed_keeps_one_run_in_each_tracker_with_each_step_once(tmp_path: Path, mlflow_server: str) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    local_job = LocalJob(tmp_path)
    local_job.write(job(trainer={"script": f"train.py {STEPS}"}, replicas=1))
    env = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_TRACKING_URI": mlflow_server,
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with local_job.running("job.yaml", env=env) as run:
        local_job.wait_for_commit()
        wait_until(lambda: local_job.step >= 14, "steps after the commit", 300)
        os.kill(local_job.pid_of("worker-0"), signal.SIGKILL)
        code, output = finish(run, 600)
    assert code == 0, output
    resumed = local_job.status["attempts"][1]["stepResumed"]
    assert resumed >= 10

    [tracked] = _search(mlflow_server)
    history = _call(f"{mlflow_server}/api/2.0/mlflow/metrics/get-history?run_id={tracked['info']['run_id']}&metric_key=loss")["metrics"]
    assert [int(metric.get("step", 0)) for metric in history] == list(range(1, STEPS + 1))

    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    uid = yaml.safe_load((local_job.run / "job.yaml").read_text())["metadata"]["uid"]
    assert {path.stem for path in files} == {f"run-{uid}"}

    assert _summaries(local_job.run / "tensorboard") == list(range(1, STEPS + 1))


def _search(server: str) -> list[dict[str, Any]]:
    experiment = _call(f"{server}/api/2.0/mlflow/experiments/get-by-name?experiment_name=tests")["experiment"]["experiment_id"]
    runs: list[dict[str, Any]] = _call(f"{server}/api/2.0/mlflow/runs/search", {"experiment_ids": [experiment]})["runs"]
    return runs


def _call(url: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if content is None else json.dumps(content).encode()
    with closing(urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=60)) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def _summaries(folder: Path) -> list[int]:
    """The steps that TensorBoard shows."""
    done = subprocess.run([sys.executable, "-c", READER, str(folder)], capture_output=True, text=True, timeout=240, check=True)
    steps: list[int] = json.loads(done.stdout)
    return steps
