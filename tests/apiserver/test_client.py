"""The Python client on a real API server with the operator at work."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.logs import NODE, log_node
from tests.support.waiting import wait_until

SECONDS = 240.0


pytestmark = pytest.mark.usefixtures("shared_operator")


@pytest.fixture
def client(cluster: Cluster, namespace: str) -> Iterator[muster.Client]:
    with muster.Client(kubeconfig=str(cluster.kubeconfig), namespace=namespace) as client:
        yield client


def digits(name: str = "digits", **spec: object) -> muster.TrainingJob:
    return muster.job(name, strategy="DDP", trainer=muster.Trainer(task="digits"), roles={"worker": muster.Role(replicas=1)}, **spec)


def test_a_job_is_submitted_changed_and_waited_for(client: muster.Client, jobs: Jobs, nodes: Nodes) -> None:
    submitted = client.submit(digits())
    phases: list[muster.Phase] = []
    status = submitted.wait(until="Running", timeout=SECONDS, on_progress=lambda progress: phases.append(progress.phase))
    assert status.phase is muster.Phase.RUNNING
    assert phases[-1] is muster.Phase.RUNNING
    assert "The job runs" in str(submitted.explain())
    assert [each.name for each in client.list()] == ["digits"]
    submitted.scale(2)
    wait_until(lambda: submitted.status.workers == "2/2", "two workers run", seconds=SECONDS)
    submitted.suspend()
    assert submitted.wait(until="Suspended", timeout=SECONDS).phase is muster.Phase.SUSPENDED
    submitted.resume()
    submitted.wait(until="Running", timeout=SECONDS)
    nodes.ends = lambda pod: 0
    client.submit(digits("short")).wait(timeout=SECONDS)
    submitted.delete()
    with pytest.raises(muster.NoJobError):
        client.get("digits")


def fit(epochs: int) -> None:
    print(epochs)


def test_a_function_goes_to_the_pods_in_a_config_map_of_its_job(client: muster.Client, jobs: Jobs) -> None:
    submitted = client.train(fit, strategy="DDP", roles={"worker": muster.Role(replicas=2)}, arguments={"epochs": 3})
    stored = jobs.get(submitted.name)
    trainer = stored["spec"]["trainer"]
    config_map = jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/configmaps/{trainer['code']['configMap']['name']}")
    assert (submitted.name, list(config_map["data"])) == ("fit", [trainer["script"]])
    assert "def fit(epochs: int)" in config_map["data"][trainer["script"]]
    assert [owner["uid"] for owner in config_map["metadata"]["ownerReferences"]] == [stored["metadata"]["uid"]]


def test_errors_of_the_client_equal_those_of_the_commands(
    client: muster.Client, jobs: Jobs, nodes: Nodes, cluster: Cluster, tmp_path: Path
) -> None:
    nodes.ends = lambda pod: 1
    broken = client.submit(digits("broken", recovery=muster.Recovery.model_validate({"application": {"limit": 0}})))
    with pytest.raises(muster.JobFailedError) as failed:
        broken.wait(timeout=SECONDS)
    assert failed.value.reason == "ApplicationLimitExceeded"
    assert failed.value.status.phase is muster.Phase.FAILED
    with pytest.raises(muster.ConflictError, match="job broken"):
        client.submit(digits("broken"))
    with pytest.raises(muster.NoJobError, match="did you mean broken"):
        client.get("broke")
    with pytest.raises(muster.RefusedError, match="has no such pods"):
        broken.logs(replica="worker-7")
    config = json.loads(cluster.kubeconfig.read_text())
    stranger = tmp_path / "stranger"
    stranger.write_text(json.dumps({**config, "users": [{"name": "admin", "user": {"token": "wrong"}}]}))
    with muster.Client(kubeconfig=str(stranger)) as other, pytest.raises(muster.NoRightsError, match="credentials"):
        other.list()


def test_waiting_ends_in_time_and_when_the_job_is_deleted(client: muster.Client, jobs: Jobs) -> None:
    pending = client.submit(digits())
    with pytest.raises(muster.WaitTimeoutError, match=r"after 0\.5 s; the job goes on"):
        pending.wait(timeout=0.5)
    seen = threading.Event()

    def delete() -> None:
        assert seen.wait(SECONDS)
        jobs.delete("digits")

    deleting = threading.Thread(target=delete)
    deleting.start()
    with pytest.raises(muster.NoJobError, match="digits was deleted"):
        pending.wait(timeout=SECONDS, on_progress=lambda _: seen.set())
    deleting.join()


def test_waiting_continues_after_a_restart_of_the_api_server(
    client: muster.Client, jobs: Jobs, kubelet: Kubelet, nodes: Nodes, cluster: Cluster
) -> None:
    running = client.submit(digits())
    updates = running.updates(timeout=SECONDS)
    while next(updates).status.phase is not muster.Phase.RUNNING:
        pass
    with cluster.down():
        pass
    kubelet.end(jobs.pods("digits")[0], 0)
    assert [update.status.phase for update in updates][-1] is muster.Phase.SUCCEEDED


def test_logs_are_read_and_followed(client: muster.Client, jobs: Jobs, kubelet: Kubelet, cluster: Cluster, tmp_path: Path) -> None:
    with log_node(cluster.admin, tmp_path) as node:
        submitted = client.submit(digits())
        pods = wait_until(lambda: jobs.pods("digits"), "a pod of the job", seconds=SECONDS)
        kubelet.bind(pods[0], NODE)
        kubelet.run({**pods[0], "spec": {**pods[0]["spec"], "nodeName": NODE}})
        submitted.wait(until="Running", timeout=SECONDS)
        node.write("digits-worker-0", "first")
        following = submitted.follow_logs()
        assert next(following) == "[worker-0] first"
        node.write("digits-worker-0", "second")
        assert next(following) == "[worker-0] second"
        following.close()
        assert submitted.logs(tail=1) == ["[worker-0] second"]


def test_the_asynchronous_client_waits_for_several_jobs_at_once(jobs: Jobs, nodes: Nodes, cluster: Cluster, namespace: str) -> None:
    nodes.ends = lambda pod: 0

    async def work() -> list[muster.TrainingJobStatus]:
        async with muster.AsyncClient(kubeconfig=str(cluster.kubeconfig), namespace=namespace) as client:
            submitted = [await client.submit({**job(name, workers=1)}) for name in ("one", "two")]
            return await asyncio.gather(*(each.wait(timeout=SECONDS) for each in submitted))

    assert [status.phase for status in asyncio.run(work())] == [muster.Phase.SUCCEEDED] * 2
