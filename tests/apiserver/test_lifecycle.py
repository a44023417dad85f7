"""A job's life on a real API server, with this test in the kubelets' place."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import pytest

from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, attempt_of, condition, job
from tests.support.api_server.kubelet import Kubelet, Nodes, pod_path, trainer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shared_operator")


def started(jobs: Jobs, kubelet: Kubelet, name: str, count: int, *, attempt: int = 0) -> list[Object]:
    pods = jobs.pods_of(name, count, attempt=attempt)
    for pod in pods:
        kubelet.run(pod)

    jobs.reaches(name, "Running", attempt=attempt)
    return pods


def restarts(status: Object) -> dict[str, int]:
    return {name: len(status["restarts"].get(name, ())) for name in ("preemption", "infrastructure", "application")}


def test_a_job_gets_its_service_and_pods_runs_and_succeeds(jobs: Jobs, kubelet: Kubelet) -> None:
    jobs.submit(job("digits", workers=3))
    pods = jobs.pods_of("digits", 3)
    assert [pod["metadata"]["name"] for pod in pods] == [f"digits-worker-{index}" for index in range(3)]
    assert jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/services/digits")["spec"]["clusterIP"] == "None"
    for pod in pods:
        kubelet.run(pod)
    running = jobs.reaches("digits", "Running")
    assert running["workers"] == "3/3"
    assert condition(running, "Ready")["status"] == "True"
    for pod in pods:
        kubelet.end(pod, 0)
    ended = jobs.reaches("digits", "Succeeded")
    assert condition(ended, "Complete")["status"] == "True"
    assert (ended["attempt"], ended["restarts"]["total"]) == (0, 0)


def test_every_object_of_a_job_has_the_job_as_its_owner(jobs: Jobs) -> None:
    uid = jobs.submit(job("digits"))["metadata"]["uid"]
    folder = f"/api/v1/namespaces/{jobs.namespace}"
    children = [*jobs.pods_of("digits", 2), jobs.api.get(f"{folder}/services/digits")]
    children.append(jobs.api.get(f"/apis/networking.k8s.io/v1/namespaces/{jobs.namespace}/networkpolicies/digits"))
    for child in children:
        [owner] = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (uid, True, True)
        assert not child["metadata"].get("finalizers")


def test_a_deleted_job_that_a_finalizer_keeps_loses_its_pods_and_gets_no_others(jobs: Jobs, kubelet: Kubelet) -> None:
    jobs.submit({**job("digits"), "metadata": {"name": "digits", "finalizers": ["example.com/theirs"]}})
    pods = started(jobs, kubelet, "digits", 2)
    jobs.delete("digits")
    wait_until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in jobs.pods("digits")), "both pods are deleted")
    for pod in pods:
        kubelet.remove(pod)
    jobs.submit(job("other", workers=1))  # when its pod is there, the operator has looked at both jobs
    jobs.pods_of("other", 1)
    assert jobs.pods("digits") == []
    jobs.patch("digits", {"metadata": {"finalizers": None}})


def test_the_network_policy_admits_pods_of_the_job_and_ports_of_its_template(jobs: Jobs) -> None:
    side_car = {"name": "board", "image": "board", "ports": [{"containerPort": 6006}]}
    jobs.submit(job("digits", roles={"worker": {"replicas": 1, "template": {"spec": {"containers": [side_car]}}}}))
    [pod] = jobs.pods_of("digits", 1)
    policy = jobs.api.get(f"/apis/networking.k8s.io/v1/namespaces/{jobs.namespace}/networkpolicies/digits")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert policy["ingress"] == [{"from": [{"podSelector": policy["podSelector"]}]}, {"ports": [{"port": 6006, "protocol": "TCP"}]}]


def test_running_replicas_are_removed_when_a_parameter_server_job_has_succeeded(jobs: Jobs, kubelet: Kubelet) -> None:
    roles = {"chief": {}, "worker": {"replicas": 2}, "ps": {"replicas": 1}}
    jobs.submit(
        job("recommender", strategy="ParameterServer", trainer={"script": "train.py", "code": {"configMap": {"name": "code"}}}, roles=roles)
    )
    pods = started(jobs, kubelet, "recommender", 4)
    [chief] = [pod for pod in pods if pod["metadata"]["labels"]["muster.dev/role"] == "chief"]
    kubelet.end(chief, 0)
    jobs.reaches("recommender", "Succeeded")
    wait_until(lambda: sum("deletionTimestamp" in pod["metadata"] for pod in jobs.pods("recommender")) == 3, "three pods are deleted")
    [remaining] = [pod for pod in jobs.pods("recommender") if "deletionTimestamp" not in pod["metadata"]]
    assert remaining["metadata"]["uid"] == chief["metadata"]["uid"]


SIDE_CAR = {"worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "mesh-proxy", "image": "proxy"}]}}}}


@pytest.mark.parametrize("code", [0, 1])
def test_a_pod_with_a_running_side_car_is_removed_when_the_job_has_ended(jobs: Jobs, kubelet: Kubelet, code: int) -> None:
    jobs.submit(job("digits", roles=SIDE_CAR, recovery={"application": {"limit": 0}}))
    [pod] = started(jobs, kubelet, "digits", 1)
    kubelet.end(pod, code, side_car="mesh-proxy")
    jobs.reaches("digits", "Failed" if code else "Succeeded")
    wait_until(lambda: all("deletionTimestamp" in each["metadata"] for each in jobs.pods("digits")), "the pod is deleted")


@pytest.mark.parametrize("policy", ["Running", "None"])
def test_the_pod_of_a_failed_job_stays_even_with_a_native_side_car(jobs: Jobs, kubelet: Kubelet, policy: str) -> None:
    native = {"name": "native", "image": "proxy", "restartPolicy": "Always"}
    roles = {"worker": {"replicas": 1, "template": {"spec": {"initContainers": [native]}}}}
    jobs.submit(job("digits", roles=roles, recovery={"application": {"limit": 0}}, cleanPodPolicy=policy))
    [pod] = started(jobs, kubelet, "digits", 1)
    kubelet.end(pod, 1)
    jobs.reaches("digits", "Failed")
    jobs.submit(job("next", workers=1))  # once this one has its pod, the operator has done with the other
    jobs.pods_of("next", 1)
    [remaining] = jobs.pods("digits")
    assert remaining["metadata"]["uid"] == pod["metadata"]["uid"]
    assert "deletionTimestamp" not in remaining["metadata"]


def test_clean_pod_policy_none_deletes_no_pod_and_names_the_running_ones(jobs: Jobs, kubelet: Kubelet) -> None:
    roles = {"chief": {}, "worker": {"replicas": 1}, "ps": {"replicas": 1}}
    trainer_of = {"script": "train.py", "code": {"configMap": {"name": "code"}}}
    jobs.submit(job("recommender", strategy="ParameterServer", trainer=trainer_of, roles=roles, cleanPodPolicy="None"))
    pods = started(jobs, kubelet, "recommender", 3)
    [chief] = [pod for pod in pods if pod["metadata"]["labels"]["muster.dev/role"] == "chief"]
    kubelet.end(chief, 0)
    jobs.reaches("recommender", "Succeeded")
    wait_until(lambda: "worker-0, ps-0" in jobs.status("recommender").get("message", ""), "the pods that still run are named")
    assert not [pod for pod in jobs.pods("recommender") if "deletionTimestamp" in pod["metadata"]]


WORDS = {"code": 20, "reason": "PeerLost", "message": "rank 0: connection reset", "rank": 0, "step": 34, "attempt": 0}
FAULTS = {
    "a training script that fails": ("application", "UserError", lambda kubelet, pod: kubelet.end(pod, 1)),
    "a code of the contract without a termination message": ("application", "UserError", lambda kubelet, pod: kubelet.end(pod, 22)),
    "a container that was killed": ("infrastructure", "ProcessKilled", lambda kubelet, pod: kubelet.end(pod, 137)),
    "a container that used too much memory": ("application", "OutOfMemory", lambda kubelet, pod: kubelet.end(pod, 137, reason="OOMKilled")),
    "a termination message that says a peer was lost": (
        "infrastructure",
        "PeerLost",
        lambda kubelet, pod: kubelet.end(pod, 20, message=json.dumps(WORDS)),
    ),
    "an eviction through the API": ("preemption", "Disrupted", lambda kubelet, pod: kubelet.disrupt(pod)),
    "a deletion by somebody": ("preemption", "PodDeleted", lambda kubelet, pod: kubelet.api.delete(pod_path(pod))),
    "a pod that vanishes": ("preemption", "ReplicaLost", lambda kubelet, pod: kubelet.remove(pod)),
    "an eviction by the kubelet": (
        "preemption",
        "Evicted",
        lambda kubelet, pod: kubelet.set_status(pod, {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
    ),
    "a node that shuts down": (
        "preemption",
        "NodeLost",
        lambda kubelet, pod: kubelet.set_status(pod, {"phase": "Failed", "reason": "Terminated", "message": "node shutdown"}),
    ),
}


BACKED_OFF = "a training script that fails"
"""Of the faults with a back-off, which is 10 s, the one whose next attempt is awaited."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_class_and_the_next_attempt_waits_for_old_pods_to_end(jobs: Jobs, kubelet: Kubelet, fault: str) -> None:
    expected, reason, strike = FAULTS[fault]
    jobs.submit(job("digits", workers=2))
    pods = started(jobs, kubelet, "digits", 2)
    strike(kubelet, pods[1])
    wait_until(lambda: jobs.status("digits")["attempt"] == 1, "the next attempt is decided")
    status = jobs.status("digits")
    assert restarts(status) == {"preemption": 0, "infrastructure": 0, "application": 0, expected: 1}
    first = status["attempts"][0]
    assert (first["class"], first["reason"]) == (expected.capitalize(), reason)
    wait_until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in jobs.pods("digits")), "the old pods are deleted")
    assert all(attempt_of(pod) == 0 for pod in jobs.pods("digits"))
    for pod in jobs.pods("digits"):
        kubelet.remove(pod)
    if expected == "application":
        assert status["nextAttemptTime"]
    if expected != "application" or fault == BACKED_OFF:
        started(jobs, kubelet, "digits", 2, attempt=1)
    assert jobs.status("digits")["restarts"]["total"] == 1


