"""`muster submit`, `get`, `explain` and the others, as processes, on a real API server with the operator at work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
import yaml

import local_cluster
from tests.support.api_server.api import Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.commands import Muster
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.logs import NODE, log_node
from tests.support.texts import absent
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shared_operator")


@pytest.fixture
def muster(cluster: Cluster, namespace: str) -> Muster:
    return Muster(cluster.kubeconfig, namespace)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job("digits", workers=1)))
    return file


def test_a_submitted_job_runs_is_listed_suspended_resumed_scaled_and_deleted(
    muster: Muster, jobs: Jobs, nodes: Nodes, job_file: Path
) -> None:
    submitted = muster("submit", str(job_file))
    assert submitted.returncode == 0, submitted.stderr
    jobs.reaches("digits", "Running")
    header, row = muster("get").stdout.splitlines()
    assert header.split()[:3] == ["NAME", "STRATEGY", "PHASE"]
    assert row.split()[:4] == ["digits", "DDP", "Running", "1/1"]
    [cause, *_] = json.loads(muster("explain", "digits", "--output", "json").stdout)["causes"]
    assert cause["id"] == "Running"
    assert muster("scale", "digits", "--replicas", "2").returncode == 0
    wait_until(lambda: jobs.status("digits").get("workers") == "2/2", "two workers run")
    assert muster("suspend", "digits").returncode == 0
    jobs.reaches("digits", "Suspended")
    assert muster("resume", "digits").returncode == 0
    jobs.reaches("digits", "Running")
    before = {pod["metadata"]["uid"] for pod in jobs.pods("digits")}
    restarted = muster("restart", "digits")
    assert restarted.returncode == 0, restarted.stderr
    jobs.reaches("digits", "Running")
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in jobs.pods("digits"))
    assert muster("delete", "digits").returncode == 0
    assert "no jobs" in muster("get").stderr


def test_a_job_is_changed_by_set_and_a_dry_run_creates_nothing(muster: Muster, jobs: Jobs, job_file: Path) -> None:
    dry = muster("submit", str(job_file), "--dry-run")
    assert (dry.returncode, absent(dry.stdout, "digits would be accepted", jobs.namespace)) == (0, [])
    assert "no jobs" in muster("get").stderr
    assert muster("submit", str(job_file), "--set", "spec.batch.globalSize=32").returncode == 0
    assert jobs.get("digits")["spec"]["batch"]["globalSize"] == 32
    refused = muster("submit", str(job_file), "--set", "spec.batch.globalSise=32", "--dry-run")
    assert (refused.returncode, absent(refused.stderr, "--set", "globalSise")) == (11, [])
    assert muster("submit", str(job_file), "--dry-run").returncode == 8


def test_code_of_a_folder_replaces_the_config_map_of_the_file_and_goes_with_the_job(muster: Muster, jobs: Jobs, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('hello')\n")
    manifest = job("mine", workers=1, trainer={"script": "train.py", "code": {"configMap": {"name": "of-the-file"}}})
    submitted = muster("submit", "-", "--code", str(code), stdin=yaml.safe_dump(manifest))
    assert submitted.returncode == 0, submitted.stderr
    created = jobs.get("mine")
    name = created["spec"]["trainer"]["code"]["configMap"]["name"]
    config_map = jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/configmaps/{name}")
    assert config_map["data"] == {"train.py": "print('hello')\n"}
    assert [owner["uid"] for owner in config_map["metadata"]["ownerReferences"]] == [created["metadata"]["uid"]]


def test_a_failed_job_that_is_restarted_takes_over_the_config_map_with_its_code(
    muster: Muster, jobs: Jobs, nodes: Nodes, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("1 / 0\n")
    nodes.ends = lambda pod: 1
    manifest = job("mine", workers=1, trainer={"script": "train.py"}, recovery={"application": {"limit": 0}})
    assert muster("submit", "-", "--code", str(code), stdin=yaml.safe_dump(manifest)).returncode == 0
    jobs.reaches("mine", "Failed")
    failed = jobs.get("mine")
    restarted = muster("restart", "mine")
    assert restarted.returncode == 0, restarted.stderr
    created = jobs.get("mine")
    assert created["metadata"]["uid"] != failed["metadata"]["uid"]
    name = created["spec"]["trainer"]["code"]["configMap"]["name"]
    config_map = jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/configmaps/{name}")
    assert [owner["uid"] for owner in config_map["metadata"]["ownerReferences"]] == [created["metadata"]["uid"]]


def test_watch_shows_a_job_to_its_end_and_ends_with_its_exit_code(muster: Muster, jobs: Jobs, kubelet: Kubelet, nodes: Nodes) -> None:
    nodes.ends = lambda pod: 0
    jobs.submit(job("digits", workers=1))
    watched = muster("watch", "digits")
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout.splitlines()[-1].startswith("digits succeeded")
    nodes.ends = lambda pod: 1
    jobs.submit(job("broken", workers=1, recovery={"application": {"limit": 0}}))
    watched = muster("watch", "broken")
    assert watched.returncode == 10, watched.stderr


def test_the_error_for_an_unknown_name_suggests_similar_names(muster: Muster, jobs: Jobs) -> None:
    jobs.submit(job("digits"))
    ended = muster("explain", "digit")
    assert ended.returncode == 7
    assert absent(ended.stderr, "job digit ", jobs.namespace, "did you mean digits?") == []
    assert muster("submit", "-", stdin=yaml.safe_dump(job("digits"))).returncode == 8


def test_a_cluster_that_does_not_answer_and_missing_rights_have_exit_codes(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    config = json.loads(cluster.kubeconfig.read_text())
    nobody = tmp_path / "nobody"
    nobody.write_text(json.dumps({**config, "clusters": [{"name": "only", "cluster": {"server": "https://127.0.0.1:1"}}]}))
    ended = Muster(nobody, namespace)("get")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (3, 1)
    assert Muster(tmp_path / "missing", namespace)("get").returncode == 3
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    answer = cluster.admin.create(account, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    stranger = tmp_path / "stranger"
    stranger.write_text(json.dumps({**config, "users": [{"name": "admin", "user": {"token": answer["status"]["token"]}}]}))
    ended = Muster(stranger, namespace)("get")
    assert ended.returncode == 4
    assert "trainingjobs.muster.dev is forbidden" in ended.stderr
    stranger.write_text(json.dumps({**config, "users": [{"name": "admin", "user": {"token": "wrong"}}]}))
    assert Muster(stranger, namespace)("get").returncode == 4


def on_log_node(jobs: Jobs, kubelet: Kubelet, name: str, count: int, *, attempt: int = 0) -> list[Object]:
    """The pods of an attempt, running on the node that has logs."""
    pods = jobs.pods_of(name, count, attempt=attempt)
    for pod in pods:
        kubelet.bind(pod, NODE)
        kubelet.run({**pod, "spec": {**pod["spec"], "nodeName": NODE}})
    return pods


def test_logs_of_all_replicas_are_merged_by_time_and_cut_by_attempt(
    muster: Muster, jobs: Jobs, kubelet: Kubelet, cluster: Cluster, tmp_path: Path
) -> None:
    with log_node(cluster.admin, tmp_path) as node:
        jobs.submit(job("digits", workers=2))
        on_log_node(jobs, kubelet, "digits", 2)
        jobs.reaches("digits", "Running")
        node.write("digits-worker-0", "third", "2030-01-01T00:00:03Z")
        node.write("digits-worker-1", "first", "2030-01-01T00:00:01.5Z")
        node.write("digits-worker-1", "second", "2030-01-01T00:00:02.25Z")
        shown = muster("logs", "digits")
        assert shown.stdout.splitlines() == ["[worker-1] first", "[worker-1] second", "[worker-0] third"], shown.stderr
        assert muster("logs", "digits", "--rank", "0").stdout == "[worker-0] third\n"
        assert muster("logs", "digits", "--replica", "worker-1", "--tail", "1").stdout == "[worker-1] second\n"
        assert muster("logs", "digits", "--attempt", "0").stdout.count("\n") == 3
        refused = muster("logs", "digits", "--previous")
        assert (refused.returncode, absent(refused.stderr, "first attempt", "no previous one")) == (11, [])
        dumped = json.loads(muster("debug-dump", "digits", "-f", "-").stdout)
        assert dumped["logs"][-1] == "[worker-0] third"
        assert dumped["job"]["status"]["phase"] == "Running"


def test_followed_logs_start_before_the_pods_and_survive_disconnects_and_a_restart(
    muster: Muster, jobs: Jobs, kubelet: Kubelet, cluster: Cluster, tmp_path: Path
) -> None:
    with log_node(cluster.admin, tmp_path) as node:
        jobs.submit(job("digits", workers=1))
        with muster.start("logs", "digits", "-f") as following:
            assert following.stdout
            [pod] = on_log_node(jobs, kubelet, "digits", 1)
            jobs.reaches("digits", "Running")
            node.write("digits-worker-0", "before the cut")
            _wait_for_line(following.stdout, "[worker-0] before the cut")
            node.cut()
            node.write("digits-worker-0", "after the cut")
            _wait_for_line(following.stdout, "[worker-0] after the cut")
            node.end("digits-worker-0")
            kubelet.disrupt({**pod, "spec": {**pod["spec"], "nodeName": NODE}})
            kubelet.remove(pod)
            node.restart("digits-worker-0")
            [pod] = on_log_node(jobs, kubelet, "digits", 1, attempt=1)
            node.write("digits-worker-0", "of the next attempt")
            _wait_for_line(following.stdout, "[worker-0] of the next attempt")
            node.end("digits-worker-0")
            kubelet.end(pod, 0)
            assert following.wait(120) == 0


def _wait_for_line(stream: IO[str], line: str) -> None:
    """Reads until the line. If it never comes, the test's timeout ends the process."""
    seen = []
    for text in stream:
        seen.append(text.rstrip("\n"))
        if seen[-1] == line:
            return
    raise AssertionError(f"no line {line!r} in {seen}")


