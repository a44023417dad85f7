"""The frameworks themselves read the environment that is rendered: TensorFlow's TF_CONFIG reader, and torchrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.api.job import TrainingJob
from muster.api.spec import RoleName
from muster.render.addresses import ClusterAddresses
from muster.render.images import Images
from muster.render.manifests import render
from muster.strategies.base import Addresses
from muster.strategies.registry import is_reserved_env

IMAGES = Images({"PyTorch": "torch", "TensorFlow": "tensorflow"}, supervisor="operator")
SECONDS = 150

READ_TF_CONFIG = """
import json, os, sys
import tensorflow as tf
from tensorflow.python.distribute import multi_worker_util
read = {}
for name, value in json.load(sys.stdin).items():
    os.environ["TF_CONFIG"] = value
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster, kind, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
    multi_worker_util._validate_cluster_spec(multi_worker_util.normalize_cluster_spec(cluster), kind, index)
    read[name] = {
        "cluster": cluster.as_dict(), "task": [kind, index],
        "chief": multi_worker_util.is_chief(cluster, kind, index),
        "workers": None if kind == "ps" else multi_worker_util.worker_count(cluster, kind),
    }
print("READ", json.dumps(read))
"""

ONE_WORKER = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(2.0)), axis=None)
print("READ", strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync, float(total))
"""

PRINT_WORLD = """
import json, os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
world = [None] * dist.get_world_size()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
dist.all_gather_object(world, {name: int(os.environ[name]) for name in names})
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(world, file)
dist.barrier()
dist.destroy_process_group()
"""


class Loopback:
    """Addresses on one machine, with one port for each replica."""

    def __init__(self) -> None:
        self.ports: dict[tuple[RoleName, int, str], int] = {}

    def host(self, role: RoleName, index: int) -> str:
        return "127.0.0.1"

    def port(self, role: RoleName, index: int, name: str) -> int:
        if (role, index, name) not in self.ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.ports[role, index, name] = probe.getsockname()[1]
        return self.ports[role, index, name]


def environments(spec: dict[str, Any], addresses: Addresses) -> dict[str, dict[str, str]]:
    """The reserved variables of each trainer container, by pod name."""
    job = TrainingJob.model_validate({"metadata": {"name": "job", "namespace": "ns"}, "spec": spec})
    pods = render(job, attempt=0, addresses=addresses, images=IMAGES)[1:]
    return {
        pod["metadata"]["name"]: {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"] if "value" in each}
        for pod in pods
    }


def inherited() -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not is_reserved_env(name)}
    return {**others, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


def run_python(program: str, *, stdin: str = "", env: dict[str, str] | None = None) -> str:
    """What a Python program printed after READ."""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=stdin,
        env={**inherited(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return next(line for line in ended.stdout.splitlines() if line.startswith("READ ")).removeprefix("READ ")


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_tensorflow_finds_every_pod_of_a_job_with_all_roles_in_its_tf_config() -> None:
    roles = {"chief": {}, "worker": {"replicas": 2}, "ps": {"replicas": 2}, "evaluator": {}}
    spec = {"strategy": "ParameterServer", "trainer": {"task": "digits"}, "roles": roles}
    given = {name: env["TF_CONFIG"] for name, env in environments(spec, ClusterAddresses("job", "ns")).items()}
    read = json.loads(run_python(READ_TF_CONFIG, stdin=json.dumps(given)))

    training = {
        "chief": ["chief-0.job.ns.svc:2222"],
        "worker": ["worker-0.job.ns.svc:2222", "worker-1.job.ns.svc:2222"],
        "ps": ["ps-0.job.ns.svc:2222", "ps-1.job.ns.svc:2222"],
    }
    with_evaluator = {**training, "evaluator": ["evaluator-0.job.ns.svc:2222"]}
    assert {name: (each["cluster"], each["task"]) for name, each in read.items()} == {
        "job-chief-0": (training, ["chief", 0]),
        "job-worker-0": (training, ["worker", 0]),
        "job-worker-1": (training, ["worker", 1]),
        "job-ps-0": (training, ["ps", 0]),
        "job-ps-1": (training, ["ps", 1]),
        "job-evaluator-0": (with_evaluator, ["evaluator", 0]),
    }
    assert [name for name, each in read.items() if each["chief"]] == ["job-chief-0", "job-evaluator-0"]


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_tensorflow_takes_worker_0_for_the_chief_where_there_is_no_other() -> None:
    spec = {"strategy": "MultiWorkerMirrored", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 3}, "evaluator": {}}}
    given = {name: env["TF_CONFIG"] for name, env in environments(spec, ClusterAddresses("job", "ns")).items()}
    read = json.loads(run_python(READ_TF_CONFIG, stdin=json.dumps(given)))
    assert {name: (each["chief"], each["workers"]) for name, each in read.items()} == {
        "job-worker-0": (True, 3),
        "job-worker-1": (False, 3),
        "job-worker-2": (False, 3),
        "job-evaluator-0": (True, 1),
    }


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_a_cluster_of_one_worker_trains() -> None:
    [env] = environments({"strategy": "MultiWorkerMirrored", "trainer": {"task": "digits"}}, Loopback()).values()
    assert run_python(ONE_WORKER, env={"TF_CONFIG": env["TF_CONFIG"]}) == "worker 0 1 2.0"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        pytest.param(
            {"strategy": "DDP", "roles": {"worker": {"replicas": 2, "processesPerReplica": 2}}}, [(0, 0), (0, 1), (1, 0), (1, 1)], id="DDP"
        ),
        pytest.param(
            {"strategy": "RPC", "roles": {"chief": {}, "worker": {"processesPerReplica": 2}, "ps": {}}},
            [(0, 0), (1, 0), (1, 1), (2, 0)],
            id="RPC, replicas of different sizes",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_torchrun_makes_the_world_of_nothing_but_our_environment(
    tmp_path: Path, spec: dict[str, Any], layout: list[tuple[int, int]]
) -> None:
    program, result = tmp_path / "world.py", tmp_path / "world.json"
    program.write_text(PRINT_WORLD)
    replicas = environments({**spec, "trainer": {"task": "digits"}}, Loopback())
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", str(program), str(result)],
            env={**inherited(), **{name: value for name, value in env.items() if not name.startswith("MUSTER_")}},
            stdout=subprocess.DEVNULL,
            stderr=(tmp_path / f"{name}.log").open("w"),
            start_new_session=True,
        )
        for name, env in replicas.items()
    ]
    try:
        codes = [process.wait(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
    assert codes == [0] * len(started), "".join(log.read_text()[-2000:] for log in tmp_path.glob("*.log"))

    world = json.loads(result.read_text())
    assert [each["RANK"] for each in world] == [0, 1, 2, 3]
    assert {each["WORLD_SIZE"] for each in world} == {4}
    assert [(each["GROUP_RANK"], each["LOCAL_RANK"]) for each in world] == layout
    first_ranks = [int(env["MUSTER_FIRST_RANK"]) for env in replicas.values()]
    assert [each["RANK"] for each in world if each["LOCAL_RANK"] == 0] == first_ranks
