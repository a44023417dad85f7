"""Jobs go on under the next version of Muster, and under an earlier one after a way back. The earlier version is a commit of this
repository, with its own chart and operator."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

import local_cluster
from muster.api.status import MOST_LISTED_MEMBERS, AttemptRecord, Member, Phase, TrainingJobStatus, World
from tests.support.api_server.api import ApiError
from tests.support.api_server.cluster import Cluster, rendered
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Nodes, pod_path
from tests.support.api_server.operators import OperatorProcess
from tests.support.api_server.reports import progress, report, tell, token
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
EARLIER = "54aa4392a98f993810b5340e7fed4d3f1ed026bb"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}.muster.dev"
SCRIPT = {"script": "train.py", "code": {"configMap": {"name": "code"}}}
WORKERS = {"worker": {"replicas": 2}}
JOBS = {
    "ddp": {"strategy": "DDP", "roles": WORKERS, "recovery": {"spares": 1}},
    "elastic": {"strategy": "DDP", "roles": WORKERS, "elastic": {"minReplicas": 1, "maxReplicas": 3}, "batch": {"globalSize": 12}},
    "fsdp": {"strategy": "FSDP", "roles": WORKERS},
    "jax": {"strategy": "JAX", "roles": WORKERS},
    "mwms": {"strategy": "MultiWorkerMirrored", "roles": WORKERS},
    "ps": {"strategy": "ParameterServer", "roles": {"chief": {}, **WORKERS, "ps": {"replicas": 1}}, "trainer": SCRIPT},
    "rpc": {"strategy": "RPC", "roles": {"chief": {}, **WORKERS}, "trainer": SCRIPT},
}
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of the earlier version."""
    folders = ["charts", "contract", "operator"]
    archive = subprocess.run(["git", "archive", EARLIER, *folders], cwd=ROOT, capture_output=True, timeout=60)
    if archive.returncode:
        pytest.skip(f"this checkout has no history up to {EARLIER}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


class Installation:
    """A cluster with nodes, whose chart and operator change."""

    def __init__(self, cluster: Cluster, earlier: Path, folder: Path) -> None:
        self.cluster, self._earlier, self._folder = cluster, earlier, folder
        self.chart = earlier / "charts" / "muster"
        self.namespace = cluster.namespace("upgrade")
        self.nodes = Nodes(cluster.admin, self.namespace)

    def operator(self, pod: str, *, earlier: bool = False) -> OperatorProcess:
        env = {"PYTHONPATH": f"{self._earlier / 'operator'}:{self._earlier / 'contract'}"} if earlier else None
        module = "muster.kubernetes" if earlier else "muster.operator"
        return OperatorProcess(self.cluster, self._folder / pod, pod=pod, settings={}, env=env, module=module)

    def recovers_and_ends(self, jobs: Jobs) -> None:
        """Each job loses a pod, runs again in one further attempt, and succeeds."""
        for name in JOBS:
            jobs.api.delete(pod_path(jobs.pods(name)[0]))
        for name in JOBS:
            jobs.reaches(name, "Running", attempt=1)
        self.nodes.ends = lambda pod: 0
        for pod in [pod for name in JOBS for pod in jobs.pods(name)]:
            jobs.api.patch(pod_path(pod), {"metadata": {"annotations": {"end": "now"}}})  # so that the nodes see it again
        for name in JOBS:
            jobs.reaches(name, "Succeeded")
        assert {name: jobs.status(name)["restarts"]["total"] for name in JOBS} == dict.fromkeys(JOBS, 1)


@pytest.fixture
def installation(earlier: Path, tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        kubeconfig = stack.enter_context(local_cluster.api_server(local_cluster.Places.default()))
        installation = Installation(Cluster(kubeconfig, tmp_path / "audit.log"), earlier, tmp_path)
        stack.enter_context(installation.nodes.working())
        yield installation


def submit_all(jobs: Jobs, version: str) -> None:
    """All jobs run."""
    for name, spec in JOBS.items():
        jobs.submit({**job(name, **spec), "apiVersion": f"muster.dev/{version}"})
    for name in JOBS:
        jobs.reaches(name, "Running")
    jobs.pods_of("ddp", 3)


def worlds(jobs: Jobs) -> dict[str, tuple[int, set[str]]]:
    """The attempt of each job, and the uids of its pods."""
    return {name: (jobs.status(name)["attempt"], {pod["metadata"]["uid"] for pod in jobs.pods(name)}) for name in JOBS}


def stored(cluster: Cluster) -> list[list[str]]:
    """The versions in which jobs may be stored, and those of presets, of which there is none."""
    plurals = ("trainingjobs", "trainingpresets")
    return [cluster.admin.get(DEFINITION.format(plural))["status"]["storedVersions"] for plural in plurals]


def owners(jobs: Jobs) -> set[str]:
    return {pod["metadata"]["ownerReferences"][0]["apiVersion"] for name in JOBS for pod in jobs.pods(name)}


def counts_a_report(operator: OperatorProcess, jobs: Jobs) -> None:
    """The operator takes the report of a pod that ran before it."""
    pod = jobs.pods("ddp")[0]
    assert tell(operator, token(jobs, pod), report(pod, progress=progress(7)))[0] == 200
    wait_until(lambda: (jobs.status("ddp").get("progress") or {}).get("step") == 7, "the report of a supervisor counts")


def test_running_jobs_go_on_under_the_next_version(installation: Installation) -> None:
    cluster = installation.cluster
    cluster.install(installation.chart)
    before = installation.operator("muster-before", earlier=True)
    after = None
    try:
        before.start().ready()
        jobs = Jobs(cluster.admin, installation.namespace, version="v1alpha1")
        submit_all(jobs, "v1alpha1")
        running = worlds(jobs)
        cluster.install()
        jobs = Jobs(cluster.admin, installation.namespace)
        assert stored(cluster) == [["v1alpha1", "v1beta1"]] * 2
        after = installation.operator("muster-after").start()
        wait_until(lambda: after.probe("healthz")[0] == 200, "the new operator has started")
        assert (before.leads, after.leads) == (True, False), "they share one lease"
        assert before.stop() == 0
        after.ready()
        wait_until(lambda: stored(cluster) == [["v1beta1"]] * 2, "the objects are migrated")
        counts_a_report(after, jobs)
        assert worlds(jobs) == running, "no pod was replaced"
        assert owners(jobs) == {"muster.dev/v1alpha1"}
        installation.recovers_and_ends(jobs)
        assert "muster.dev/v1beta1" in owners(jobs)
    finally:
        before.close()
        if after is not None:
            after.close()


def restore_definitions(installation: Installation) -> None:
    """Applies the earlier definitions with a further version. The newer ones have defaults for fields that the earlier operator refuses."""
    definitions = [each for each in rendered(chart=installation.chart) if each["kind"] == "CustomResourceDefinition"]
    for each in definitions:
        [version] = each["spec"]["versions"]
        each["spec"]["versions"] = [{**version, "name": "v1beta1"}, {**version, "storage": False}]
        installation.cluster.admin.apply(DEFINITION.format(each["spec"]["names"]["plural"]), each)
    assert len(definitions) == 2


def test_running_jobs_go_on_under_an_earlier_version(installation: Installation) -> None:
    cluster = installation.cluster
    cluster.install()
    jobs = Jobs(cluster.admin, installation.namespace)
    after = installation.operator("muster-after")
    try:
        after.start().ready()
        submit_all(jobs, "v1beta1")
        running = worlds(jobs)
        wait_until(lambda: stored(cluster) == [["v1beta1"]] * 2, "the definitions name one version")
        with pytest.raises(ApiError, match=r"missing from spec\.versions"):
            cluster.install(installation.chart)
        restore_definitions(installation)
    finally:
        after.close()
    cluster.install(installation.chart, "--set", "crds.enabled=false")
    before = installation.operator("muster-before", earlier=True)
    try:
        before.start().ready()
        counts_a_report(before, jobs)
        assert worlds(jobs) == running, "no pod was replaced"
        installation.recovers_and_ends(jobs)
    finally:
        before.close()


DECIDES = """
import json, sys
from datetime import UTC, datetime
from muster.api.job import TrainingJob
from muster.control.admission import readable_status
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import Observed, ReplicaPhase, ReplicaView
manifest = json.load(sys.stdin)
status, now = readable_status(manifest.pop("status")), datetime.now(UTC)
job = TrainingJob.model_validate(manifest).with_status(status)
pods = [ReplicaView(f"large-worker-{i}", f"worker-{i}/0", "worker", i, 0, ReplicaPhase("Running"), now) for i in range(status.world.size)]
decision = decide(job, Observed(tuple(pods), live=True, service=True), now)
print(json.dumps([decision.status.attempt, decision.status.restarts.total, sorted({type(each).__name__ for each in decision.actions})]))
"""


@pytest.mark.parametrize(
    ("replicas", "attempt", "actions"), [(MOST_LISTED_MEMBERS, 0, []), (MOST_LISTED_MEMBERS + 1, 1, ["DeleteReplica"])]
)
def test_a_job_with_many_replicas_resumes_without_a_charge_after_a_way_back(
    earlier: Path, replicas: int, attempt: int, actions: list[str]
) -> None:
    """The earlier version cannot read the members of a large world. It deletes their pods, as at the beginning of any further attempt."""
    now = datetime.now(UTC)
    members = tuple(Member(role="worker", index=index, uid=f"worker-{index}/0") for index in range(replicas))
    world = World(attempt=0, size=replicas, members=members, created_time=now, ready_time=now)
    record = AttemptRecord(attempt=0, start_time=now)
    status = TrainingJobStatus(phase=Phase.RUNNING, world=world, attempts=(record,), start_time=now, admitted_time=now)
    manifest = {**job("large", workers=replicas), "apiVersion": "muster.dev/v1alpha1", "status": status.wire()}
    env = {**os.environ, "PYTHONPATH": f"{earlier / 'operator'}:{earlier / 'contract'}"}
    decided = subprocess.run(
        [sys.executable, "-c", DECIDES], input=json.dumps(manifest), env=env, capture_output=True, text=True, timeout=60
    )
    assert decided.returncode == 0, decided.stderr
    assert json.loads(decided.stdout) == [attempt, 0, actions]
