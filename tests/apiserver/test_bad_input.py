"""Bad input in the cluster: the job shows what is wrong, and other jobs are not affected."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.operators import OperatorProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shared_operator")


def templated(name: str, template: Any, workers: int = 1) -> Object:
    return job(name, roles={"worker": {"replicas": workers, "template": template}})


NO_TRAINER = {"spec": {"containers": [{"name": "trainer", "$patch": "delete"}]}}


def test_a_job_that_cannot_be_rendered_gets_one_event_and_starts_once_corrected(jobs: Jobs, cluster: Cluster, nodes: Nodes) -> None:
    jobs.submit(templated("digits", NO_TRAINER))
    status = wait_until(lambda: condition(current := jobs.status("digits"), "Valid").get("status") == "False" and current, "Valid is False")
    assert condition(status, "Valid")["reason"] == "Invalid"
    assert status["phase"] == "Pending"
    wait_until(lambda: jobs.events("digits"), "an Event")  # the last request about it
    settled = len(cluster.requests())
    jobs.submit(job("other", workers=1))
    jobs.reaches("other", "Running")
    uris = [each["requestURI"] for each in cluster.requests()[settled:]]
    assert not [uri for uri in uris if "digits" in uri], "a job that nothing can be done about costs no requests"
    assert jobs.pods("digits") == []
    assert [event["reason"] for event in jobs.events("digits")] == ["Invalid"]
    jobs.patch("digits", {"spec": {"roles": {"worker": {"template": {"spec": {"containers": [{"name": "trainer", "image": "own"}]}}}}}})
    assert condition(jobs.reaches("digits", "Running"), "Valid")["status"] == "True"


CORRECTED: dict[str, tuple[Object, Object]] = {
    "a quantity": ({"resources": {"limits": {"cpu": "abc"}}}, {"resources": {"limits": {"cpu": "1"}}}),
    "volumes": ({"template": {"spec": {"volumes": "x"}}}, {"template": {"spec": {"volumes": [{"name": "x", "emptyDir": {}}]}}}),
    "an image": (
        {"template": {"spec": {"containers": [{"name": "trainer", "image": ""}]}}},
        {"template": {"spec": {"containers": [{"name": "trainer", "image": "own:1"}]}}},
    ),
}


@pytest.mark.parametrize(("wrong", "right"), CORRECTED.values(), ids=CORRECTED)
def test_a_job_that_is_not_valid_starts_when_its_corrected_file_is_applied(jobs: Jobs, nodes: Nodes, wrong: Object, right: Object) -> None:
    jobs.api.apply(jobs.path("digits"), job("digits", roles={"worker": wrong}))
    wait_until(lambda: "so nothing starts" in jobs.status("digits").get("message", ""), "it is refused")
    jobs.api.apply(jobs.path("digits"), job("digits", roles={"worker": right}))
    assert condition(jobs.reaches("digits", "Running"), "Valid")["status"] == "True"


def test_a_running_job_continues_after_an_invalid_change_of_its_spec(jobs: Jobs, nodes: Nodes) -> None:
    jobs.submit(job("digits", workers=1))
    jobs.reaches("digits", "Running")
    [pod] = jobs.pods("digits")
    with suppress(ApiError):  # where CEL sees it, it is refused
        jobs.patch("digits", {"spec": {"roles": {"worker": {"template": NO_TRAINER}}}})
        wait_until(lambda: condition(jobs.status("digits"), "Valid").get("status") == "False", "Valid is False")
    assert [each["metadata"]["uid"] for each in jobs.pods("digits")] == [pod["metadata"]["uid"]]
    assert jobs.status("digits")["phase"] == "Running"


def quota(jobs: Jobs, pods: int) -> None:
    """As the quota controller, which does not run here, would have it."""
    folder = f"/api/v1/namespaces/{jobs.namespace}/resourcequotas"
    hard = {"pods": str(pods)}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": hard}}
    jobs.api.apply(f"{folder}/few", body)
    used = {"pods": str(len(jobs.api.items(f"/api/v1/namespaces/{jobs.namespace}/pods")))}
    jobs.api.patch(f"{folder}/few/status", {"status": {"hard": hard, "used": used}})


def test_a_job_over_its_quota_shows_the_reason_and_starts_when_quota_is_free(jobs: Jobs, nodes: Nodes) -> None:
    quota(jobs, 1)
    jobs.submit(job("digits", workers=3))
    status = wait_until(
        lambda: condition(current := jobs.status("digits"), "Ready").get("reason") == "ReplicasRefused" and current,
        "the refusal",
    )
    wait_until(lambda: [event for event in jobs.events("digits") if event["reason"] == "ReplicasRefused"], "an Event")
    assert status["restarts"]["total"] == 0
    quota(jobs, 10)
    assert jobs.reaches("digits", "Running")["attempt"] == 0
    assert len([event for event in jobs.events("digits") if event["reason"] == "ReplicasRefused"]) == 1


def test_the_refusal_of_a_pod_by_admission_is_in_the_condition(jobs: Jobs) -> None:
    jobs.api.patch(f"/api/v1/namespaces/{jobs.namespace}", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    jobs.submit(templated("rude", {"spec": {"hostNetwork": True}}))
    status = wait_until(
        lambda: condition(current := jobs.status("rude"), "Ready").get("reason") == "ReplicasRefused" and current, "the refusal"
    )
    assert status["phase"] == "Pending"


def test_pods_of_the_bundled_trainer_pass_restricted_pod_security(jobs: Jobs, nodes: Nodes) -> None:
    jobs.api.patch(f"/api/v1/namespaces/{jobs.namespace}", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    storage = {"persistentVolumeClaim": {"claimName": "checkpoints"}}
    jobs.submit(job("digits", checkpoint={"storage": storage}))
    jobs.reaches("digits", "Running")


def test_pods_with_images_of_users_pass_restricted_pod_security(jobs: Jobs, nodes: Nodes) -> None:
    jobs.api.patch(f"/api/v1/namespaces/{jobs.namespace}", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    own = {"image": "mine:1", "command": ["./train"], "args": ["--fast"], "code": {"configMap": {"name": "code"}}}
    jobs.submit(job("supervised", trainer=own))
    jobs.submit(job("bare", trainer={**own, "supervisor": "Disabled"}))
    jobs.reaches("supervised", "Running")
    jobs.reaches("bare", "Running")
    [brought, *_] = jobs.pods("supervised")
    assert [each["name"] for each in brought["spec"]["initContainers"]] == ["muster-supervisor"]
    [bare, *_] = jobs.pods("bare")
    assert bare["spec"]["shareProcessNamespace"] is True
    assert "initContainers" not in bare["spec"]


def test_a_foreign_pod_with_the_name_of_a_replica_is_reported_and_not_deleted(jobs: Jobs, nodes: Nodes) -> None:
    nodes.runs = lambda pod: "muster.dev/job-name" in pod["metadata"].get("labels", {})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "digits-worker-0"},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }
    uid = jobs.api.create(f"/api/v1/namespaces/{jobs.namespace}/pods", pod)["metadata"]["uid"]
    jobs.submit(job("digits", workers=1))
    status = wait_until(
        lambda: condition(current := jobs.status("digits"), "Ready").get("reason") == "ReplicasRefused" and current, "the refusal"
    )
    assert status["attempts"][0].get("endTime") is None
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/digits-worker-0"
    assert jobs.api.get(path)["metadata"]["uid"] == uid
    jobs.api.delete(path)
    jobs.reaches("digits", "Running")


HUGE = "x" * 200_000
NONSENSE: dict[str, Object] = {
    "a huge annotation": templated("n", {"metadata": {"annotations": {"huge": HUGE}}}),
    "a huge environment": templated("n", {"spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": HUGE}]}]}}),
    "a thousand variables": templated(
        "n", {"spec": {"containers": [{"name": "trainer", "env": [{"name": f"A{i}", "value": "b"} for i in range(1000)]}]}}
    ),
    "volumes as text": templated("n", {"spec": {"volumes": "none"}}),
    "volumes without names": templated("n", {"spec": {"volumes": [{"emptyDir": {}}, 3, None, []]}}),
    "a list for a map": templated("n", {"spec": {"nodeSelector": ["a"]}}),
    "a number for a map": templated("n", {"spec": {"securityContext": 3}}),
    "labels that are numbers": templated("n", {"metadata": {"labels": {"a": 1, "b": None, "c": {"d": "e"}}}}),
    "metadata that is text": templated("n", {"metadata": "text"}),
    "a spec that is text": templated("n", {"spec": "text"}),
    "a template that is null": templated("n", None),
    "an unknown patch directive": templated("n", {"spec": {"containers": [{"name": "trainer", "$patch": "explode"}]}}),
    "a directive everywhere": templated("n", {"$patch": "replace", "spec": {"$patch": "delete"}}),
    "a deep nest": templated("n", {"spec": {"affinity": {"a": {"b": {"c": {"d": {"e": [[[[[[{}]]]]]]}}}}}}}),
    "bad ports": templated(
        "n", {"spec": {"containers": [{"name": "trainer", "ports": [{"containerPort": 99999}, {"containerPort": "a"}, 7]}]}}
    ),
    "a name that is no label": templated(
        "n", {"spec": {"hostname": "\n\u2028", "containers": [{"name": "\u00e9\ud83d\ude00", "image": ""}]}}
    ),
    "options that are text": job("n", options="text"),
    "options of another strategy": job("n", options={"pipeline": {"stages": -1}}),
    "a configuration of any kind": job("n", trainer={"task": "digits", "config": {"epochs": {"a": [None, HUGE]}, "": -1e308}}),
    "a task with a strange name": job("n", trainer={"task": "../../{{ evil }}\n- a: b"}),
    "a huge batch": job("n", batch={"globalSize": 2**62}),
    "a worker too many": job("n", workers=10**9),
    "no workers": job("n", workers=0),
    "a deadline in the past": job("n", activeDeadlineSeconds=1, startupDeadlineSeconds=1),
    "limits that are no numbers": job("n", usageLimits={"deviceHours": "ten", "cost": -1}),
    "an empty limit": job("n", usageLimits={"action": "Suspend"}),
    "a strategy that does not exist": job("n", strategy="Magic"),
}


def wrong_statuses() -> list[Any]:
    return [
        {"phase": "Nowhere", "attempt": -1},
        {"attempt": 2**62, "phase": "Running"},
        {"world": {"attempt": 5, "size": 1, "members": [], "createdTime": "2020-01-01T00:00:00Z"}},
        {"attempts": [], "restarts": {"total": 99}},
        {"conditions": [{"type": "Ready", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"}]},
        {"progress": {"step": 5, "updatedAt": "2999-01-01T00:00:00Z"}},
        {"phase": "Recovering", "nextAttemptTime": "2020-01-01T00:00:00Z"},
        {"goodput": {"queuedSeconds": 1e308, "productiveSeconds": 1.7e308, "productiveSteps": 2**63 - 1}},
        {"usage": {"countedUntil": "9999-12-31T23:59:59.000Z", "deviceSeconds": 1e308, "devices": [{"device": "x", "seconds": 1e308}]}},
        {"attempt": 1, "admittedTime": "9999-12-31T23:59:59Z", "attempts": [{"attempt": 1, "startTime": "0001-01-01T00:00:00Z"}]},
    ]


def test_invalid_objects_do_not_block_other_jobs(jobs: Jobs, nodes: Nodes, shared_operator: OperatorProcess) -> None:
    accepted = []
    for number, (what, manifest) in enumerate(NONSENSE.items()):
        named = {**manifest, "metadata": {"name": f"nonsense-{number}"}}
        with suppress(ApiError):
            jobs.submit(named)
            accepted.append(f"nonsense-{number}")
        assert shared_operator.probe("healthz")[0] == 200, what
    assert accepted, "some of it must pass the API server, or this shows nothing"
    jobs.submit(job("honest", workers=1))
    jobs.reaches("honest", "Running")
    for name in accepted:
        wait_until(lambda name=name: jobs.status(name).get("conditions"), f"{name} gets an answer")
    log = shared_operator.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]


def test_inconsistent_statuses_are_corrected(jobs: Jobs, nodes: Nodes, shared_operator: OperatorProcess) -> None:
    for number, status in enumerate(wrong_statuses()):
        name = f"digits-{number}"
        jobs.submit(job(name, workers=1))
        jobs.reaches(name, "Running")
        with suppress(ApiError):
            jobs.replace_status(name, status)
    for number in range(len(wrong_statuses())):
        name = f"digits-{number}"

        def settled(name: str = name) -> bool:
            current = jobs.status(name)
            return current.get("phase") in ("Running", "Failed")

        wait_until(settled, f"{name} runs or has ended")
    log = shared_operator.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]


def test_pods_with_our_labels_that_are_no_replicas_are_passed_over(jobs: Jobs, kubelet: Kubelet, nodes: Nodes) -> None:
    labels: Object = {"muster.dev/job-name": "digits", "muster.dev/role": "worker", "muster.dev/index": "0", "muster.dev/attempt": "99"}
    for number, wrong in enumerate([{}, {"muster.dev/role": "boss"}, {"muster.dev/index": "a"}, {"muster.dev/attempt": "-1"}]):
        metadata = {"name": f"stranger-{number}", "labels": {**labels, **wrong}}
        with suppress(ApiError):
            spec = {"containers": [{"name": "a", "image": "a"}]}
            jobs.api.create(
                f"/api/v1/namespaces/{jobs.namespace}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            )
    jobs.submit(job("digits", workers=1))
    assert jobs.reaches("digits", "Running")["attempt"] == 0
    strangers = [pod for pod in jobs.pods("digits") if pod["metadata"]["name"].startswith("stranger")]
    assert strangers
    assert all("deletionTimestamp" not in pod["metadata"] for pod in strangers)
