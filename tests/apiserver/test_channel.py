"""The coordination channel, with real tokens of a real API server."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest
from tests.apiserver.stage.api import Object, until
from tests.apiserver.stage.cluster import RELEASE_NAMESPACE, Cluster
from tests.apiserver.stage.jobs import Jobs, condition, job
from tests.apiserver.stage.kubelet import Nodes
from tests.apiserver.stage.operators import ADDRESS, OperatorProcess

from muster.control.coordination import JITTER, SHORTEST_INTERVAL


def token(jobs: Jobs, pod: Object, audience: str = "muster") -> str:
    """What a kubelet writes into the projected volume of this pod."""
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    spec = {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound}
    folder = f"/api/v1/namespaces/{jobs.namespace}/serviceaccounts/default/token"
    answer = jobs.api.create(folder, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    return str(answer["status"]["token"])


def report(pod: Object, sequence: int = 1, **said: Any) -> Object:
    metadata = pod["metadata"]
    labels = metadata["labels"]
    return {
        "job": f"{metadata['namespace']}/{labels['muster.dev/job-name']}",
        "jobUid": labels["muster.dev/job-uid"],
        "pod": metadata["name"],
        "podUid": metadata["uid"],
        "role": labels["muster.dev/role"],
        "index": int(labels["muster.dev/index"]),
        "attempt": int(labels["muster.dev/attempt"]),
        "sequence": sequence,
        **said,
    }


def progress(step: int) -> Object:
    return {"step": step, "totalSteps": 1000, "epoch": 0, "loss": f"{1 / (step + 1):.4f}", "samplesPerSecond": 10.0, "updatedAt": None}


def post(operator: OperatorProcess, body: bytes, headers: dict[str, str], path: str = "/v1/report") -> tuple[int, Object]:
    connection = http.client.HTTPSConnection("127.0.0.1", operator.coordination, timeout=10, context=operator.trusted())
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else {}
    finally:
        connection.close()


def tell(operator: OperatorProcess, bearer: str, said: Object) -> tuple[int, Object]:
    return post(operator, json.dumps(said).encode(), {"Authorization": f"Bearer {bearer}"})


def running(jobs: Jobs, name: str, workers: int = 1) -> list[Object]:
    jobs.submit(job(name, workers=workers))
    jobs.reaches(name, "Running")
    return sorted(jobs.pods(name), key=lambda pod: str(pod["metadata"]["name"]))


def test_what_a_supervisor_says_stands_in_the_status(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    [pod] = running(jobs, "digits")
    said = report(pod, progress=progress(120), checkpoint={"step": 100, "path": "step-00000100"}, phase="Training")
    status, reply = tell(operator, token(jobs, pod), said)
    assert status == 200
    assert reply["attempt"] == 0
    assert SHORTEST_INTERVAL * (1 - JITTER) <= reply["intervalSeconds"] < 2
    found = until(lambda: (now := jobs.status("digits")).get("progress", {}).get("step") == 120 and now, "progress")
    assert (found["progress"]["percent"], found["progress"]["loss"]) == (12, "0.0083")
    assert (found["checkpoint"]["step"], found["checkpoint"]["path"]) == (100, "step-00000100")


def test_a_job_that_starts_over_though_a_commit_exists_says_so(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    [pod] = running(jobs, "digits")
    tell(operator, token(jobs, pod), report(pod, progress=progress(120), checkpoint={"step": 100, "path": "step-00000100"}))
    until(lambda: jobs.status("digits").get("checkpoint"), "the commit is known")
    jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/digits-worker-0")
    until(lambda: (jobs.status("digits")["attempt"], jobs.status("digits")["phase"]) == (1, "Running"), "the second attempt")
    [pod] = jobs.pods("digits")
    tell(operator, token(jobs, pod), report(pod, resumed={"found": None, "step": 0, "path": None, "skipped": []}, progress=progress(1)))
    status = until(
        lambda: condition(found := jobs.status("digits"), "ResumeRegression").get("status") == "True" and found, "the regression is told"
    )
    assert "step 100" in condition(status, "ResumeRegression")["message"]
    assert status["attempts"][1]["stepResumed"] == 0


def test_progress_alone_is_written_seldom_however_often_it_is_reported(
    jobs: Jobs, nodes: Nodes, operator: OperatorProcess, cluster: Cluster
) -> None:
    [pod] = running(jobs, "digits")
    bearer = token(jobs, pod)
    tell(operator, bearer, report(pod, sequence=1, progress=progress(1)))
    until(lambda: jobs.status("digits").get("progress"), "the first progress")
    before = len(cluster.requests())
    for step in range(2, 300):
        assert tell(operator, bearer, report(pod, sequence=step, progress=progress(step)))[0] == 200
    jobs.submit(job("later", workers=1))
    jobs.reaches("later", "Running")
    writes = [each for each in cluster.requests()[before:] if each["verb"] == "update" and each["requestURI"].endswith("/digits/status")]
    assert len(writes) <= 1
    reviews = [each for each in cluster.requests()[before:] if "tokenreviews" in each["requestURI"]]
    assert reviews == [], "a token that was good a moment ago is good"


def test_a_supervisor_that_cannot_prove_who_it_is_changes_nothing(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    mine, other = running(jobs, "digits", workers=2)
    [foreign] = running(jobs, "other")
    good, lie = token(jobs, mine), {"progress": progress(999)}
    body = json.dumps(report(mine, **lie)).encode()
    refusals = {
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
        "a deep nest": (post(operator, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, {"Authorization": f"Bearer {good}"}), 400),
        "too much": (tell(operator, good, report(mine, notices=["x" * (1 << 21)])), 413),
        "another path": (post(operator, body, {"Authorization": f"Bearer {good}"}, path="/v2/report"), 404),
    }
    for what, ((status, said), expected) in refusals.items():
        assert status == expected, f"{what}: {said}"
        if expected in (401, 403, 413) or what.startswith("no "):
            assert said["message"], what
    assert tell(operator, good, report(mine))[0] == 200
    assert jobs.status("digits").get("progress") is None
    assert "Traceback" not in operator.log.read_text()


def test_figures_that_are_no_figures_do_not_harm_the_job(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    [pod] = running(jobs, "digits")
    bearer = token(jobs, pod)
    odd = {**progress(7), "loss": "NaN", "totalSteps": 0, "epoch": -3, "updatedAt": 1e300}
    body = json.dumps(report(pod, progress=odd, notices=["\u2028\ud800 {{ }}" * 100])).replace(
        '"samplesPerSecond": 10.0', '"samplesPerSecond": NaN'
    )
    post(operator, body.encode(), {"Authorization": f"Bearer {bearer}"})
    tell(
        operator,
        bearer,
        report(pod, sequence=2, progress={**odd, "step": 2**62, "samplesPerSecond": 1e308}, checkpoint={"step": 8, "path": "x" * 9000}),
    )
    until(lambda: jobs.status("digits").get("progress"), "the progress is told")
    tell(
        operator, bearer, report(pod, sequence=3, progress=progress(9), evaluation={"step": 9, "metrics": {"accuracy": 0.5, "x" * 500: 1}})
    )
    assert operator.probe("healthz")[0] == 200
    assert jobs.status("digits")["phase"] == "Running"
    assert "Traceback" not in operator.log.read_text()


def test_the_token_of_a_pod_that_is_gone_opens_nothing(jobs: Jobs, nodes: Nodes, operator: OperatorProcess) -> None:
    [pod] = running(jobs, "digits")
    bearer = token(jobs, pod)
    jobs.api.delete(f"/api/v1/namespaces/{jobs.namespace}/pods/digits-worker-0")
    until(lambda: (jobs.status("digits")["attempt"], jobs.status("digits")["phase"]) == (1, "Running"), "the second attempt")
    status, _ = tell(operator, bearer, report(pod, progress=progress(999)))
    assert status in (401, 404)
    assert jobs.status("digits").get("progress") is None


@pytest.mark.usefixtures("operator")
def test_the_service_leads_to_the_leader(cluster: Cluster, operator: OperatorProcess) -> None:
    name = cluster.configuration["coordination"]["service"]
    path = f"/apis/discovery.k8s.io/v1/namespaces/{RELEASE_NAMESPACE}/endpointslices/{name}"

    def endpoints() -> Object:
        return cluster.admin.get(path)

    until(lambda: endpoints()["ports"][0]["port"] == operator.coordination, "the slice names the leader's port")
    assert endpoints()["endpoints"][0]["addresses"] == [ADDRESS]
    service = cluster.admin.get(f"/api/v1/namespaces/{RELEASE_NAMESPACE}/services/{name}")
    assert endpoints()["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert "selector" not in service["spec"]
    assert endpoints()["ports"][0]["name"] == service["spec"]["ports"][0]["name"]
