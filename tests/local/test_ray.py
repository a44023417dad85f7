"""Jobs of the strategy Ray: real clusters on this machine. Whatever is killed, the job goes on from its newest commit, to the bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from local_cluster.ports import free_ports
from muster_ray.nodes import Cluster, Place
from muster_trainer.host.waiting import listens
from tests.support.local_jobs import LocalJob, finish, job
from tests.support.parity import program_of
from tests.support.waiting import wait_until

pytest.importorskip("ray")
REPOSITORY = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "ray_programs"
STEPS = 40
EPOCHS = 20
SMALL = {"object-store-memory": 80_000_000, "include-log-monitor": "false"}
PLAIN = f'''
"""Adds numbers that tasks of Ray compute. After half of its steps, it waits until the test has killed something."""
import json, time
from pathlib import Path
import ray, muster_training as muster

@ray.remote
def term(step):
    return step * 0.37 % 1

ray.init()
place, done, value = muster.environment(), 0, 1.0
print("driver is rank", place.rank, "of", place.world, "on", len(ray.nodes()), "nodes", flush=True)
if found := muster.latest():
    done, value = found.step, json.loads((found / "value.json").read_text())
while done < {STEPS}:
    while done == {STEPS // 2} and not Path("killed").exists():
        time.sleep(0.1)
    done += 1
    value = (value * 1.37 + ray.get(term.remote(done))) % 97
    muster.report(step=done, total={STEPS}, loss=value)
    if done % 5 == 0:
        with muster.checkpoint(done) as folder:
            (folder / "value.json").write_text(json.dumps(value))
'''

PARITY = program_of(
    "RAY_ADDRESS",
    """
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
ray.init()
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=os.getcwd())).fit()
""",
)

BAD = """
import ray, ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

def train(config):
    if ray.train.get_context().get_world_rank() == 1:
        raise ValueError("no such planet")

