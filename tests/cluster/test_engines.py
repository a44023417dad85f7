"""Jobs of the strategies beside the core, each with the image of its engine. The example runs as it stands. When a pod is killed, the job
goes on from its newest commit, and its losses equal those of an undisturbed job.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from local_cluster import Cluster, installation
from local_cluster.installation import Installation
from tests.support.cluster_jobs import CLAIM, EVENTS, ClusterJob, Ground, Manifest, apart

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
SLOW = {"STEPS": "100", "STEP_SECONDS": "0.2"}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Grounds = Callable[[str], Ground]
SECONDS = 600.0
"""For a job on a machine with much other work. Ray and Spark start several servers in each pod."""


@dataclass(frozen=True)
class Engine:
    """An example, what its program prints last, its roles, and a replica of its workers and the one that leads them."""

    example: str
    last_words: str
    roles: tuple[str, ...]
    worker: str
    leader: str

    @property
    def folder(self) -> Path:
        return (EXAMPLES / self.example).parent

    @property
    def image(self) -> str:
        return f"trainer-{self.folder.name}"

    def manifest(self) -> Manifest:
        manifest: Manifest = yaml.safe_load((EXAMPLES / self.example).read_text())
        return manifest

    def slowed(self) -> Manifest:
        """The example with slow steps, and with its events on the claim."""
        manifest = self.manifest()
        container = {"name": "trainer", "env": [{"name": name, "value": value} for name, value in SLOW.items()], "volumeMounts": [EVENTS]}
        for role in self.roles:
            manifest["spec"]["roles"].setdefault(role, {})["template"] = {"spec": {"containers": [container]}}
        return apart(manifest)


ENGINES = {
    "MPI": Engine("mpi/mpi4py.yaml", "with 2 ranks", ("launcher", "worker"), "worker-1", "launcher-0"),
    "Horovod": Engine("horovod/torch.yaml", "steps with 2 ranks", ("worker",), "worker-1", "worker-0"),
    "Ray": Engine("ray/train.yaml", "after 200 steps", ("head", "worker"), "worker-0", "head-0"),
    "Spark": Engine("spark/torch.yaml", "loss 0.", ("driver", "executor"), "executor-1", "driver-0"),
}
VALUES = {
    "rbac": {"strategyObjects": ["secrets"]},
    "jobDefaults": {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": CLAIM}}}},
}


@pytest.fixture(scope="session")
def muster(cluster: Cluster) -> Installation:
    """In place of that of other tests: these need no trainer image of the core."""
    return installation.ensure(cluster, ["operator"])


@pytest.fixture(scope="module")
def operator(muster: Installation) -> Iterator[Installation]:
    """An operator that may create Secrets, as the pages of these strategies ask for, and with storage for jobs that name none."""
    muster.install(values=VALUES)
    yield muster
    muster.install()


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, operator: Installation) -> Engine:
    """Its image is in the workers."""
    found = ENGINES[request.param]
    installation.put(operator.cluster, [found.image])
    return found


def start(ground: Ground, engine: Engine, manifest: Manifest) -> ClusterJob:
    """As the first lines of the example say."""
    ground.kubectl("create", "configmap", engine.folder.name, f"--from-file={engine.folder}")
    return ground.apply(manifest)


@pytest.fixture(scope="module")
def undisturbed(engine: Engine, grounds: Grounds) -> ClusterJob:
    job = start(grounds(f"undisturbed-{engine.folder.name}"), engine, engine.slowed())
    assert job.wait_for_end(SECONDS) == "Succeeded", job.story()
    return job


def muster_command(job: ClusterJob, folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "muster.cli", *words, "--namespace", job.ground.namespace]
    environment = {**os.environ, **job.ground.cluster.environment}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_example_runs_as_it_stands_and_the_commands_show_it(engine: Engine, ground: Ground, tmp_path: Path) -> None:
    job = start(ground, engine, engine.manifest())
    assert job.wait_for_end(SECONDS) == "Succeeded", job.story()
    assert job.status["restarts"]["total"] == 0, job.status
    assert engine.last_words in muster_command(job, tmp_path, "logs", job.name)
    assert "Succeeded" in muster_command(job, tmp_path, "get", job.name)
    assert "Succeeded" in muster_command(job, tmp_path, "explain", job.name)
    muster_command(job, tmp_path, "report", job.name, "--file", "report.html")
    assert engine.manifest()["spec"]["strategy"] in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("part", ["worker", "leader"])
def test_a_job_goes_on_from_its_commit_when_a_pod_is_killed(part: str, engine: Engine, undisturbed: ClusterJob, ground: Ground) -> None:
    job = start(ground, engine, engine.slowed())
    replica = {"worker": engine.worker, "leader": engine.leader}[part]
    job.wait_for_event("commit")
    ground.kubectl("delete", "pod", f"{job.name}-{replica}", "--force", "--grace-period=0", "--wait=false")
    job.check_succeeded(undisturbed.losses(), timeout=SECONDS)
    assert job.status["restarts"]["total"] == 1, job.attempts
    assert job.status["restarts"]["applicationCount"] == 0, job.attempts
    assert job.resumed_step(1) == job.attempts[1]["stepResumed"] > 0, job.attempts
    assert job.resumed_step(1) >= job.newest_commit(0), job.attempts
