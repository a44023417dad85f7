"""What the tests of Muster rely on: an API server alone, and a cluster whose network and faults are what they claim to be."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_cluster import Cluster, CommandFailedError, Places, Programs

SERVER = "server"
PORT = 2379


@pytest.fixture
def address(cluster: Cluster) -> Iterator[str]:
    """The address of a pod on the last worker that listens on PORT: an etcd, as every node has its image."""
    etcd = cluster.get("pods", "-n", "kube-system", "-l", "component=etcd")["items"][0]["spec"]["containers"][0]["image"]
    listen = f"http://0.0.0.0:{PORT}"
    command = ["etcd", "--data-dir=/tmp/etcd", f"--listen-client-urls={listen}", f"--advertise-client-urls={listen}"]
    placed = {"spec": {"nodeName": cluster.workers()[-1], "terminationGracePeriodSeconds": 0}}
    overrides = f"--overrides={json.dumps(placed)}"
    cluster.kubectl("delete", "pod,service", SERVER, "--ignore-not-found", "--force", "--grace-period=0")
    cluster.kubectl("run", SERVER, f"--image={etcd}", "--restart=Always", overrides, "--command", "--", *command)
    cluster.kubectl("expose", "pod", SERVER, f"--port={PORT}")
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{SERVER}", "--timeout=180s", timeout=190)
    cluster.wait_until("the server listens", lambda: server_connects(cluster, cluster.workers()[-1]), timeout=120)
    yield str(cluster.get("pod", SERVER)["status"]["podIP"])
    cluster.kubectl("delete", "pod,service", SERVER, "--force", "--grace-period=0")


def connects(cluster: Cluster, node: str, address: str, port: int = PORT) -> bool:
    try:
        cluster.execute(node, "timeout", "3", "bash", "-c", f"echo > /dev/tcp/{address}/{port}")
    except CommandFailedError:
        return False
    return True


def assert_refused(cluster: Cluster, node: str, address: str) -> None:
    with pytest.raises(CommandFailedError, match="Connection refused"):
        cluster.execute(node, "timeout", "30", "bash", "-c", f"echo > /dev/tcp/{address}/80")


def server_connects(cluster: Cluster, node: str) -> bool:
    """Whether a node reaches the server. The pod has no address while its sandbox is created again."""
    address = cluster.get("pod", SERVER)["status"].get("podIP")
    return address is not None and connects(cluster, node, address)


def ready(cluster: Cluster, node: str) -> str:
    conditions: list[dict[str, Any]] = cluster.get("node", node)["status"]["conditions"]
    return next(each["status"] for each in conditions if each["type"] == "Ready")


def test_an_api_server_alone_takes_objects_and_has_no_nodes(api_server: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(api_server)}
    kubectl = Programs(Places.default()).path("kubectl")
    subprocess.run([kubectl, "create", "configmap", "here", "--from-literal=a=b"], env=environment, check=True, timeout=60)
    completed = subprocess.run(
        [kubectl, "get", "configmap,node", "-o", "name"], env=environment, check=True, timeout=60, capture_output=True
    )
    assert completed.stdout.decode().split() == ["configmap/here"]


def test_a_pod_is_reached_from_every_node_by_its_address_and_its_service(cluster: Cluster, address: str) -> None:
    service = cluster.get("service", SERVER)["spec"]["clusterIP"]
    for node in cluster.nodes():
        for reached in (address, service):
            cluster.wait_until(f"{node.name} reaches {reached}", lambda: connects(cluster, node.name, reached), timeout=120)  # noqa: B023


def test_a_service_address_that_nobody_has_is_refused_in_the_node(cluster: Cluster) -> None:
    for node in cluster.nodes():
        assert_refused(cluster, node.name, "10.96.200.200")


def test_nothing_leaves_the_cluster_through_an_engine_of_our_own(cluster: Cluster) -> None:
    if cluster.engine is None or not cluster.engine.own:
        pytest.skip("an engine that was there before is left as it is")
    assert_refused(cluster, cluster.workers()[0], "198.51.100.7")


def test_a_node_that_was_cut_off_is_reached_again_at_the_same_address(cluster: Cluster, address: str) -> None:
    first, *_, last = [node.name for node in cluster.nodes()]
    before = cluster.get("node", last)["status"]["addresses"]
    cluster.disconnect_node(last)
    assert not connects(cluster, first, address)
    cluster.reconnect_node(last)
    cluster.wait_until("the pod answers again", lambda: connects(cluster, first, address), timeout=120)
    assert cluster.get("node", last)["status"]["addresses"] == before


def test_a_killed_node_comes_back_with_its_routes_and_its_guard(cluster: Cluster, address: str) -> None:
    first, *_, last = [node.name for node in cluster.nodes()]
    cluster.kill_node(last)
    cluster.wait_until("it has ended", lambda: {node.name: node.state for node in cluster.nodes()}[last] == "exited", timeout=60)
    cluster.start_node(last)
    cluster.wait_until("its pod answers", lambda: server_connects(cluster, first), timeout=180)
    assert_refused(cluster, last, "10.96.200.200")


def test_a_frozen_node_is_missed_and_goes_on_when_thawed(cluster: Cluster) -> None:
    last = cluster.workers()[-1]
    cluster.pause_node(last)
    try:
        assert {node.name: node.state for node in cluster.nodes()}[last] == "paused"
        cluster.wait_until("the node is missed", lambda: ready(cluster, last) == "Unknown", timeout=180)
    finally:
        cluster.unpause_node(last)
    cluster.wait_until("the node is ready again", lambda: ready(cluster, last) == "True", timeout=120)


def test_what_a_pod_writes_to_a_shared_claim_lies_in_the_folder_that_all_nodes_see(cluster: Cluster) -> None:
    folder = cluster.make_shared_claim("shared-test")
    try:
        cluster.wait_until("bound", lambda: cluster.get("pvc", "shared-test")["status"].get("phase") == "Bound", timeout=60)
        (folder / "file").write_text("from the host")
        for node in cluster.nodes():
            assert cluster.execute(node.name, "cat", "/shared/default/shared-test/file") == "from the host"
    finally:
        cluster.remove_shared_claim("shared-test")
    assert not folder.exists()