ray.init()
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
"""


def expected() -> dict[int, str]:
    """The loss of each step of an undisturbed run."""
    value, losses = 1.0, {}
    for step in range(1, STEPS + 1):
        value = (value * 1.37 + step * 0.37 % 1) % 97
        losses[step] = value.hex()
    return losses


def ray_job(script: str, *, config: dict[str, Any] | None = None, slots: int = 1, **spec: Any) -> dict[str, Any]:
    settings = {"rayStartParams": {"head": SMALL, "worker": SMALL}, **(config or {})}
    document = job(strategy="Ray", trainer={"script": script, "config": settings}, **spec)
    document["spec"]["roles"] = {"worker": {"replicas": 1, "processesPerReplica": slots}}
    return document


def below(run: LocalJob, replica: str) -> list[psutil.Process]:
    return psutil.Process(run.supervisor_of(replica)).children(recursive=True)


def named(run: LocalJob, replica: str, text: str) -> int:
    """The process of a replica whose program or first arguments have this text."""
    return next(each.pid for each in below(run, replica) if any(text in word for word in each.cmdline()[:5]))


ASK = "import os, ray._raylet as r; print(len(r.GcsClient(address=os.environ['RAY_ADDRESS']).get_all_node_info(timeout=5)), 'nodes')"


def assert_refuses_strangers(run: LocalJob) -> None:
    """The control service answers a client with the token of the job, and no other."""
    own = psutil.Process(named(run, "head-0", "plain.py")).environ()
    other = {**{name: value for name, value in own.items() if name != "RAY_AUTH_TOKEN_PATH"}, "RAY_AUTH_TOKEN": "0" * 64}
    asked = [subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=120) for env in (own, other)]
    assert asked[0].stdout == "2 nodes\n", asked[0].stderr
    assert asked[1].returncode == 1, asked[1].stdout
    assert "nauthenticated" in asked[1].stderr + asked[1].stdout, asked[1].stderr


VICTIMS: dict[str, Callable[[LocalJob], int]] = {
    "raylet": lambda run: named(run, "worker-0", "raylet/raylet"),
    "control service": lambda run: named(run, "head-0", "gcs_server"),
    "driver": lambda run: named(run, "head-0", "plain.py"),
    "worker pod": lambda run: run.supervisor_of("worker-0"),
    "head pod": lambda run: run.supervisor_of("head-0"),
}


@pytest.mark.parametrize("victim", ["raylet", *(pytest.param(name, marks=pytest.mark.thorough) for name in VICTIMS if name != "raylet")])
def test_a_job_of_ray_goes_on_from_its_commit_after_the_loss_of_a(victim: str, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    run = LocalJob(tmp_path)
    name = run.write(ray_job("plain.py"))
    with run.running(name, "--run-dir", "runs/tiny"):
        run.wait_for(lambda: run.committed == STEPS // 2, "the commit of half of the steps")
        if victim == "raylet":
            assert_refuses_strangers(run)
        before = len(run.attempts)
        os.kill(VICTIMS[victim](run), signal.SIGKILL)
        run.wait_for(lambda: len(run.attempts) > before, "the next attempt")
        (tmp_path / "killed").touch()
        assert run.wait_for_end() == "Succeeded", run.story()
    assert run.losses() == expected()
    assert max(event["step"] for event in run.events("resumed")) == STEPS // 2
    assert run.status["restarts"]["applicationCount"] == 0, run.status


@pytest.mark.thorough
def test_ray_train_resumes_from_a_verified_commit_of_its_own_checkpoints(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "examples" / "ray" / "train.py", tmp_path)
    quiet, killed = LocalJob(tmp_path, "quiet"), LocalJob(tmp_path, "killed")
    name = quiet.write(ray_job("train.py", slots=2))
    env = {"STEPS": "60"}
    with quiet.running(name, "--run-dir", "runs/quiet", env=env):
        assert quiet.wait_for_end(400) == "Succeeded", quiet.story()
    with killed.running(name, "--run-dir", "runs/killed", env=env):
        killed.wait_for_event("commit")
        os.kill(named(killed, "worker-0", "ray::RayTrainWorker"), signal.SIGKILL)
        assert killed.wait_for_end(400) == "Succeeded", killed.story()
    assert max(event["step"] for event in killed.events("resumed")) in (20, 40)
    assert killed.losses() == quiet.losses()


@pytest.mark.thorough
def test_a_training_has_the_same_losses_on_ray_and_with_ddp_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / "parity.py").write_text(PARITY)
    on_ray, with_ddp = LocalJob(tmp_path, "ray"), LocalJob(tmp_path, "ddp")
    with with_ddp.running(with_ddp.write(job(trainer={"script": "parity.py"})), "--run-dir", "runs/ddp"):
        assert with_ddp.wait_for_end() == "Succeeded", with_ddp.story()
    with on_ray.running(on_ray.write(ray_job("parity.py", slots=2)), "--run-dir", "runs/ray"):
        assert on_ray.wait_for_end() == "Succeeded", on_ray.story()
    assert len(with_ddp.losses()) == 30
    assert on_ray.losses() == with_ddp.losses()
    assert on_ray.committed == 30


def run_of(program: str, folder: Path, *, slots: int) -> LocalJob:
    """Runs a program of PROGRAMS to its end."""
    shutil.copy(PROGRAMS / program, folder)
    run = LocalJob(folder)
    with run.running(run.write(ray_job(program, slots=slots)), "--run-dir", "runs/tiny"):
        assert run.wait_for_end(600) == "Succeeded", run.story()
    return run


@pytest.mark.thorough
def test_ray_data_is_the_input_of_a_trainer_whose_workers_leave_cpus_for_it(tmp_path: Path) -> None:
    run = run_of("data.py", tmp_path, slots=4)
    assert sorted(run.losses()) == [1, 2, 3, 4]
    assert run.committed == 4
    assert run.status["progress"]["metrics"]["rows"] == 200


@pytest.mark.thorough
def test_a_tensorflow_trainer_trains_on_two_workers_and_commits(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    run = run_of("tensorflow_trainer.py", tmp_path, slots=2)
    assert sorted(run.losses()) == list(range(1, 21))
    assert run.committed == 20


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("actors.py", "squares 2470 waited 190 named 2470 bytes 5000000"),
        ("runtime_env.py", "tasks have blue from the folder red"),
        ("tune.py", "best of 4 with 0 errors: rate 0.9, error 0.00001"),
    ],
)
def test_a_program_without_ray_train_uses_tasks_actors_runtime_env_and_ray_tune(program: str, printed: str, tmp_path: Path) -> None:
    assert printed in run_of(program, tmp_path, slots=2).logs()


@pytest.fixture(scope="module")
def undisturbed_search(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The loss of each trial of the example with Ray Tune, and the best trial."""
    with search(tmp_path_factory.mktemp("search")) as run:
        assert run.wait_for_end(900) == "Succeeded", run.story()
    return results_of(run)


@contextmanager
def search(folder: Path) -> Iterator[LocalJob]:
    """The example, which saves the state of its trials each second."""
    shutil.copy(REPOSITORY / "examples" / "ray" / "tune.py", folder)
    run = LocalJob(folder)
    env = {"EPOCHS": str(EPOCHS), "EPOCH_SECONDS": "0.5", "TUNE_GLOBAL_CHECKPOINT_S": "1"}
    with run.running(run.write(ray_job("tune.py", slots=2)), "--run-dir", "runs/tiny", env=env):
        yield run


def results_of(run: LocalJob) -> list[str]:
    found = [line for line in run.logs().splitlines() if line.startswith(("rate ", "the best of "))]
    assert len(found) == 5, run.story()
    return found