def test_a_termination_message_has_the_last_step_of_training(jobs: Jobs, kubelet: Kubelet) -> None:
    words = {**WORDS, "commit": {"step": 30, "path": "step-00000030"}}
    jobs.submit(job("digits", workers=2))
    pods = started(jobs, kubelet, "digits", 2)
    kubelet.end(pods[0], 20, message=json.dumps(words))
    wait_until(lambda: jobs.status("digits")["attempt"] == 1, "the next attempt is decided")
    status = jobs.status("digits")
    assert status["attempts"][0]["lastStep"] == 34
    assert status["attempts"][0]["replica"] == "worker-0"
    assert (status["checkpoint"]["step"], status["checkpoint"]["path"]) == (30, "step-00000030")


def test_a_job_that_always_fails_ends_after_its_budget_with_its_termination(jobs: Jobs, nodes: Nodes) -> None:
    nodes.ends = lambda pod: 10
    jobs.submit(job("digits", workers=1, recovery={"application": {"limit": 0}}))
    status = jobs.reaches("digits", "Failed")
    assert condition(status, "Failed")["reason"] == "ApplicationLimitExceeded"
    assert status["attempts"][0]["exitCode"] == 10
    [event] = wait_until(lambda: [each for each in jobs.events("digits") if each["reason"] == "Failed"], "the Event")
    assert event["type"] == "Warning"