def test_kubectl_finds_the_plug_in_and_completes_names_of_jobs(jobs: Jobs, cluster: Cluster, tmp_path: Path) -> None:
    jobs.submit(job("digits"))
    for program, entry in (("kubectl-muster", "muster.cli.main:main"), ("kubectl_complete-muster", "muster.cli.completion:for_kubectl")):
        module, _, function = entry.partition(":")
        (tmp_path / program).write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        (tmp_path / program).chmod(0o755)
    kubectl = str(local_cluster.Programs(local_cluster.Places.default()).path("kubectl"))
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(*arguments: str) -> str:
        command = [kubectl, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    assert run("muster", "get", "-n", jobs.namespace, "-o", "name") == "trainingjobs.muster.dev/digits\n"
    assert run("__complete", "muster", "explain", "-n", jobs.namespace, "di").splitlines()[0] == "digits"


def test_explain_names_the_kinds_that_the_user_may_not_read(jobs: Jobs, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    jobs.submit(job("digits", suspend=True))
    jobs.reaches("digits", "Suspended")
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rules = [{"apiGroups": ["", "muster.dev"], "resources": ["trainingjobs", "pods", "events"], "verbs": ["get", "list", "watch"]}]
    cluster.admin.create(f"{roles}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}]
    cluster.admin.create(f"{roles}/rolebindings", {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": subjects})
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    answer = cluster.admin.create(account, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    reader = tmp_path / "reader"
    config = json.loads(cluster.kubeconfig.read_text())
    reader.write_text(json.dumps({**config, "users": [{"name": "admin", "user": {"token": answer["status"]["token"]}}]}))

    def explanation() -> list[str] | None:
        lines = Muster(reader, namespace)("explain", "digits").stdout.splitlines()
        return lines if len(lines) > 1 else None  # the API server needs a moment to know the role

    lines = wait_until(explanation, "the reader may read the job")
    assert absent(lines[1], "1. ", "suspended") == []
    unreadable = "networkpolicies, nodes, persistentvolumeclaims, resourcequotas"
    assert lines[-1].startswith(f"You may not read {unreadable}"), lines
