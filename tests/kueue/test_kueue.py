"""Jobs in the queues of Kueue 0.17.0, or 0.10.1: `make kueue-test`. The quota has room for QUOTA workers of one CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kueue.conftest import QUOTA, READY_SECONDS
from tests.support.api_server.api import ApiError, Object
from tests.support.api_server.fake_nodes import add_node, remove_node
from tests.support.api_server.gangs import end
from tests.support.api_server.jobs import Jobs, condition, job
from tests.support.api_server.kubelet import Kubelet
from tests.support.api_server.kueue import API, VERSION, kueue_object, quota
from tests.support.api_server.operators import OperatorProcess
from tests.support.waiting import wait_until


def queued_job(name: str, workers: int, *, queue: str = "team", scheduling: Object | None = None, **spec: Any) -> Object:
    worker = {"replicas": workers, "resources": {"requests": {"cpu": "1"}}}
    return job(name, roles={"worker": worker}, scheduling={"queue": queue, **(scheduling or {})}, **spec)


def workload(jobs: Jobs, name: str) -> Object | None:
    try:
        return jobs.api.get(f"{API}/namespaces/{jobs.namespace}/workloads/{name}")
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def waits(jobs: Jobs, name: str, *, words: str) -> Object:
    """The status once the job waits in its queue and says so with these words. It has no pods then."""

    def is_waiting() -> bool:
        reserved = condition(jobs.status(name), "QuotaReserved")
        return reserved.get("reason") == "WaitingForQuota" and words in reserved["message"] and not jobs.pods(name)

    wait_until(is_waiting, f"{name} waits in its queue")
    return jobs.reaches(name, "Pending")


def test_a_job_waits_for_the_quota_of_another_and_starts_when_that_ends(jobs: Jobs, operator: OperatorProcess) -> None:
    jobs.submit(queued_job("first", 3))
    first = jobs.reaches("first", "Running")
    assert condition(first, "QuotaReserved")["status"] == "True"
    assert {pod["spec"]["nodeSelector"]["pool"] for pod in jobs.pods("first")} == {"main"}
    jobs.submit(queued_job("second", 2))
    second = waits(jobs, "second", words="insufficient unused quota")
    assert second["message"].startswith("waiting in queue team: ")
    since = condition(second, "QuotaReserved")["lastTransitionTime"]
    operator.kill()
    operator.start().ready()
    assert condition(waits(jobs, "second", words="quota"), "QuotaReserved")["lastTransitionTime"] == since
    end(jobs, "first")
    second = jobs.reaches("second", "Running")
    assert second["attempt"] == 0
    assert second["goodput"]["queuedSeconds"] > 0
    wait_until(lambda: workload(jobs, "first") is None, "the quota of the first is given back")


def test_a_job_of_higher_priority_preempts_another_which_goes_on_afterwards(jobs: Jobs) -> None:
    jobs.submit(queued_job("low", 3, scheduling={"priorityClassName": "low"}))
    jobs.reaches("low", "Running")
    jobs.submit(queued_job("high", QUOTA, scheduling={"priorityClassName": "high"}))
    jobs.reaches("high", "Running")
    low = waits(jobs, "low", words="quota")
    assert low["attempts"][-1]["reason"] == "EvictedByQueue"
    assert "failureClass" not in low["attempts"][-1]
    assert (low.get("restarts") or {}).get("total", 0) == 0
    end(jobs, "high")
    low = jobs.reaches("low", "Running", attempt=1)
    assert (low.get("restarts") or {}).get("total", 0) == 0


def test_a_suspended_job_gives_its_quota_back_and_waits_again_when_it_resumes(jobs: Jobs) -> None:
    jobs.submit(queued_job("first", 3))
    jobs.reaches("first", "Running")
    jobs.submit(queued_job("second", 3))
    waits(jobs, "second", words="quota")
    jobs.patch("first", {"spec": {"suspend": True}})
    jobs.reaches("first", "Suspended")
    jobs.reaches("second", "Running")
    jobs.patch("first", {"spec": {"suspend": False}})
    waits(jobs, "first", words="quota")
    jobs.delete("second")
    jobs.reaches("first", "Running", attempt=1)


def test_a_queue_that_does_not_exist_is_named_and_holds_the_job_until_it_does(jobs: Jobs) -> None:
    jobs.submit(queued_job("digits", 1, queue="late"))
    waits(jobs, "digits", words="LocalQueue late doesn't exist")
    queue = kueue_object("LocalQueue", "late", {"clusterQueue": "all"})
    jobs.api.create(f"{API}/namespaces/{jobs.namespace}/localqueues", queue)
    jobs.reaches("digits", "Running")


def test_a_queue_that_is_stopped_and_drained_takes_the_quota_back_until_it_goes_on(jobs: Jobs) -> None:
    jobs.submit(queued_job("digits", 1))
    jobs.reaches("digits", "Running")
    queue = f"{API}/namespaces/{jobs.namespace}/localqueues/team"
    jobs.api.patch(queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
    waits(jobs, "digits", words="team is inactive")
    jobs.api.patch(queue, {"spec": {"stopPolicy": "None"}})
    digits = jobs.reaches("digits", "Running", attempt=1)
    assert (digits.get("restarts") or {}).get("total", 0) == 0
    jobs.delete("digits")
    wait_until(lambda: workload(jobs, "digits") is None, "the Workload goes with its job")


def test_a_job_of_another_manager_gets_no_workload_and_a_failed_pod_keeps_the_quota(jobs: Jobs) -> None:
    jobs.submit(queued_job("other", 1, managedBy="example.com/other"))
    jobs.submit(queued_job("digits", 2))
    jobs.reaches("digits", "Running")
    before = workload(jobs, "digits")
    Kubelet(jobs.api).end(jobs.pods("digits")[0], 1)
    jobs.reaches("digits", "Running", attempt=1, seconds=120)
    after = workload(jobs, "digits")
    assert before is not None
    assert after is not None
    for kind in ("QuotaReserved", "Admitted"):
        assert condition(before["status"], kind) == condition(after["status"], kind)
    assert workload(jobs, "other") is None
    assert jobs.status("other") == {}


def test_waiting_jobs_say_their_positions_until_they_are_admitted(jobs: Jobs, shows_positions: bool) -> None:
    if not shows_positions:
        pytest.skip("port 8082 is taken, or this user may not mount file systems, so Kueue cannot serve positions")
    jobs.submit(queued_job("first", QUOTA, scheduling={"priorityClassName": "high"}))
    jobs.reaches("first", "Running")
    names = ["second", "third"]
    jobs.submit(queued_job("third", QUOTA))
    jobs.submit(queued_job("second", QUOTA, scheduling={"priorityClassName": "low"}))  # which is higher than none

    def places() -> list[Any]:
        return [(jobs.status(name).get("queue") or {}).get("position") for name in names]

    wait_until(lambda: places() == [1, 2], "both say their positions")
    third = jobs.status("third")
    assert (third["queue"]["name"], third["queue"]["clusterQueuePosition"], third["queue"]["summary"]) == ("team", 2, "2 in team")
    assert jobs.printed("third")["QUEUED"] == "2 in team"
    end(jobs, "first")
    jobs.reaches("second", "Running")
    wait_until(lambda: places() == [None, 1], "the third is next")
    assert "queue" not in jobs.status("second")
    assert jobs.status("third")["queue"]["since"] == third["queue"]["since"]


def test_an_elastic_job_starts_with_the_free_quota_and_gives_back_what_it_does_not_use(jobs: Jobs) -> None:
    jobs.submit(queued_job("first", 1))
    jobs.reaches("first", "Running")
    jobs.submit(queued_job("elastic", QUOTA, elastic={"minReplicas": 1, "maxReplicas": QUOTA}, batch={"globalSize": 64}))
    elastic = jobs.reaches("elastic", "Running")
    assert (elastic["workers"], len(jobs.pods("elastic"))) == (f"{QUOTA - 1}/{QUOTA}", QUOTA - 1)
    jobs.submit(queued_job("second", 2))
    waits(jobs, "second", words="insufficient unused quota")
    jobs.scale("elastic", 1)
    jobs.reaches("second", "Running")
    elastic = jobs.reaches("elastic", "Running", attempt=1)
    assert (elastic["workers"], len(jobs.pods("elastic"))) == ("1/1", 1)
    assert (elastic.get("restarts") or {}).get("total", 0) == 0


def test_a_job_whose_pods_do_not_run_in_time_is_evicted_and_waits_behind_others(jobs: Jobs) -> None:
    worker = {"replicas": QUOTA, "resources": {"requests": {"cpu": "1"}}, "template": {"spec": {"nodeSelector": {"disk": "absent"}}}}
    jobs.submit(job("stuck", roles={"worker": worker}, scheduling={"queue": "team"}))
    wait_until(lambda: jobs.pods("stuck"), "the job is admitted")
    jobs.submit(queued_job("next", QUOTA))
    jobs.reaches("next", "Running", seconds=READY_SECONDS + 120)
    stuck = waits(jobs, "stuck", words="quota")
    assert stuck["attempts"][-1]["reason"] == "EvictedByQueue"
    assert (stuck.get("restarts") or {}).get("total", 0) == 0
    wait_until(lambda: condition((workload(jobs, "next") or {})["status"], "PodsReady").get("status") == "True", "all pods run")


def test_a_job_whose_priority_class_does_not_exist_says_so(jobs: Jobs) -> None:
    jobs.submit(queued_job("digits", 1, scheduling={"priorityClassName": "absent"}))
    wait_until(lambda: condition(jobs.status("digits"), "Ready").get("reason") == "ReplicasRefused", "the refusal is in the status")
    assert "PriorityClass absent" in jobs.status("digits")["message"]


RACK = "example.com/rack"


@pytest.fixture
def racks(jobs: Jobs) -> Iterator[str]:
    """A queue whose nodes are in racks: one in rack a, and two in rack b. Each has room for one worker."""
    api = jobs.api
    api.create(
        f"{API}/topologies", kueue_object("Topology", "racks", {"levels": [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]})
    )
    flavor = {"nodeLabels": {"pool": "racks"}, "topologyName": "racks"}
    api.create(f"{API}/resourceflavors", kueue_object("ResourceFlavor", "racks", flavor))
    queue = kueue_object("ClusterQueue", "racks", {"namespaceSelector": {}, "resourceGroups": quota("racks", 10)})
    api.create(f"{API}/clusterqueues", queue)
    local = f"{API}/namespaces/{jobs.namespace}/localqueues"
    api.create(local, kueue_object("LocalQueue", "racks", {"clusterQueue": "racks"}))
    nodes = {"a-0": "a", "b-0": "b", "b-1": "b"}
    for name, rack in nodes.items():
        add_node(api, name, cpu=1, labels={"pool": "racks", RACK: rack})
    yield "racks"
    for name in ("large", "small"):
        jobs.delete(name)
    wait_until(lambda: not api.items(f"{API}/namespaces/{jobs.namespace}/workloads"), "no Workload is left")
    for name in nodes:
        remove_node(api, name)
    for path in (f"{local}/racks", f"{API}/clusterqueues/racks", f"{API}/resourceflavors/racks", f"{API}/topologies/racks"):
        api.delete(path)


@pytest.mark.skipif(VERSION == "v1beta1", reason="this Kueue knows no topology unless a gate is set")
def test_kueue_places_a_role_in_one_rack_and_holds_a_job_that_no_rack_has_room_for(jobs: Jobs, racks: str) -> None:
    def job_in_one_rack(name: str, workers: int) -> Object:
        job = queued_job(name, workers, queue=racks)
        annotations = {"kueue.x-k8s.io/podset-required-topology": RACK}
        job["spec"]["roles"]["worker"]["template"] = {"metadata": {"annotations": annotations}}
        return job

    jobs.submit(job_in_one_rack("large", 3))
    waits(jobs, "large", words="topology")
    jobs.submit(job_in_one_rack("small", 2))
    jobs.reaches("small", "Running")
    places = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in jobs.pods("small")}
    assert sorted(places.values()) == ["b-0", "b-1"]
    Kubelet(jobs.api).end(jobs.pods("small")[0], 1)
    jobs.reaches("small", "Running", attempt=1, seconds=120)
    assert {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in jobs.pods("small")} == places
    waits(jobs, "large", words="topology")
