"""Jobs that cannot start, always fail, or are taken away: they end as they should, say why, and leave nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.cluster_jobs import STEPS, ClusterJob, Ground, digits, job

Uninterrupted = Callable[[str], ClusterJob]
RECOVERY = {"application": {"limit": 1}}


@pytest.mark.timeout(600)
def test_an_image_that_does_not_exist_is_named_while_the_job_waits_and_fails_it_at_the_deadline(ground: Ground) -> None:
    trainer = {"image": "muster.invalid/no-such-image:1", "command": ["true"]}
    waiting = ground.apply(job("missing", strategy="DDP", trainer=trainer))
    # The init container starts first, and a busy node's resolver takes long to say that there is no such registry.
    waiting.wait_until("the image is named", lambda status: "no-such-image" in status.get("message", ""))
    assert waiting.status["phase"] in ("Pending", "Starting")
    assert waiting.condition("Ready")["status"] == "False"
    ground.kubectl("patch", "trainingjob", "missing", "--type=merge", "--patch", '{"spec": {"startupDeadlineSeconds": 1}}')
    assert waiting.wait_for_end() == "Failed"
    assert waiting.condition("Failed")["reason"] == "StartupDeadlineExceeded"
    assert "no-such-image" in waiting.condition("Failed")["message"]
    ground.cluster.wait_until("its pods are gone", lambda: not waiting.pods(), timeout=180)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_script_that_always_fails_ends_the_job_after_its_budget_with_its_termination(ground: Ground) -> None:
    ground.kubectl("create", "configmap", "code", "--from-literal=fail.py=raise SystemExit('no data today')")
    trainer = {"script": "fail.py", "code": {"configMap": {"name": "code"}}}
    failing = ground.apply(job("failing", strategy="DDP", trainer=trainer, recovery=RECOVERY))
    assert failing.wait_for_end() == "Failed", failing.story()
    status = failing.status
    assert failing.condition("Failed")["reason"] == "ApplicationLimitExceeded"
    assert "no data today" in failing.condition("Failed")["message"]
    assert status["restarts"]["applicationCount"] == 1
    assert [each["class"] for each in status["attempts"]] == ["Application", "Application"], failing.story()
    assert all("no data today" in each["message"] for each in status["attempts"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", ["Running", "None"])
def test_the_log_of_a_failed_job_can_be_read_after_its_end(ground: Ground, policy: str) -> None:
    command = ["python", "-c", "import time; time.sleep(2); raise SystemExit('no data today')"]
    manifest = job("kept", strategy="DDP", trainer={"command": command}, recovery={"application": {"limit": 0}}, cleanPodPolicy=policy)
    failed = ground.apply(manifest)
    assert failed.wait_for_end() == "Failed", failed.story()
    ended = datetime.fromisoformat(failed.status["completionTime"])
    blamed = failed.pod(failed.status["attempts"][0]["replica"])

    def settled() -> bool:
        phases = [pod["status"]["phase"] for pod in failed.pods()]
        return datetime.now(UTC) - ended > timedelta(seconds=10) and "Running" not in phases

    ground.cluster.wait_until("all replicas have ended, and ten seconds are over", settled, timeout=180)
    assert "no data today" in ground.kubectl("logs", blamed["metadata"]["name"])
    assert failed.pod(failed.status["attempts"][0]["replica"])["metadata"]["uid"] == blamed["metadata"]["uid"]
    assert policy == "Running" or len(failed.pods()) == len(failed.status["world"]["members"])


@pytest.mark.timeout(600)
def test_a_job_deleted_in_mid_start_leaves_nothing(ground: Ground) -> None:
    gone = ground.apply(digits("gone"))
    ground.cluster.wait_until("it has pods", lambda: bool(gone.pods()), timeout=180)
    ground.kubectl("delete", "trainingjob", "gone", "--wait=false")
    children = "pods,services,networkpolicies"
    ground.cluster.wait_until("nothing is left", lambda: not ground.items(children, "muster.dev/job-name=gone"), timeout=180)


@pytest.mark.timeout(600)
def test_a_job_applied_again_at_once_goes_on_from_the_commits_of_the_one_before(
    ground: Ground, uninterrupted: Callable[[str], ClusterJob]
) -> None:
    like = uninterrupted("DDP")
    first = ground.apply(digits("again"))
    first.wait_for_step(67)
    first.wait_for_event("commit", lambda event: event["step"] >= 60)
    uid = first.read()["metadata"]["uid"]
    ground.kubectl("delete", "trainingjob", "again", "--wait=false")
    second = ground.apply(digits("again"))
    assert second.wait_for_end() == "Succeeded", second.story()
    assert second.read()["metadata"]["uid"] != uid
    assert second.status["attempts"][0]["stepResumed"] >= 60
    assert second.status["restarts"]["total"] == 0
    curve = second.losses()
    assert sorted(curve) == list(range(1, STEPS + 1))
    assert curve == like.losses()