def test_a_job_with_a_missing_image_fails_at_the_startup_deadline(jobs: Jobs, kubelet: Kubelet) -> None:
    jobs.submit(job("digits", workers=1))
    [pod] = jobs.pods_of("digits", 1)
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image nowhere/none"}
    kubelet.bind(pod)
    kubelet.set_status(pod, {"phase": "Pending", "containerStatuses": trainer({"waiting": waiting})})
    wait_until(lambda: "ImagePullBackOff" in jobs.status("digits").get("message", ""), "the reason is in the status")
    assert jobs.status("digits")["phase"] == "Pending"
    jobs.patch("digits", {"spec": {"startupDeadlineSeconds": 1}})
    status = jobs.reaches("digits", "Failed")
    assert condition(status, "Failed")["reason"] == "StartupDeadlineExceeded"


def test_suspending_removes_the_pods_and_resuming_makes_new_ones_of_the_next_attempt(jobs: Jobs, nodes: Nodes) -> None:
    jobs.submit(job("digits"))
    jobs.reaches("digits", "Running")
    jobs.patch("digits", {"spec": {"suspend": True}})
    status = jobs.reaches("digits", "Suspended")
    assert condition(status, "Suspended")["status"] == "True"
    assert jobs.pods("digits") == []
    jobs.patch("digits", {"spec": {"suspend": False}})
    assert jobs.reaches("digits", "Running")["restarts"]["total"] == 0
    assert {attempt_of(pod) for pod in jobs.pods("digits")} == {1}


