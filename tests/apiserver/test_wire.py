"""What the operator says to the API server, from the server's own audit log."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from muster.control.reconciler import CALM_SECONDS, STARTING_SECONDS
from tests.support.api_server.api import Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.operators import OperatorProcess, operating

pytestmark = pytest.mark.usefixtures("operator")

SELECTED = ("pods", "services", "networkpolicies")


def plural(request: Object) -> str:
    return str(request.get("objectRef", {}).get("resource", ""))


def about_jobs(requests: list[Object]) -> list[Object]:
    """The requests that the leader makes because of jobs. It lists presets every ten seconds in any case."""
    others = ("leases", "endpointslices", "tokenreviews", "subjectaccessreviews", "trainingpresets")
    return [each for each in requests if plural(each) not in others]


def test_the_operator_watches_with_selectors_and_writes_only_its_own_objects(
    jobs: Jobs, kubelet: Kubelet, nodes: Nodes, cluster: Cluster, operator: OperatorProcess
) -> None:
    before = len(cluster.requests())
    jobs.submit(job("digits"))
    jobs.reaches("digits", "Running")
    kubelet.end(jobs.pods("digits")[0], 137)
    jobs.reaches("digits", "Running", attempt=1)
    nodes.ends = lambda pod: 0
    for pod in jobs.pods("digits"):
        kubelet.end(pod, 0)
    jobs.reaches("digits", "Succeeded")
    assert operator.stop() == 0  # its watches are in the audit log now
    requests = cluster.requests()[before:]
    looks = [each for each in cluster.requests() if each["verb"] in ("list", "watch") and plural(each) in SELECTED]
    assert {(each["verb"], plural(each)) for each in looks} >= {
        ("list", "pods"),
        ("watch", "pods"),
        ("list", "services"),
        ("watch", "services"),
    }
    for look in looks:
        [selector] = parse_qs(urlsplit(look["requestURI"]).query).get("labelSelector", ["none"])
        assert selector.startswith("muster.dev/job-name"), look["requestURI"]
    assert not [each["requestURI"] for each in requests if each["verb"] in ("patch", "deletecollection")]
    written = {
        (each["verb"], plural(each), each["objectRef"].get("subresource", ""))
        for each in about_jobs(requests)
        if each["verb"] not in ("get", "list", "watch")
    }
    assert written <= {
        ("update", "trainingjobs", "status"),
        ("delete", "trainingjobs", ""),
        *((verb, "pods", "") for verb in ("create", "delete")),
        *(("create", kind, "") for kind in ("services", "networkpolicies", "events")),
    }
    refused = [(each["requestURI"], 403) for each in requests if each.get("responseStatus", {}).get("code") == 403]
    assert refused == [], "the chart gives all the rights that it uses"
    for obj in [jobs.get("digits"), *jobs.pods("digits")]:
        assert not obj["metadata"].get("finalizers")
        assert not obj["metadata"].get("annotations")


def test_events_of_pods_cause_no_reads(jobs: Jobs, kubelet: Kubelet, nodes: Nodes, cluster: Cluster, operator: OperatorProcess) -> None:
    jobs.submit(job("digits"))
    jobs.reaches("digits", "Running")
    jobs.submit(job("earlier", workers=1))  # when this one runs, the operator has finished with the other
    jobs.reaches("earlier", "Running")
    settled = len(about_jobs(cluster.requests()))
    [pod, _] = jobs.pods("digits")
    for number in range(100):
        kubelet.set_status(pod, {"message": f"event {number}"})
    jobs.submit(job("later", workers=1))  # when this one runs, the operator has received the hundred events too
    jobs.reaches("later", "Running")
    new = about_jobs(cluster.requests())[settled:]
    reads = [each["requestURI"] for each in new if each["verb"] in ("get", "list")]
    pages = [uri for uri in reads if "limit=" in uri and "digits" not in uri]
    assert [uri for uri in reads if uri not in pages and "later" not in uri and "earlier" not in uri] == []
    rounds = [uri for uri in pages if urlsplit(uri).path == "/apis/muster.dev/v1beta1/trainingjobs" and "continue=" not in uri]
    assert len(rounds) <= 2, "a young operator may still list everything twice, because its watches have just started"


def test_a_job_costs_few_writes_from_its_creation_to_its_success(
    jobs: Jobs, kubelet: Kubelet, nodes: Nodes, cluster: Cluster, operator: OperatorProcess
) -> None:
    before, begun = len(cluster.requests()), time.monotonic()
    jobs.submit(job("digits", workers=8))
    jobs.reaches("digits", "Running")
    runs = time.monotonic()
    for pod in jobs.pods("digits"):
        kubelet.end(pod, 0)
    jobs.reaches("digits", "Succeeded")
    late = (runs - begun) / STARTING_SECONDS + (time.monotonic() - runs) / CALM_SECONDS  # a slow machine starts and ends them over time
    requests = about_jobs(cluster.requests()[before:])
    writes = Counter(plural(each) for each in requests if each["verb"] not in ("get", "list", "watch") and plural(each) != "events")
    statuses = writes.pop("trainingjobs")
    assert writes == {"pods": 8, "services": 1, "networkpolicies": 1}
    # three to six of them, where one for each pod that starts or ends would be sixteen
    assert statuses <= 8 + late, statuses


def test_an_operator_of_some_namespaces_sends_requests_only_for_these(
    jobs: Jobs, nodes: Nodes, cluster: Cluster, tmp_path: Path, operator: OperatorProcess
) -> None:
    assert operator.stop() == 0
    other = Jobs(cluster.admin, cluster.namespace("other"))
    began = datetime.now(UTC)
    with operating(cluster, tmp_path / "namespaced", namespaces=[jobs.namespace]) as namespaced:
        other.submit(job("foreign"))
        jobs.submit(job("digits"))
        jobs.reaches("digits", "Running")
        assert namespaced.stop() == 0
    about = [
        each
        for each in cluster.requests()
        # by the time of the request: a watch of a stopped operator is recorded when it ends, which may be later
        if datetime.fromisoformat(each["requestReceivedTimestamp"]) >= began
        and plural(each) in ("pods", "services", "networkpolicies", "trainingjobs", "events")
    ]
    assert {each["objectRef"].get("namespace") for each in about} == {jobs.namespace}
    assert ("watch", "pods") in {(each["verb"], plural(each)) for each in about}
    assert other.status("foreign") == {}
    cluster.empty(other.namespace)
