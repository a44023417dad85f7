"""`muster ui` and `muster report` on a real API server, with the rights of the users that look."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode

import pytest

from muster.cli.refusal import RefusalError
from muster.cli.report import page_of_job
from muster.tools.report.page import as_html
from muster.tools.ui.sessions import IDLE_SECONDS, MOST_PER_USER, SESSION_SECONDS, SIGN_INS, NotSignedInError, TooManyError, UserSessions
from tests.apiserver.test_commands import on_log_node
from tests.support.api_server.api import Object
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.commands import Muster
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Kubelet, Nodes
from tests.support.api_server.logs import log_node
from tests.support.waiting import wait_until
from tests.unit.tools.report.test_recorded import leave

ADDRESS = "10.0.0.1"
pytestmark = pytest.mark.usefixtures("shared_operator")


class Site:
    """The page at an address."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
        finally:
            connection.close()

    def page(self, path: str, cookie: str) -> tuple[int, str]:
        status, text, _ = self.ask("GET", path, Cookie=cookie)
        return status, text

    def open(self, path: str) -> str:
        """The cookie that the address gives."""
        status, _, headers = self.ask("GET", path)
        assert status == 303
        return headers["Set-Cookie"].partition(";")[0]

    def sign_in(self, token: str, **headers: str) -> tuple[int, str, dict[str, str]]:
        form = {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/x-www-form-urlencoded", **headers}
        return self.ask("POST", "/sign-in", urlencode({"token": token}), **form)

    def signed_in(self, token: str) -> str:
        status, text, headers = self.sign_in(token)
        assert status == 303, text
        return headers["Set-Cookie"].partition(";")[0]


@contextmanager
def serving(*arguments: str, kubeconfig: Path | None = None) -> Iterator[tuple[Site, str]]:
    """`muster ui` as a process: the site, and the path of its address."""
    command = [
        sys.executable,
        "-m",
        "muster.cli",
        "ui",
        "--port",
        "0",
        *arguments,
        *(["--kubeconfig", str(kubeconfig)] if kubeconfig else []),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.fullmatch(r"Serving http://127\.0\.0\.1:(\d+)(/\S*)\n", process.stdout.readline())
            assert address is not None
            yield Site(int(address[1])), address[2]
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def token_of(cluster: Cluster, namespace: str, account: str, *, role: str | None = None) -> str:
    """The token of an account, which has this cluster role in its namespace."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    cluster.admin.apply(f"{accounts}/{account}", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
    if role is not None:
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": account},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }
        cluster.admin.apply(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{account}", binding)
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(cluster.admin.create(f"{accounts}/{account}/token", wanted)["status"]["token"])


READS_JOBS = {"apiGroups": ["muster.dev"], "resources": ["trainingjobs"], "verbs": ["get", "list", "watch"]}
READS_PODS = {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]}
READS_LOGS = {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}


def reader_role(cluster: Cluster, name: str = "job-reader", *rules: Object) -> str:
    """A role with these rules, or for jobs, pods and logs: there is no controller here that fills the role `view`."""
    metadata = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    role = {**metadata, "rules": list(rules or (READS_JOBS, READS_PODS, READS_LOGS))}
    cluster.admin.apply(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}", role)
    return name


def connection_options(cluster: Cluster) -> list[str]:
    return ["--sign-in", "--api-server", cluster.admin.server, "--authority", str(cluster.admin.authority)]


def test_the_page_of_a_cluster_shows_jobs_explanation_logs_and_deleted_jobs(
    cluster: Cluster, jobs: Jobs, kubelet: Kubelet, tmp_path: Path
) -> None:
    space = jobs.namespace
    with log_node(cluster.admin, tmp_path) as node:
        jobs.submit(job("digits", workers=2))
        on_log_node(jobs, kubelet, "digits", 2)
        jobs.reaches("digits", "Running")
        for number in (1, 2):
            node.write("digits-worker-0", f"epoch {number} of 3: step {20 * number}, loss 0.{number}000", f"2030-01-01T00:00:0{number}Z")
        leave(tmp_path / "storage" / space / "gone")
        options = ["-n", space, "--runs", str(tmp_path / "runs"), "--history", str(tmp_path / "storage")]
        with serving(*options, kubeconfig=cluster.kubeconfig) as (site, path):
            cookie = site.open(path)
            status, listed = site.page("/", cookie)
            assert status == 200
            assert f"/jobs/cluster/{space}/digits" in listed
            assert f"/jobs/gone/{space}/gone" in listed
            status, page = site.page(f"/jobs/cluster/{space}/digits", cookie)
            assert status == 200
            assert "Running" in page
            assert "The job runs" in page
            assert "epoch 2 of 3" in page
            assert 'data-part="Loss"' in page
            jobs.api.delete(f"/apis/muster.dev/v1beta1/namespaces/{space}/trainingjobs/digits")
            leave(tmp_path / "storage" / space / "digits")
            status, page = site.page(f"/jobs/gone/{space}/digits", cookie)
            assert status == 200
            assert "attempt 0 of worker-0" in page


def test_a_report_of_a_job_and_of_a_deleted_one(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    storage, target = tmp_path / "storage", (jobs.namespace, None, str(cluster.kubeconfig))
    jobs.submit(job("digits", workers=1))
    jobs.reaches("digits", "Running")
    file = tmp_path / "report.html"
    done = Muster(cluster.kubeconfig, jobs.namespace)("report", "digits", "-f", str(file))
    assert done.returncode == 0, done.stderr
    assert "digits: Running" in file.read_text()
    assert "The job runs" in file.read_text()
    assert 'data-part="Throughput"' not in file.read_text()
    created = datetime.fromisoformat(jobs.get("digits")["metadata"]["creationTimestamp"])
    leave(storage / jobs.namespace / "digits", created=created)
    page = as_html(page_of_job("digits", history=storage, target=target))
    assert 'data-part="Throughput"' in page
    assert "attempt 0 of worker-0" in page
    leave(storage / jobs.namespace / "gone")
    with pytest.raises(RefusalError, match="no job gone"):
        page_of_job("gone", history=None, target=target)
    assert "gone: Succeeded" in as_html(page_of_job("gone", history=storage, target=target))


def test_users_see_what_their_own_tokens_may_read(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    space, other = jobs.namespace, cluster.namespace("other")
    elsewhere = Jobs(cluster.admin, other)
    jobs.submit(job("mine", workers=1))
    jobs.reaches("mine", "Running")
    elsewhere.submit(job("theirs", workers=1))
    for name in (space, other):
        leave(tmp_path / "storage" / name / "gone")
    reader = token_of(cluster, space, "reader", role=reader_role(cluster))
    stranger = token_of(cluster, space, "stranger")
    try:
        with serving(*connection_options(cluster), "--history", str(tmp_path / "storage")) as (site, _):
            assert site.ask("GET", "/")[0] == 401
            assert site.sign_in("wrong")[0] == 401
            assert site.sign_in(f"{reader}\nX: y")[0] == 401
            assert site.sign_in(reader, Origin="https://evil.example")[0] == 403
            cookie = site.signed_in(reader)
            status, text = site.page(f"/?namespace={space}", cookie)
            assert (status, f"/jobs/cluster/{space}/mine" in text, f"/jobs/gone/{space}/gone" in text) == (200, True, True)
            assert site.page(f"/jobs/cluster/{space}/mine", cookie)[0] == 200
            assert site.page(f"/jobs/gone/{space}/gone", cookie)[0] == 200
            status, text = site.page(f"/?namespace={other}", cookie)
            assert (status, "/jobs/" in text, "forbidden" in text) == (200, False, True)
            status, text = site.page("/", cookie)
            assert (other in text, "Choose a namespace" in text) == (False, True)
            assert site.page(f"/jobs/cluster/{other}/theirs", cookie)[0] == 403
            assert site.page(f"/jobs/gone/{other}/gone", cookie)[0] == 404
            nobody = site.signed_in(stranger)
            assert site.page(f"/jobs/cluster/{space}/mine", nobody)[0] == 403
            assert site.page(f"/jobs/gone/{space}/gone", nobody)[0] == 404
            status, text, _ = site.ask("GET", f"/jobs/cluster/{space}/mine", Authorization=f"Bearer {reader}")
            assert (status, "mine" in text) == (200, True)
            assert site.ask("GET", "/", Authorization="Bearer wrong")[0] == 401
            out = site.ask("POST", "/sign-out", Cookie=cookie, Origin=f"http://127.0.0.1:{site.port}")
            assert out[0] == 303
            assert site.page("/", cookie)[0] == 401
    finally:
        cluster.empty(other)


CHANGES_JOBS = {"apiGroups": ["muster.dev"], "resources": ["trainingjobs"], "verbs": ["patch", "delete"]}


def test_a_change_needs_the_right_of_the_user(cluster: Cluster, jobs: Jobs, nodes: Nodes) -> None:
    space = jobs.namespace
    jobs.submit(job("mine", workers=1))
    jobs.reaches("mine", "Running")
    reader = token_of(cluster, space, "reader", role=reader_role(cluster))
    writer = token_of(cluster, space, "writer", role=reader_role(cluster, "job-writer", READS_JOBS, READS_PODS, CHANGES_JOBS))
    with serving(*connection_options(cluster)) as (site, _):
        own = {"Origin": f"http://127.0.0.1:{site.port}"}
        path = f"/jobs/cluster/{space}/mine"
        cookie = site.signed_in(reader)
        assert site.ask("POST", f"{path}/suspend", Cookie=cookie, **own)[0] == 403
        assert site.ask("POST", f"{path}/delete", Cookie=cookie, **own)[0] == 403
        assert not jobs.get("mine")["spec"].get("suspend")
        cookie = site.signed_in(writer)
        assert site.ask("POST", f"{path}/suspend", Cookie=cookie, Origin="https://evil.example")[0] == 403
        assert not jobs.get("mine")["spec"].get("suspend")
        assert site.ask("POST", f"{path}/suspend", Cookie=cookie, **own)[0] == 303
        jobs.reaches("mine", "Suspended")
        assert "/resume" in site.page(path, cookie)[1]
        assert site.ask("POST", f"{path}/delete", Cookie=cookie, **own)[0] == 303
        wait_until(lambda: site.page(path, cookie)[0] == 404, "the job is deleted")


def test_the_history_of_a_job_needs_the_right_to_read_logs(cluster: Cluster, jobs: Jobs, nodes: Nodes, tmp_path: Path) -> None:
    space = jobs.namespace
    jobs.submit(job("mine", workers=1))
    created = datetime.fromisoformat(jobs.get("mine")["metadata"]["creationTimestamp"])
    leave(tmp_path / space / "mine", created=created)
    roles = {
        "reader": (reader_role(cluster), True),
        "without-logs": (reader_role(cluster, "job-reader-without-logs", READS_JOBS, READS_PODS), False),
        "without-pods": (reader_role(cluster, "job-reader-without-pods", READS_JOBS), False),
    }
    with serving(*connection_options(cluster), "--history", str(tmp_path)) as (site, _):
        for account, (role, is_shown) in roles.items():
            cookie = site.signed_in(token_of(cluster, space, account, role=role))
            path = f"/jobs/cluster/{space}/mine"
            wait_until(lambda path=path, cookie=cookie: site.page(path, cookie)[0] == 200, f"{account} may read the job")
            _, page = site.page(path, cookie)
            assert ("attempt 0 of worker-0" in page, 'data-part="Throughput"' in page) == (is_shown, is_shown), account


def test_the_session_cookie_is_secure_and_no_page_has_a_token(cluster: Cluster, jobs: Jobs) -> None:
    reader = token_of(cluster, jobs.namespace, "reader", role=reader_role(cluster))
    with serving(*connection_options(cluster)) as (site, _):
        _, _, headers = site.sign_in(reader)
        cookie = headers["Set-Cookie"]
        assert cookie.startswith("__Host-muster-ui=")
        assert all(word in cookie for word in ("HttpOnly", "Secure", "SameSite=Strict", "Path=/"))
        assert reader not in json.dumps(headers)
        assert reader not in site.page("/", cookie.partition(";")[0])[1]


def test_sessions_end_and_their_number_is_bounded(cluster: Cluster, jobs: Jobs) -> None:
    reader = token_of(cluster, jobs.namespace, "reader")
    now = [0.0]

    async def live() -> None:
        sessions = UserSessions(server=cluster.admin.server, authority=str(cluster.admin.authority), history=None, clock=lambda: now[0])
        try:
            first = await sessions.sign_in(reader, ADDRESS)
            assert (await sessions.session(first, None, ADDRESS)).user.endswith(f"{jobs.namespace}:reader")
            others = [await sessions.sign_in(reader, ADDRESS) for _ in range(MOST_PER_USER)]
            with pytest.raises(NotSignedInError):
                await sessions.session(first, None, ADDRESS)
            for _ in range(int(SIGN_INS) - MOST_PER_USER - 1):
                with pytest.raises(NotSignedInError):
                    await sessions.sign_in("wrong", ADDRESS)
            with pytest.raises(TooManyError):
                await sessions.sign_in(reader, ADDRESS)
            now[0] = IDLE_SECONDS - 1
            await sessions.session(others[0], None, ADDRESS)
            now[0] = IDLE_SECONDS + 1
            await sessions.session(others[0], None, ADDRESS)
            with pytest.raises(NotSignedInError):
                await sessions.session(others[1], None, ADDRESS)
            while now[0] < SESSION_SECONDS:
                await sessions.session(others[0], None, ADDRESS)
                now[0] += IDLE_SECONDS / 2
            now[0] = SESSION_SECONDS + 1
            with pytest.raises(NotSignedInError):
                await sessions.session(others[0], None, ADDRESS)
        finally:
            await sessions.close()

    asyncio.run(live())