def test_a_pod_on_a_dead_node_does_not_block_the_job_for_ever(jobs: Jobs, kubelet: Kubelet) -> None:
    jobs.submit(job("digits", workers=1, checkpoint={"gracePeriodSeconds": 1}))
    [pod] = started(jobs, kubelet, "digits", 1)
    kubelet.api.delete(pod_path(pod), {"gracePeriodSeconds": 1})
    [new] = wait_until(lambda: [each for each in jobs.pods("digits") if attempt_of(each) == 1], "the replacement", seconds=120)
    assert new["metadata"]["uid"] != pod["metadata"]["uid"]


def test_a_finished_job_is_deleted_after_its_time_to_live(jobs: Jobs, nodes: Nodes) -> None:
    nodes.ends = lambda pod: 0
    jobs.submit(job("digits", ttlSecondsAfterFinished=2))

    def gone() -> bool:
        try:
            jobs.get("digits")
        except ApiError as error:
            return error.status == 404
        return False

    wait_until(gone, "the job is gone")
    wait_until(lambda: any(event["reason"] == "Succeeded" for event in jobs.events("digits")), "an Event says that it had succeeded")


def test_each_event_is_created_once(jobs: Jobs, kubelet: Kubelet, nodes: Nodes) -> None:
    jobs.submit(job("digits"))
    jobs.reaches("digits", "Running")
    [pod, _] = jobs.pods("digits")
    kubelet.disrupt(pod)
    jobs.reaches("digits", "Running", attempt=1)
    nodes.ends = lambda pod: 0
    for pod in jobs.pods("digits"):
        kubelet.end(pod, 0)
    jobs.reaches("digits", "Succeeded")
    wait_until(lambda: any(event["reason"] == "Succeeded" for event in jobs.events("digits")), "the last event")
    reasons = Counter(event["reason"] for event in jobs.events("digits"))
    assert reasons == {"AttemptStarted": 1, "WorldReady": 2, "Restarting": 1, "Succeeded": 1}
    assert all(event["count"] == 1 and event["involvedObject"]["uid"] for event in jobs.events("digits"))


def test_a_wiped_status_is_written_again_with_a_higher_attempt(jobs: Jobs, kubelet: Kubelet, nodes: Nodes) -> None:
    jobs.submit(job("digits"))
    jobs.reaches("digits", "Running")
    jobs.replace_status("digits", {})
    status = jobs.reaches("digits", "Running")
    attempts = {attempt_of(pod) for pod in jobs.pods("digits")}
    assert attempts == {status["attempt"]}


