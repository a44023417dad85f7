"""Jobs that MultiKueue copies from a manager, which has no nodes, to a worker: two control planes, each with Kueue 0.17.0 and an operator.
The worker is the cluster of the other tests."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.ports import free_ports
from muster.client.connection import Target, connected
from muster.client.snapshot import snapshot_of
from muster.explain.explain import Finding, explain
from tests.kueue.conftest import QUOTA
from tests.kueue.test_kueue import queued_job, workload
from tests.support.api_server.api import Object
from tests.support.api_server.cluster import Cluster, running
from tests.support.api_server.fake_nodes import add_node, scheduling
from tests.support.api_server.jobs import Jobs
from tests.support.api_server.kubelet import Kubelet
from tests.support.api_server.kueue import API, VERSION, define, kueue, kueue_object, quota
from tests.support.api_server.operators import OperatorProcess, operating
from tests.support.object_store import BUCKET, ObjectStore, object_store
from tests.support.supervisors import SupervisorRun
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(VERSION == "v1beta1", reason="this Kueue has no adapter for kinds of others")

LOST_SECONDS = 5
"""Time after which the manager takes a job away from a worker that does not answer."""
GRACE_SECONDS = 5
MANAGED_BY = "kueue.x-k8s.io/multikueue"
DOCUMENTED = Path(__file__).parents[2] / "docs" / "queues.md"


def documented(kind: str, name: str) -> Object:
    """An object of the page of the documentation."""
    blocks = DOCUMENTED.read_text().split("```yaml\n")[1:]
    objects: list[Object] = [each for block in blocks for each in yaml.safe_load_all(block.split("```")[0])]
    [found] = [each for each in objects if each.get("kind") == kind and each["metadata"]["name"] == name]
    return found


@dataclass
class Clusters:
    """The jobs of one namespace, in the manager and in the worker."""

    manager: Jobs
    worker: Jobs
    manager_cluster: Cluster
    worker_cluster: Cluster

    def findings(self, name: str) -> tuple[Finding, ...]:
        """What `muster explain` finds in the manager."""

        async def look() -> tuple[Finding, ...]:
            target = Target(self.manager.namespace, kubeconfig=str(self.manager_cluster.kubeconfig))
            async with connected(target) as connection:
                return explain(await snapshot_of(connection, name)).findings

        return asyncio.run(look())

    def copy(self, name: str) -> Object:
        """The job in the worker, once it is there."""
        return wait_until(lambda: next((each for each in self.copies() if each["metadata"]["name"] == name), None), f"{name} is copied")

    def copies(self) -> list[Object]:
        return self.worker.api.items(self.worker.path("").rstrip("/"))

    def pod(self, name: str) -> Object:
        """The only pod of the job in the worker, once it runs and belongs to the newest copy."""

        def look() -> Object | None:
            uid = self.copy(name)["metadata"]["uid"]
            pods = [each for each in self.worker.pods(name) if each["metadata"]["labels"]["muster.dev/job-uid"] == uid]
            return next((each for each in pods if each["status"].get("phase") == "Running"), None)

        return wait_until(look, f"the pod of {name} runs")


@pytest.fixture(scope="module")
def manager(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("manager")
    with running(folder, controllers=True, options=["--set", "queueing.kueue.enabled=true"]) as manager:
        define(manager.admin)
        frameworks = [{"name": "TrainingJob.v1beta1.muster.dev"}]
        settings = {"gcInterval": "5s", "workerLostTimeout": f"{LOST_SECONDS}s", "externalFrameworks": frameworks}
        with kueue(folder, manager.kubeconfig, multiKueue=settings):
            admin = manager.admin
            admin.create("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
            admin.create("/api/v1/namespaces/kueue-system/secrets", secret_for(cluster, "east"))
            admin.create(f"{API}/multikueueclusters", documented("MultiKueueCluster", "east"))
            admin.create(f"{API}/multikueueconfigs", documented("MultiKueueConfig", "workers"))
            admin.create(f"{API}/admissionchecks", documented("AdmissionCheck", "workers"))
            admin.create(f"{API}/resourceflavors", kueue_object("ResourceFlavor", "main", {}))
            checks = {"admissionChecksStrategy": {"admissionChecks": [{"name": "workers"}]}}
            spec = {"namespaceSelector": {}, "resourceGroups": quota("main", QUOTA), **checks}
            admin.create(f"{API}/clusterqueues", kueue_object("ClusterQueue", "all", spec))
            yield manager


def secret_for(worker: Cluster, name: str) -> Object:
    """A kubeconfig for the manager's Kueue, with the rights that the documentation names and no others."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    worker.admin.create(accounts, {"metadata": {"name": "multikueue"}})
    role = documented("ClusterRole", "muster-multikueue-worker")
    role["rules"].append({"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "watch"]})  # for the framework that Kueue enables
    worker.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    binding = {
        "metadata": {"name": "muster-multikueue-worker"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": "multikueue", "namespace": "default"}],
    }
    worker.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
    token = worker.admin.create(f"{accounts}/multikueue/token", wanted)["status"]["token"]
    authority = base64.b64encode(Path(worker.admin.authority).read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": worker.admin.server, "certificate-authority-data": authority}}],
        "users": [{"name": "multikueue", "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "multikueue"}}],
        "current-context": name,
    }
    return {"metadata": {"name": name}, "stringData": {"kubeconfig": json.dumps(config)}}


@pytest.fixture(scope="module")
def manager_operator(manager: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with operating(manager, tmp_path_factory.mktemp("manager-operator")) as operator:
        yield operator


@pytest.fixture
def clusters(cluster: Cluster, jobs: Jobs, manager: Cluster, manager_operator: OperatorProcess) -> Iterator[Clusters]:
    manager.admin.create("/api/v1/namespaces", {"metadata": {"name": jobs.namespace}})
    queues = f"{API}/namespaces/{jobs.namespace}/localqueues"
    manager.admin.create(queues, kueue_object("LocalQueue", "team", {"clusterQueue": "all"}))
    clusters = Clusters(Jobs(manager.admin, jobs.namespace), jobs, manager, cluster)
    yield clusters
    manager.empty(jobs.namespace)
    wait_until(lambda: not clusters.copies(), "no copy is left")


@pytest.fixture
def west(clusters: Clusters, manager: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """The same namespace in another worker, to which the manager copies nothing yet."""
    folder, namespace = tmp_path_factory.mktemp("west"), clusters.manager.namespace
    with scheduling(folder, options=["--set", "queueing.kueue.enabled=true"]) as west:
        admin = west.admin
        define(admin)
        with kueue(folder, west.kubeconfig), operating(west, folder / "operator"):
            add_node(admin, "main-0", cpu=4)
            admin.create(f"{API}/resourceflavors", kueue_object("ResourceFlavor", "main", {}))
            spec = {"namespaceSelector": {}, "resourceGroups": quota("main", QUOTA)}
            admin.create(f"{API}/clusterqueues", kueue_object("ClusterQueue", "all", spec))
            admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
            admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
            queue = kueue_object("LocalQueue", "team", {"clusterQueue": "all"})
            admin.create(f"{API}/namespaces/{namespace}/localqueues", queue)
            manager.admin.create("/api/v1/namespaces/kueue-system/secrets", secret_for(west, "west"))
            source = {"clusterSource": {"kubeConfig": {"locationType": "Secret", "location": "west"}}}
            manager.admin.create(f"{API}/multikueueclusters", kueue_object("MultiKueueCluster", "west", source))
            yield Jobs(admin, namespace)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3") / "data") as store:
        yield store


def copied_job(name: str, workers: int = 1, **spec: Any) -> Object:
    checkpoint = {"gracePeriodSeconds": GRACE_SECONDS, **spec.pop("checkpoint", {})}
    return queued_job(name, workers, managedBy=MANAGED_BY, checkpoint=checkpoint, **spec)


def train(pod: Object, folder: Path, store: ObjectStore, **changed: str) -> SupervisorRun:
    """Starts the trainer of a pod of kwok, which runs nothing, as a process here. Only addresses and paths are others."""
    folder.mkdir()
    environment = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
    here = ("MUSTER_STATE_DIR", "MUSTER_TERMINATION_LOG", "MUSTER_POD_NAME", "MUSTER_POD_UID", "MUSTER_TOKEN_FILE")
    environment = {name: value for name, value in environment.items() if name not in here and "COORDINATOR" not in name}
    environment["MUSTER_TRAINER"] = environment["MUSTER_TRAINER"].replace("$$(", "$(")
    local = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "PYTHONPATH": "", "HOME": str(folder)}
    return SupervisorRun(folder).start(**{**environment, **local, **store.variables, **changed})


def losses(*runs: SupervisorRun) -> dict[int, str]:
    """Step to the exact loss of the run that did it last."""
    return {each["step"]: each["lossHex"] for run in runs for each in run.events() if each["event"] == "step"}


def test_a_job_is_copied_and_resumes_bit_for_bit_when_it_is_evicted_and_copied_again(
    clusters: Clusters, store: ObjectStore, tmp_path: Path
) -> None:
    manager, worker = clusters.manager, clusters.worker
    config = {"epochs": 3, "seed": 7, "deterministic": True, "stepDelaySeconds": 0.2}
    storage = {"everySteps": 5, "storage": {"uri": f"s3://{BUCKET}/runs"}}
    manager.submit(copied_job("digits", trainer={"task": "digits", "config": config}, checkpoint=storage))
    manager.reaches("digits", "Running")
    first = clusters.copy("digits")
    assert first["spec"]["managedBy"] == "muster.dev/operator"
    remote = workload(worker, "digits")
    assert remote is not None
    assert remote["metadata"]["ownerReferences"][0]["uid"] == first["metadata"]["uid"]
    assert manager.pods("digits") == []
    [place, *_] = clusters.findings("digits")
    assert (place.cause.id, "another cluster (east)" in place.sentence) == ("InWorkerCluster", True)
    run = train(clusters.pod("digits"), tmp_path / "first", store)
    wait_until(lambda: len(losses(run)) > 12, "it trains")

    queue = f"{API}/namespaces/{worker.namespace}/localqueues/team"
    worker.api.patch(queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
    wait_until(lambda: not worker.pods("digits"), "its pod is deleted")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 21
    wait_until(lambda: not clusters.copies(), "the manager takes the job back")
    wait_until(lambda: clusters.findings("digits")[0].cause.id == "WorkersWait", "explain says that it waits for a worker")
    worker.api.patch(queue, {"spec": {"stopPolicy": "None"}})

    second = clusters.copy("digits")
    assert second["metadata"]["creationTimestamp"] > first["metadata"]["creationTimestamp"]
    again = train(clusters.pod("digits"), tmp_path / "second", store)
    assert again.wait() == 0, again.err.read_text()
    [resumed] = [each for each in again.events() if each["event"] == "resumed"]
    assert resumed["step"] == max(losses(run)) > 0
    pod = clusters.pod("digits")
    whole = train(pod, tmp_path / "whole", store, MUSTER_TRAINER=changed(pod, directory="-whole", stepDelaySeconds=0.0))
    assert whole.wait() == 0
    assert losses(run, again) == losses(whole)

    Kubelet(worker.api).end(pod, 0)
    manager.reaches("digits", "Succeeded")
    wait_until(lambda: workload(manager, "digits") is None and not clusters.copies(), "nothing is left but the job of the manager")
    assert manager.status("digits")["phase"] == "Succeeded"


def test_the_copy_of_a_suspended_or_deleted_job_is_deleted(clusters: Clusters) -> None:
    manager = clusters.manager
    manager.submit(copied_job("digits"))
    manager.reaches("digits", "Running")
    manager.patch("digits", {"spec": {"suspend": True}})
    wait_until(lambda: not clusters.copies() and workload(manager, "digits") is None, "the copy is deleted")
    manager.patch("digits", {"spec": {"suspend": False}})
    clusters.pod("digits")
    manager.delete("digits")
    wait_until(lambda: not clusters.copies() and workload(manager, "digits") is None, "the next copy is deleted")


def test_a_job_of_a_lost_worker_goes_on_in_another_and_the_lost_copy_saves_no_more(
    clusters: Clusters, west: Jobs, store: ObjectStore, tmp_path: Path
) -> None:
    manager, configuration = clusters.manager, f"{API}/multikueueconfigs/workers"
    config = {"epochs": 30, "seed": 7, "deterministic": True, "stepDelaySeconds": 0.2}
    storage = {"everySteps": 5, "storage": {"uri": f"s3://{BUCKET}/lost"}}
    manager.submit(copied_job("digits", trainer={"task": "digits", "config": config}, checkpoint=storage))
    lost = train(clusters.pod("digits"), tmp_path / "lost", store)
    wait_until(lambda: len(losses(lost)) > 12, "it trains")
    manager.api.patch(configuration, {"spec": {"clusters": ["east", "west"]}})
    try:
        with clusters.worker_cluster.down():
            [pod] = west.pods_of("digits", 1)
            again = train(pod, tmp_path / "again", store, MUSTER_TRAINER=changed(pod, stepDelaySeconds=0.05))
            assert lost.wait() == 20  # a higher fence has taken over
        [resumed] = wait_until(lambda: [each for each in again.events() if each["event"] == "resumed"], "it resumes")
        assert 0 < resumed["step"] <= max(losses(lost))
        wait_until(lambda: [each["metadata"]["name"] for each in clusters.copies()] == [], "the lost copy is deleted", 60)
        assert again.wait() == 0, again.err.read_text()
        Kubelet(west.api).end(pod, 0)
        manager.reaches("digits", "Succeeded")
    finally:
        manager.api.patch(configuration, {"spec": {"clusters": ["east"]}})


def changed(pod: Object, *, directory: str = "", **config: Any) -> str:
    """The trainer's document of this pod with other settings, and with checkpoints in another folder if its name is made longer."""
    [text] = [each["value"] for each in pod["spec"]["containers"][0]["env"] if each["name"] == "MUSTER_TRAINER"]
    document = json.loads(text.replace("$$(", "$("))
    document["checkpoint"]["directory"] += directory
    document["config"] |= config
    return json.dumps(document)
