"""Jobs of the strategy Spark: real clusters on this machine. Whatever is killed, the job goes on from its newest commit, to the bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from muster_spark.layout import MASTER
from tests.support.local_jobs import LocalJob, finish, job
from tests.support.parity import HOLD, program_of
from tests.support.spark import pyspark_folder
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]
REPOSITORY = Path(__file__).parents[2]
STEPS = 20
LONG = 800
"""Seconds for a job on a machine with much other work: Java starts eight times in a job with one restart."""
PLAIN = f'''
"""Adds numbers that tasks of Spark compute. After half of its steps, it waits until the test has killed something."""
import json, time
from pathlib import Path
from pyspark.sql import SparkSession
import muster_training as muster

context = SparkSession.builder.getOrCreate().sparkContext
place, done, value = muster.environment(), 0, 1.0
print("driver is rank", place.rank, "of", place.world, flush=True)
if found := muster.latest():
    done, value = found.step, json.loads((found / "value.json").read_text())

def term(step):
    print("task of step", step)
    return step * 0.37 % 1

while done < {STEPS}:
    while done == {STEPS // 2} and not Path("killed").exists():
        time.sleep(0.1)
    done += 1
    value = (value * 1.37 + sum(context.parallelize([0, done], 2).map(term).collect())) % 97
    muster.report(step=done, total={STEPS}, loss=value)
    if done % 5 == 0:
        with muster.checkpoint(done) as folder:
            (folder / "value.json").write_text(json.dumps(value))
'''

PARITY = program_of(
    MASTER,
    """
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate()
TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(train)
""",
)


@pytest.fixture(scope="module")
def spark() -> dict[str, str]:
    """The environment of a job, with PySpark."""
    return {"PYTHONPATH": str(pyspark_folder())}


def spark_job(script: str, *, replicas: int = 2, config: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    settings = {"sparkConf": {"spark.ui.enabled": False}, **(config or {})}
    document = job(strategy="Spark", trainer={"script": script, "config": settings}, **spec)
    document["spec"]["roles"] = {"executor": {"replicas": replicas}}
    return document


def expected() -> dict[int, str]:
    """The loss of each step of an undisturbed run."""
    value, losses = 1.0, {}
    for step in range(1, STEPS + 1):
        value = (value * 1.37 + step * 0.37 % 1) % 97
        losses[step] = value.hex()
    return losses


def named(run: LocalJob, replica: str, text: str) -> int:
    """The process of a replica with this word in its command."""

    def pid() -> int | None:
        for each in psutil.Process(run.supervisor_of(replica)).children(recursive=True):
            with suppress(psutil.Error):  # it has just ended
                if any(text in word for word in each.cmdline()):
                    return each.pid
        return None

    return wait_until(pid, f"a process of {replica} with {text}")


VICTIMS: dict[str, Callable[[LocalJob], int]] = {
    "executor": lambda run: named(run, "executor-0", "CoarseGrainedExecutorBackend"),
    "worker": lambda run: named(run, "executor-0", "deploy.worker.Worker"),
    "master": lambda run: named(run, "driver-0", "deploy.master.Master"),
    "executor pod": lambda run: run.supervisor_of("executor-0"),
    "driver pod": lambda run: run.supervisor_of("driver-0"),
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_job_of_spark_goes_on_from_its_commit_after_the_loss_of_an_idle(victim: str, tmp_path: Path, spark: dict[str, str]) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    run = LocalJob(tmp_path)
    with run.running(run.write(spark_job("plain.py")), "--run-dir", "runs/tiny", env=spark):
        run.wait_for(lambda: run.committed == STEPS // 2, "the commit of half of the steps", LONG)
        os.kill(VICTIMS[victim](run), signal.SIGKILL)
        run.wait_for(lambda: len(run.attempts) > 1, "the next attempt", LONG)
        (tmp_path / "killed").touch()
        assert run.wait_for_end(LONG) == "Succeeded", run.story()
    assert run.losses() == expected()
    assert max(event["step"] for event in run.events("resumed")) == STEPS // 2
    assert run.status["restarts"]["applicationCount"] == 0, run.status
    assert "task of step 1\n" in run.logs()


def test_torch_distributor_has_the_losses_of_ddp_to_the_bit_also_after_the_loss_of_an_executor(
    tmp_path: Path, spark: dict[str, str]
) -> None:
    (tmp_path / "parity.py").write_text(PARITY)
    hold = tmp_path / HOLD
    hold.touch()
    on_spark, with_ddp = LocalJob(tmp_path, "spark"), LocalJob(tmp_path, "ddp")
    with on_spark.running(on_spark.write(spark_job("parity.py")), "--run-dir", "runs/spark", env=spark):
        on_spark.wait_for(lambda: on_spark.committed == 10, "the first commit", LONG)
        os.kill(named(on_spark, "executor-0", "CoarseGrainedExecutorBackend"), signal.SIGKILL)
        on_spark.wait_for(lambda: len(on_spark.attempts) > 1, "the next attempt", LONG)
        hold.unlink()
        assert on_spark.wait_for_end(LONG) == "Succeeded", on_spark.story()
    with with_ddp.running(with_ddp.write(job(trainer={"script": "parity.py"})), "--run-dir", "runs/ddp"):
        assert with_ddp.wait_for_end(LONG) == "Succeeded", with_ddp.story()
    assert len(with_ddp.losses()) == 30
    assert on_spark.losses() == with_ddp.losses()
    assert on_spark.committed == 30
    assert on_spark.status["restarts"]["applicationCount"] == 0, on_spark.status


@pytest.mark.parametrize("name", ["words", "mllib", "torch", "tensorflow"])
def test_an_example_of_spark_succeeds_as_it_stands(name: str, tmp_path: Path, spark: dict[str, str]) -> None:
    shutil.copytree(REPOSITORY / "examples" / "spark", tmp_path, dirs_exist_ok=True)
    run = LocalJob(tmp_path, name)
    with run.running(f"{name}.yaml", "--run-dir", f"runs/{name}", env=spark):
        assert run.wait_for_end(LONG) == "Succeeded", run.story()
    if name == "words":
        assert list(tmp_path.glob("**/words.parquet/*.parquet"))
    else:
        assert run.committed > 0


@pytest.mark.parametrize(
    ("program", "config", "code", "sentence"),
    [
        (
            "import pyspark.sql\npyspark.sql.SparkSession.builder.master('local[2]').getOrCreate()\n",
            {},
            11,
            "own.py:2 sets the Spark master",
        ),
        ("print('done')\n", {}, 11, "without a SparkSession in the job's cluster"),
        ("import pyspark.sql\n", {"joinSeconds": 1}, None, "joined in 1 s"),
        (
            "from pyspark.sql import SparkSession\n"
            "def failing(row):\n    raise ValueError(f'row {row} has no label')\n"
            "SparkSession.builder.getOrCreate().sparkContext.parallelize([7], 1).map(failing).collect()\n",
            {},
            12,
            "driver-0: rank 0: ValueError: row 7 has no label",
        ),
    ],
    ids=["own master", "no session", "deadline", "error in a task"],
)
def test_a_program_that_cannot_work_ends_the_job_with_a_sentence(
    program: str, config: dict[str, Any], code: int | None, sentence: str, tmp_path: Path, spark: dict[str, str]
) -> None:
    (tmp_path / "own.py").write_text(program)
    run = LocalJob(tmp_path)
    document = spark_job("own.py", replicas=1, config=config, recovery={"application": {"limit": 0}})
    with run.running(run.write(document), "--run-dir", "runs/tiny", env=spark) as process:
        if code is None:
            wait_until(lambda: sentence in run.logs(), "the reason", LONG)
        else:
            finish(process, LONG)
            assert sentence in run.status["message"], json.dumps(run.status)