def test_a_job_that_is_recreated_at_once_gets_pods_of_its_own(jobs: Jobs, nodes: Nodes, cluster: Cluster) -> None:
    first = jobs.submit(job("digits"))["metadata"]["uid"]
    jobs.reaches("digits", "Running")
    jobs.delete("digits")
    second = jobs.submit(job("digits"))["metadata"]["uid"]
    for pod in jobs.pods("digits"):  # what the garbage collector does when it gets to it
        if pod["metadata"]["ownerReferences"][0]["uid"] == first:
            jobs.api.delete(pod_path(pod))
    for folder in (
        f"/api/v1/namespaces/{jobs.namespace}/services",
        f"/apis/networking.k8s.io/v1/namespaces/{jobs.namespace}/networkpolicies",
    ):
        jobs.api.delete(f"{folder}/digits", {"preconditions": {"uid": jobs.api.get(f"{folder}/digits")["metadata"]["uid"]}})
    jobs.reaches("digits", "Running")
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in jobs.pods("digits")} == {second}
    assert jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/services/digits")["metadata"]["ownerReferences"][0]["uid"] == second


def removed(jobs: Jobs, name: str, made: dict[str, str]) -> bool:
    """Whether the job has no pods. Deletes those that it has, and adds their uids and names to `made`."""
    pods = jobs.pods(name)
    for pod in pods:
        made[pod["metadata"]["uid"]] = pod["metadata"]["name"]
        jobs.api.delete(pod_path(pod))
    return not pods


def test_a_job_that_is_deleted_while_it_starts_gets_no_more_objects(jobs: Jobs, shared_operator: object) -> None:
    for number in range(5):
        name = f"digits-{number}"
        jobs.submit(job(name, workers=40))
        wait_until(lambda name=name: jobs.pods(name), "its first pods")
        uid = jobs.get(name)["metadata"]["uid"]
        jobs.delete(name)
        jobs.submit(job("next", workers=1))  # once this one has its pod, the operator has long seen the deletion
        jobs.pods_of("next", 1)
        left = jobs.pods(name)
        assert all(pod["metadata"]["ownerReferences"][0]["uid"] == uid for pod in left)
        made: dict[str, str] = {}
        gone = partial(removed, jobs, name, made)
        wait_until(gone, "the pods that the pass in progress still made are gone")
        jobs.delete("next")
        for pod in jobs.pods("next"):
            jobs.api.delete(pod_path(pod))
        services = f"/api/v1/namespaces/{jobs.namespace}/services"
        policies = f"/apis/networking.k8s.io/v1/namespaces/{jobs.namespace}/networkpolicies"
        for folder in (services, policies):
            for left_over in (name, "next"):
                jobs.api.delete(f"{folder}/{left_over}")
        jobs.submit(job("last", workers=1))
        jobs.pods_of("last", 1)
        wait_until(gone, "the last pods of that pass are gone")  # on a busy machine its requests take long
        assert len(set(made.values())) == len(made), "another pass has made pods again"
        jobs.delete("last")
        for pod in jobs.pods("last"):
            jobs.api.delete(pod_path(pod))
        for folder in (services, policies):
            jobs.api.delete(f"{folder}/last")


def test_pods_are_kept_off_a_node_on_which_attempts_died_twice(jobs: Jobs, kubelet: Kubelet, nodes: Nodes) -> None:
    own = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [own]}}
    roles = {"worker": {"replicas": 2, "template": {"spec": {"affinity": affinity}}}}
    nodes.runs = lambda pod: False
    jobs.submit(job("unlucky", roles=roles))
    for attempt in (0, 1):
        pods = jobs.pods_of("unlucky", 2, attempt=attempt)
        for number, pod in enumerate(pods):
            assert pod["spec"]["affinity"] == affinity, "one death is no pattern"
            kubelet.bind(pod, f"node-{number}")
        started(jobs, kubelet, "unlucky", 2, attempt=attempt)
        kubelet.end(pods[1], 137)
    pods = jobs.pods_of("unlucky", 2, attempt=2)
    avoiding = {"weight": 100, "preference": {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]}}
    for pod in pods:
        assert pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == [own, avoiding]
    [avoided] = jobs.status("unlucky")["avoidedNodes"]
    assert (avoided["name"], avoided["deaths"]) == ("node-1", 2)
    wait_until(lambda: any(event["reason"] == "NodeAvoided" for event in jobs.events("unlucky")), "an Event names the node")