def reports_of_trials(run: LocalJob) -> list[list[dict[str, Any]]]:
    """The reports of each trial that are in the storage."""
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in run.run.rglob("tune/search/*/result.json")]


def ended_trials(run: LocalJob) -> int:
    """How many trials have ended, as Ray Tune has saved it."""
    return max((path.read_text().count("TERMINATED") for path in run.run.rglob("tune/search/experiment_state-*.json")), default=0)


def trial_in_the_middle(run: LocalJob) -> int | None:
    """The process of a trial that is not near its end."""
    return next((reports[-1]["pid"] for reports in reports_of_trials(run) if 3 <= len(reports) <= EPOCHS // 2), None)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("victim", "attempts"), [("raylet", 2), ("trial", 1)])
def test_a_search_of_ray_tune_repeats_no_ended_trial_after_the_loss_of_a(
    victim: str, attempts: int, undisturbed_search: list[str], tmp_path: Path
) -> None:
    with search(tmp_path) as run:
        run.wait_for(lambda: ended_trials(run), "a trial that has ended", 900)
        trial = wait_until(lambda: trial_in_the_middle(run), "a trial in the middle", 900)
        ended, at = ended_trials(run), time.time()
        os.kill(trial if victim == "trial" else named(run, "worker-0", "raylet/raylet"), signal.SIGKILL)
        assert run.wait_for_end(900) == "Succeeded", run.story()
    assert results_of(run) == undisturbed_search
    assert len(run.attempts) == attempts, run.status
    trials = reports_of_trials(run)
    assert [reports[-1]["epoch"] for reports in trials] == [EPOCHS] * 4
    assert sum(reports[-1]["timestamp"] <= at for reports in trials) >= ended
    assert any(len({report["pid"] for report in reports}) == 2 for reports in trials), "no trial went on in another process"


@pytest.mark.thorough
def test_the_message_of_a_failed_training_is_its_own_and_not_that_of_ray(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    document = ray_job("bad.py", slots=2)
    document["spec"]["recovery"] = {"application": {"limit": 0}}
    run = LocalJob(tmp_path)
    code, output = run.muster_run(run.write(document), "--run-dir", "runs/tiny", seconds=600)
    assert code == 10, output
    assert "ValueError: no such planet" in run.attempts[0]["message"], run.status


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("program", "config", "sentence"),
    [
        ("import ray\nray.init('ray://other:10001')\n", {}, "own.py:2 calls ray.init() with the address 'ray://other:10001'"),
        ("import ray\nkind = 'local'\nray.init(kind, num_cpus=1)\n", {}, "without a connection to the job's Ray cluster"),
        ("import ray\nray.init()\n", {"rayStartParams": {"worker": {"no-such-flag": 1}}}, "no-such-flag"),
    ],
    ids=["other address", "own cluster", "unknown flag"],
)
def test_a_program_or_flag_that_cannot_work_ends_the_job_with_a_sentence(
    program: str, config: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(program)
    run = LocalJob(tmp_path)
    with run.running(run.write(ray_job("own.py", config=config)), "--run-dir", "runs/tiny") as process:
        code, output = finish(process, 300)
    assert code == 11, output
    assert sentence in output


@pytest.mark.thorough
def test_an_address_that_a_program_computes_ends_it_within_a_minute_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import ray\nport = 1\nray.init(f'127.0.0.1:{port}')\n")
    document = ray_job("own.py")
    document["spec"]["recovery"] = {"application": {"limit": 0}}
    run = LocalJob(tmp_path)
    code, output = run.muster_run(run.write(document), "--run-dir", "runs/tiny")
    assert code == 10, output
    assert "Failed to connect to Ray cluster at" in run.attempts[0]["message"], run.status


@pytest.mark.thorough
def test_the_nodes_of_a_control_service_that_was_started_again_are_counted() -> None:
    [port] = free_ports(1)
    place = Place("head", 0, f"127.0.0.2:{port}", "127.0.0.2", local=True)
    cluster = Cluster(place.gcs)

    def nodes() -> int:
        with suppress(Exception):  # the service does not answer yet
            return cluster.nodes()
        return 0

    flags = f"--port={port} --num-cpus=0 --object-store-memory=80000000 --include-dashboard=false"
    for _ in range(2):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder, subprocess.Popen(place.words(flags, Path(folder))) as servers:
            try:
                wait_until(lambda: listens(place.gcs) and nodes() == 1, "the node", 250)
            finally:
                servers.terminate()


def test_a_node_that_never_joins_is_named_after_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    run = LocalJob(tmp_path)
    with run.running(run.write(ray_job("plain.py", config={"joinSeconds": 1})), "--run-dir", "runs/tiny"):
        wait_until(lambda: "joined in 1 s" in run.logs() or "did not answer" in run.logs(), "the reason")
