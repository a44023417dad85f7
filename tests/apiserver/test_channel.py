"""The coordination channel, with real tokens of a real API server."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
import zlib
from collections import Counter
from contextlib import closing, suppress

import pytest

from muster.channel.pacing import JITTER, SHORTEST_INTERVAL
from muster.channel.tokens import REVIEWS, REVIEWS_PER_SECOND
from muster.operator.channel import PROGRESS_SECONDS
from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.cluster import RELEASE_NAMESPACE, Cluster
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.operators import ADDRESS, OperatorProcess
from tests.support.api_server.reports import post, progress, report, tell, token
from tests.support.waiting import wait_until


@pytest.fixture
def operator(shared_operator: OperatorProcess) -> OperatorProcess:
    return shared_operator


def refusals(operator: OperatorProcess, reason: str) -> int:
    """How many reports it has refused for this reason."""
    found = re.search(rf'^muster_channel_refused_total{{reason="{reason}"}} (\d+)', operator.figures(), re.MULTILINE)
    return int(found[1]) if found else 0


def running(jobs: Jobs, name: str, workers: int = 1) -> list[Object]:
    jobs.submit(job(name, workers=workers))
    jobs.reaches(name, "Running")
    return sorted(jobs.pods(name), key=lambda pod: str(pod["metadata"]["name"]))


def test_the_report_of_a_supervisor_is_in_the_status(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    [pod] = running(jobs, "digits")
    content = report(pod, progress=progress(120), checkpoint={"step": 100, "path": "step-00000100"}, phase="Training")
    status, reply = tell(operator, token(jobs, pod), content)
    assert status == 200
    assert reply["attempt"] == 0
    assert round(SHORTEST_INTERVAL * (1 - JITTER), 3) <= reply["intervalSeconds"] < 2  # the interval is rounded, too
    current = wait_until(lambda: (now := jobs.status("digits")).get("progress", {}).get("step") == 120 and now, "progress")
    assert (current["progress"]["percent"], current["progress"]["loss"]) == (12, "0.0083")
    assert (current["checkpoint"]["step"], current["checkpoint"]["path"]) == (100, "step-00000100")


def test_the_report_of_a_fetcher_is_in_the_status_and_all_pods_get_one_revision(
    jobs: Jobs, nodes: Nodes, operator: OperatorProcess
) -> None:
    nodes.runs = lambda pod: False
    jobs.submit(job("reads", workers=2, inputs=[{"name": "base", "source": "hf://org/tiny"}]))
    wait_until(lambda: len(jobs.pods("reads")) == 2, "its pods")
    first, second = sorted(jobs.pods("reads"), key=lambda pod: str(pod["metadata"]["name"]))
    assert [each["name"] for each in first["spec"]["initContainers"]] == ["muster-inputs"]

    def inputs(pod: Object, sequence: int, **fields: object) -> Object:
        return report(pod, sequence, inputs=[{"name": "base", "totalBytes": 8_000_000_000, **fields}])

    assert tell(operator, token(jobs, first), inputs(first, 1, revision="c1"))[0] == 200
    wait_until(lambda: (jobs.status("reads").get("inputs") or [{}])[0].get("revision") == "c1", "the revision of the job")
    _, reply = tell(operator, token(jobs, second), inputs(second, 1, revision="c2"))
    assert reply["revisions"] == {"base": "c1"}
    tell(operator, token(jobs, first), inputs(first, 2, revision="c1", phase="Ready", bytes=8_000_000_000))
    tell(operator, token(jobs, second), inputs(second, 2, revision="c1", phase="Fetching", bytes=3_100_000_000))
    status = wait_until(
        lambda: (found := jobs.status("reads")).get("inputs", [{}])[0].get("bytes") == 3_100_000_000 and found, "the bytes of the slowest"
    )
    [found] = status["inputs"]
    assert (found["phase"], found["ready"], found["replicas"], found["totalBytes"]) == ("Fetching", 1, 2, 8_000_000_000)
    assert "3.1 GB of 8.0 GB" in status["message"]
    for pod in (first, second):
        Kubelet(jobs.api).run(pod)
    assert jobs.reaches("reads", "Running")["inputs"][0]["phase"] == "Ready"


def test_a_job_that_starts_over_despite_a_commit_has_a_condition(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    [pod] = running(jobs, "digits")
    tell(operator, token(jobs, pod), report(pod, progress=progress(120), checkpoint={"step": 100, "path": "step-00000100"}))
    wait_until(lambda: jobs.status("digits").get("checkpoint"), "the commit is in the status")
    jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/digits-worker-0")
    jobs.reaches("digits", "Running", attempt=1)
    [pod] = jobs.pods("digits")
    tell(
        operator,
        token(jobs, pod),
        report(pod, resumed={"committedStep": None, "step": 0, "path": None, "skipped": []}, progress=progress(1)),
    )
    status = wait_until(
        lambda: condition(current := jobs.status("digits"), "ResumeRegression").get("status") == "True" and current,
        "the regression is in the condition",
    )
    assert condition(status, "ResumeRegression")["reason"] == "StartedOver"
    assert (status["attempts"][1]["stepResumed"], status["attempts"][1]["stepSkipped"]) == (0, 100)


def test_progress_alone_is_written_rarely(jobs: Jobs, nodes: Nodes, operator: OperatorProcess, cluster: Cluster) -> None:
    [pod] = running(jobs, "digits")
    bearer = token(jobs, pod)
    tell(operator, bearer, report(pod, sequence=1, progress=progress(1)))
    wait_until(lambda: jobs.status("digits").get("progress"), "the first progress")
    before, begun = len(cluster.requests()), time.monotonic()
    for step in range(2, 300):
        content = report(pod, sequence=step, progress=progress(step))
        wait_until(lambda content=content: tell(operator, bearer, content)[0] == 200, "a report in its turn: the pod's rate is limited")
    jobs.submit(job("later", workers=1))
    jobs.reaches("later", "Running")
    writes = [each for each in cluster.requests()[before:] if each["verb"] == "update" and each["requestURI"].endswith("/digits/status")]
    assert len(writes) <= 2 + (time.monotonic() - begun) / PROGRESS_SECONDS, "of 298 reports"
    reviews = [each for each in cluster.requests()[before:] if "tokenreviews" in each["requestURI"]]
    assert reviews == [], "a token that was good a moment ago is good"


def test_a_supervisor_without_a_valid_token_changes_nothing(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    mine, other = running(jobs, "digits", workers=2)
    [foreign] = running(jobs, "other")
    good, lie = token(jobs, mine), {"progress": progress(999)}
    body = json.dumps(report(mine, **lie)).encode()
    refused = {
        "no token": (post(operator, body, {}), 401),
        "no bearer": (post(operator, body, {"Authorization": "Basic eHg="}), 401),
        "an empty token": (post(operator, body, {"Authorization": "Bearer "}), 401),
        "a token that nobody made": (tell(operator, "abc.def.ghi", report(mine, **lie)), 401),
        "a token of another audience": (tell(operator, token(jobs, mine, "https://kubernetes.default.svc"), report(mine, **lie)), 401),
        "the token of another pod of the job": (tell(operator, token(jobs, other), report(mine, **lie)), 403),
        "the token of another job's pod": (tell(operator, token(jobs, foreign), report(mine, **lie)), 403),
        "no JSON": (post(operator, b"{", {"Authorization": f"Bearer {good}"}), 400),
        "no bytes": (post(operator, b"", {"Authorization": f"Bearer {good}"}), 400),
        "no text": (post(operator, b"\xff\xfe\x00" * 100, {"Authorization": f"Bearer {good}"}), 400),
        "a list": (post(operator, b"[]", {"Authorization": f"Bearer {good}"}), 400),
        "wrong types": (tell(operator, good, report(mine, progress="far")), 400),
        "a deep nest": (post(operator, b'{"a":' * 20_000 + b"1" + b"}" * 20_000, {"Authorization": f"Bearer {good}"}), 400),
        "too much": (tell(operator, good, report(mine, notices=[{"message": "x" * (1 << 18)}])), 413),
        "another path": (post(operator, body, {"Authorization": f"Bearer {good}"}, path="/v2/report"), 404),
    }
    for what, ((status, content), expected) in refused.items():
        assert status == expected, f"{what}: {content}"
        if expected in (401, 403, 413) or what.startswith("no "):
            assert content["message"], what
    assert tell(operator, good, report(mine))[0] == 200
    assert jobs.status("digits").get("progress") is None
    assert "Traceback" not in operator.log.read_text()


def test_values_out_of_bounds_are_refused_and_counted_and_the_job_continues(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    before = {reason: refusals(operator, reason) for reason in ("invalid", "attempt")}
    [pod] = running(jobs, "digits")
    bearer = token(jobs, pod)
    refused = {
        "progress.step": {"progress": {**progress(7), "step": 10**30}},
        "progress.samplesPerSecond": {"progress": {**progress(7), "samplesPerSecond": float("nan")}},
        "attempt": {"attempt": 10**12},
        "savedSeconds": {"savedSeconds": float("inf")},
        "termination.step": {"termination": {"code": 10, "step": 10**30}},
        "processes": {"processes": [{}] * 349_000},
    }
    for where, content in refused.items():
        status, reply = tell(operator, bearer, {**report(pod), **content})
        assert status == (413 if where == "processes" else 400), reply
        assert where == "processes" or where in reply["message"]
    status, _ = tell(operator, bearer, report(pod) | {"attempt": 2})
    assert status == 400
    largest = {**progress(2**53), "totalSteps": 2**53, "epoch": 2**53, "samplesPerSecond": 1e300, "updatedAt": 1e11}
    odd = {
        "notices": [{"message": "\x1b]0;owned\x07\n {{ }}" * 100}],
        "savedSeconds": 1e9,
        "checkpoint": {"step": 2**53, "path": "\x1b" * 9000, "seconds": 1e9},
    }
    assert tell(operator, bearer, report(pod, sequence=2, progress={**progress(2**53 - 9)}))[0] == 200
    wait_until(lambda: jobs.status("digits").get("progress"), "the progress is in the status")
    for sequence in (3, 4):  # from the second one on there is a rate, and so a time left
        assert tell(operator, bearer, report(pod, sequence=sequence, progress=largest, **odd))[0] == 200
    evaluation = {"step": 9, "metrics": {"accuracy": 0.5, "x" * 500: 1e300}}
    assert tell(operator, bearer, report(pod, sequence=5, progress=largest, evaluation=evaluation, **odd))[0] == 200
    status_ = wait_until(lambda: (current := jobs.status("digits")).get("checkpoint") and current, "the status is written")
    assert (status_["phase"], status_["attempt"], status_["checkpoint"]["step"]) == ("Running", 0, 2**53)
    assert status_["checkpoint"]["path"].startswith("\\x1b")
    assert not set("\x1b\x07\n") & set(json.dumps(status_, ensure_ascii=False))
    assert {reason: refusals(operator, reason) - count for reason, count in before.items()} == {"invalid": 5, "attempt": 1}
    assert operator.probe("healthz")[0] == 200
    assert "Traceback" not in operator.log.read_text()


def test_a_pod_without_a_controlling_job_is_not_accepted_as_a_supervisor(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    wait_until(lambda: "muster_supervisors 0" in operator.figures(), "no supervisor of another test counts")
    [pod] = running(jobs, "digits")
    forged = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "forged", "namespace": jobs.namespace, "labels": {**pod["metadata"]["labels"], "muster.dev/index": "7"}},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "trainer", "image": "none"}]},
    }
    forged = jobs.api.create(f"/api/v1/namespaces/{jobs.namespace}/pods", forged)
    status, reply = tell(operator, token(jobs, forged), report(forged))
    assert status == 404, reply
    assert "muster_supervisors 0" in operator.figures()


def test_only_users_with_the_permission_of_rbac_read_metrics(jobs: Jobs, operator: OperatorProcess, cluster: Cluster) -> None:
    accounts = f"/api/v1/namespaces/{jobs.namespace}/serviceaccounts/default/token"
    nobody = jobs.api.create(accounts, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})["status"]["token"]
    assert operator.scrape(None)[0] == 401
    assert operator.scrape("junk")[0] == 401
    assert operator.scrape(nobody)[0] == 403
    status, text = operator.scrape(cluster.scraper)
    assert (status, "muster_leader 1" in text) == (200, True)


def test_invalid_tokens_of_one_address_keep_no_new_reader_of_another_out(jobs: Jobs, operator: OperatorProcess) -> None:
    accounts = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/serviceaccounts/prometheus/token"
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    new = jobs.api.create(accounts, wanted)["status"]["token"]
    head, claims, _ = new.split(".")

    def scrape(bearer: str, source: str) -> int:
        unverified = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", operator.metrics, timeout=20, context=unverified, source_address=(source, 0))
        with closing(connection):
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {bearer}"})
            return connection.getresponse().status

    flood = [scrape(f"{head}.{claims}.{number}", "127.0.0.3") for number in range(30)]
    assert Counter(flood)[403] < 10, "the others are refused without a review"
    assert flood[-1] == 429
    assert scrape(new, "127.0.0.2") == 200


def test_the_token_of_a_deleted_pod_is_refused(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    [pod] = running(jobs, "digits")
    bearer = token(jobs, pod)
    jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/digits-worker-0")
    jobs.reaches("digits", "Running", attempt=1)
    status, _ = tell(operator, bearer, report(pod, progress=progress(999)))
    assert status in (401, 404)
    assert jobs.status("digits").get("progress") is None


def test_the_supervisor_of_a_failed_job_is_requested_to_end(jobs: Jobs, nodes: Nodes, kubelet: Kubelet, operator: OperatorProcess) -> None:
    jobs.submit(job("digits", workers=2, recovery={"application": {"limit": 0}}, cleanPodPolicy="None"))
    jobs.reaches("digits", "Running")
    survivor, failing = sorted(jobs.pods("digits"), key=lambda pod: str(pod["metadata"]["name"]))
    bearer = token(jobs, survivor)
    status, reply = tell(operator, bearer, report(survivor, progress=progress(1)))
    assert (status, "end" in reply) == (200, False)
    kubelet.end(failing, 1)
    # The verdict itself waits for this supervisor, since it may have better evidence of what happened.
    reply = wait_until(
        lambda: (now := tell(operator, bearer, report(survivor, sequence=2, progress=progress(1)))[1]).get("end") and now, "end"
    )
    assert "succeeded" not in reply
    assert "deletionTimestamp" not in jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/pods/digits-worker-0")["metadata"]


@pytest.mark.usefixtures("operator")
def test_the_service_leads_to_the_leader(cluster: Cluster, operator: OperatorProcess) -> None:
    name = cluster.configuration["coordination"]["service"]
    path = f"/apis/discovery.k8s.io/v1/namespaces/{RELEASE_NAMESPACE}/endpointslices/{name}"

    def endpoints() -> Object:
        return cluster.admin.get(path)

    def leads_to_the_leader() -> bool:
        with suppress(ApiError):  # it does not exist before there is a leader
            return any(each["port"] == operator.coordination for each in endpoints().get("ports") or ())
        return False

    wait_until(leads_to_the_leader, "the slice names the leader's port")
    assert endpoints()["endpoints"][0]["addresses"] == [ADDRESS]
    service = cluster.admin.get(f"/api/v1/namespaces/{RELEASE_NAMESPACE}/services/{name}")
    assert endpoints()["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert "selector" not in service["spec"]
    assert endpoints()["ports"][0]["name"] == service["spec"]["ports"][0]["name"]


def test_a_compressed_report_is_refused_and_malformed_tokens_cost_no_reviews(
    jobs: Jobs, nodes: Nodes, operator: OperatorProcess, cluster: Cluster
) -> None:
    """Last, because the operator may refuse tokens that it has not seen for a while afterwards."""
    [pod] = running(jobs, "digits")
    good = token(jobs, pod)
    body = zlib.compress(json.dumps(report(pod)).encode())
    assert post(operator, body, {"Authorization": f"Bearer {good}", "Content-Encoding": "deflate"})[0] == 415
    assert tell(operator, good, report(pod))[0] == 200
    before, begun = len(cluster.requests()), time.monotonic()
    head, claims, _ = good.split(".")
    bogus = [f"{head}.{claims}.{number}" for number in range(100)] + [f"junk-{number}" for number in range(100)]
    assert {tell(operator, each, report(pod))[0] for each in bogus} == {401, 429}
    assert tell(operator, good, report(pod, sequence=2))[0] == 200, "they keep nobody out"
    reviews = [each for each in cluster.requests()[before:] if "tokenreviews" in each["requestURI"]]
    assert len(reviews) <= REVIEWS + REVIEWS_PER_SECOND * (time.monotonic() - begun), "of 200"
