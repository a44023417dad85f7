"""The web page of a user's own machine: what it shows, and to whom."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from muster.api.status import TrainingJobStatus
from muster.client import errors, views
from muster.client.async_job import AsyncJob
from muster.explain.snapshot import Snapshot
from muster.tools.report.job import JobView
from muster.tools.ui.app import HEADERS, Pages
from muster.tools.ui.following import MOST_STEPS, RunFollower
from muster.tools.ui.job_rows import Listed, row_of
from muster.tools.ui.sessions import REQUESTS, OwnSession, UserSessions
from muster.tools.ui.sources import DeletedJobs, LocalRuns, Source, Sources
from tests.unit.tools.report.test_recorded import leave

HOST = "127.0.0.1:7788"
JOB = """
apiVersion: muster.dev/v1beta1
kind: TrainingJob
metadata: {name: digits, uid: uid-1, creationTimestamp: "2026-11-21T11:16:14Z"}
spec: {strategy: DDP, trainer: {task: digits}}
"""


def run_directory(folder: Path, *, message: str = "attempt 0 trains", steps: int = 3) -> Path:
    replica = folder / "attempts" / "0" / "worker-0"
    replica.mkdir(parents=True)
    (folder / "job.yaml").write_text(JOB)
    (folder / "status.json").write_text(json.dumps({"phase": "Running", "message": message, "workers": "1/1"}))
    (replica / "log.txt").write_text("".join(f"line {n}\n" for n in range(300)))
    (replica / "events.jsonl").write_text("".join(event(step) for step in range(1, steps + 1)))
    return folder


def event(step: int) -> str:
    origin = {"rank": 0, "role": "worker", "index": 0, "attempt": 0}
    return json.dumps({"event": "step", "time": 1.8e9 + step, "step": step, "loss": "0.5", "samples": 8, "seconds": 0.5, **origin}) + "\n"


class Browser:
    """A client with the cookie of the session, unless it is to have none."""

    def __init__(self, client: Any, session: OwnSession) -> None:
        self._client = client
        self.secret = session.secret

    async def get(self, path: str, *, signed_in: bool = True, **headers: str) -> ClientResponse:
        cookie = {"Cookie": f"muster={self.secret}"} if signed_in else {}
        answer: ClientResponse = await self._client.get(path, headers={"Host": HOST, **cookie, **headers}, allow_redirects=False)
        return answer


def visit(sources: Sources, look: Callable[[Browser], Awaitable[None]], *, clock: Callable[[], float] = lambda: 0.0) -> None:
    async def session() -> None:
        own = OwnSession(sources, clock)
        pages = Pages(own, hosts={HOST}, cookie="muster")
        async with TestClient(TestServer(pages.application())) as client:
            await look(Browser(client, own))

    asyncio.run(session())


def test_the_list_and_the_page_of_a_run(tmp_path: Path) -> None:
    run_directory(tmp_path / "digits")

    async def look(browser: Browser) -> None:
        listed = await (await browser.get("/")).text()
        assert 'href="/jobs/local/-/digits"' in listed
        assert "Running" in listed
        page = await (await browser.get("/jobs/local/-/digits")).text()
        assert "attempt 0 trains" in page
        assert "data-plot=" in page
        assert "line 299" in page
        assert "line 99\n" not in page
        with (tmp_path / "digits" / "attempts" / "0" / "worker-0" / "log.txt").open("a") as log:
            log.write("a later line\n")
        assert "a later line" in await (await browser.get("/jobs/local/-/digits")).text()

    visit({"local": LocalRuns(tmp_path)}, look)


def test_a_deleted_job_is_shown_from_its_history(tmp_path: Path) -> None:
    leave(tmp_path / "default" / "digits")

    async def look(browser: Browser) -> None:
        assert "default, deleted" in await (await browser.get("/")).text()
        page = await (await browser.get("/jobs/gone/default/digits")).text()
        assert "attempt 0 of worker-0" in page
        assert "made of the history" in page

    visit({"gone": DeletedJobs(tmp_path, None)}, look)


def test_only_the_style_sheet_is_served_without_the_token(tmp_path: Path) -> None:
    async def look(browser: Browser) -> None:
        for path in ("/", "/jobs/local/-/digits", "/?token=wrong"):
            answer = await browser.get(path, signed_in=False)
            assert answer.status == 401
            assert "digits" not in await answer.text()
        opened = await browser.get(f"/?token={browser.secret}", signed_in=False)
        assert (opened.status, opened.headers["Location"]) == (303, "/")
        cookie = opened.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert (await browser.get("/static/ui.js", signed_in=False)).status == 200

    visit({"local": LocalRuns(run_directory(tmp_path / "digits").parent)}, look)


def test_any_address_with_the_token_opens_its_page(tmp_path: Path) -> None:
    async def look(browser: Browser) -> None:
        wrong = await browser.get("/jobs/local/-/digits?token=wrong", signed_in=False)
        assert (wrong.status, "Set-Cookie" in wrong.headers) == (401, False)
        opened = await browser.get(f"/jobs/local/-/digits?replica=worker-0&token={browser.secret}", signed_in=False)
        assert (opened.status, opened.headers["Location"]) == (303, "/jobs/local/-/digits?replica=worker-0")
        assert browser.secret in opened.headers["Set-Cookie"]
        assert (await browser.get("/jobs/local/-/digits?token=wrong")).status == 200, "a link of others signs nobody out"

    visit({"local": LocalRuns(run_directory(tmp_path / "digits").parent)}, look)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7788", "127.0.0.1", "127.0.0.1:80", "localhost.evil.example:7788"])
def test_a_request_with_a_foreign_host_name_is_refused(tmp_path: Path, host: str) -> None:
    async def look(browser: Browser) -> None:
        answer = await browser.get("/", Host=host)
        assert answer.status == 403

    visit({"local": LocalRuns(tmp_path)}, look)


def test_every_answer_forbids_foreign_scripts_frames_and_caches(tmp_path: Path) -> None:
    async def look(browser: Browser) -> None:
        for path in ("/", "/jobs/local/-/digits", "/jobs/local/-/none", "/static/ui.css", "/nothing"):
            answer = await browser.get(path)
            assert HEADERS.items() <= dict(answer.headers).items(), path
            text = await answer.text()
            assert not re.search(r"<script(?! src=)|\son[a-z]+=|javascript:", text), path

    visit({"local": LocalRuns(run_directory(tmp_path / "digits").parent)}, look)


def test_methods_that_change_state_are_refused(tmp_path: Path) -> None:
    async def session() -> None:
        own = OwnSession({"local": LocalRuns(tmp_path)}, lambda: 0.0)
        async with TestClient(TestServer(Pages(own, hosts=None, cookie="muster").application())) as client:
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                for path in ("/", "/jobs/local/-/digits", "/sign-in"):
                    headers = {"Cookie": f"muster={own.secret}", "Origin": f"http://{client.host}:{client.port}"}
                    assert (await client.request(method, path, headers=headers)).status in (403, 404, 405)

    asyncio.run(session())


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2f..%2fetc", "a%00b", "a%2fb", "x" * 300, "<b>"])
def test_paths_in_names_do_not_lead_outside_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "runs").mkdir()
    run_directory(tmp_path / "other")
    leave(tmp_path / "storage" / "default" / "digits")

    async def look(browser: Browser) -> None:
        for kind in ("local", "gone", "cluster"):
            for place in (f"-/{name}", f"{name}/digits"):
                answer = await browser.get(f"/jobs/{kind}/{place}")
                assert answer.status == 404, place
                assert "<b>" not in await answer.text()

    visit({"local": LocalRuns(tmp_path / "runs"), "gone": DeletedJobs(tmp_path / "storage" / "default", None)}, look)


def test_links_in_the_folders_are_not_listed(tmp_path: Path) -> None:
    real = leave(tmp_path / "real" / "default" / "digits").parents[2]
    (tmp_path / "storage" / "default").mkdir(parents=True)
    (tmp_path / "storage" / "default" / "linked").symlink_to(real)

    async def look(browser: Browser) -> None:
        assert "linked" not in await (await browser.get("/")).text()

    visit({"gone": DeletedJobs(tmp_path / "storage", None)}, look)


def test_a_run_that_was_moved_aside_is_not_listed(tmp_path: Path) -> None:
    run_directory(tmp_path / "digits")
    run_directory(tmp_path / "digits.1")

    async def look(browser: Browser) -> None:
        text = await (await browser.get("/")).text()
        assert "/jobs/local/-/digits" in text
        assert "digits.1" not in text

    visit({"local": LocalRuns(tmp_path)}, look)


def test_text_of_a_job_is_shown_as_text(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    run = run_directory(tmp_path / "digits", message=script)
    (run / "attempts" / "0" / "worker-0" / "log.txt").write_text(f"{script}\x1b[2J\n")

    async def look(browser: Browser) -> None:
        for path in ("/", "/jobs/local/-/digits"):
            text = await (await browser.get(path)).text()
            assert script not in text
            assert "&lt;script&gt;" in text or path == "/"
            assert "\x1b" not in text

    visit({"local": LocalRuns(tmp_path)}, look)


def test_a_row_of_a_job_that_an_older_operator_wrote_is_shown() -> None:
    metadata = {"name": "digits", "namespace": "default", "creationTimestamp": "soon"}
    row = row_of({"metadata": metadata, "spec": {}, "status": {"phase": 3, "progress": {"step": "many", "loss": 0.5}}})
    assert row == Listed("cluster", "default", "digits", state="Pending")


WAITING = {"name": "team-a", "since": "2026-11-21T11:20:00Z", "position": 3, "clusterQueuePosition": 7, "summary": "3 in team-a"}


class Empty:
    """A source without jobs."""

    async def listed(self, namespace: str | None) -> list[Listed]:
        return []

    async def view(self, namespace: str, name: str, *, replica: str | None) -> JobView:
        raise errors.NoJobError("there is no such job")

    async def log(self, namespace: str, name: str, *, replica: str | None) -> tuple[list[str], list[str]]:
        return [], []

    async def job(self, namespace: str, name: str) -> AsyncJob:
        raise errors.NoJobError("there is no such job")


class Waiting(Empty):
    """A cluster with a job that waits in a queue, and one that does not."""

    async def listed(self, namespace: str | None) -> list[Listed]:
        statuses: dict[str, dict[str, Any]] = {"digits": {"queue": WAITING}, "other": {"phase": "Running"}}
        return [row_of({"metadata": {"name": name, "namespace": "a"}, "spec": {}, "status": each}) for name, each in statuses.items()]

    async def view(self, namespace: str, name: str, *, replica: str | None) -> JobView:
        return JobView(name, "Pending", TrainingJobStatus.from_wire({"queue": WAITING}))


def test_a_job_that_waits_in_a_queue_says_where_and_since_when(tmp_path: Path) -> None:
    waiting: Source = Waiting()

    async def look(browser: Browser) -> None:
        listed = await (await browser.get("/")).text()
        assert re.findall(r'data-name="queued">([^<]*)<', listed) == ["3 in team-a", ""]
        page = await (await browser.get("/jobs/cluster/a/digits")).text()
        for words in ("3 in team-a", "position in its ClusterQueue", ">7<", "2026-11-21 11:20:00"):
            assert words in page

    visit({"cluster": waiting}, look)


def test_the_list_has_no_column_for_queues_when_no_job_waits_in_one(tmp_path: Path) -> None:
    async def look(browser: Browser) -> None:
        assert "queued" not in await (await browser.get("/")).text()

    visit({"local": LocalRuns(run_directory(tmp_path / "digits").parent)}, look)


class Broken(Empty):
    """A cluster that does not answer."""

    async def listed(self, namespace: str | None) -> list[Listed]:
        raise errors.NoClusterError("the API server of context test does not answer")

    async def view(self, namespace: str, name: str, *, replica: str | None) -> JobView:
        raise errors.NoRightsError("no rights: jobs are forbidden")


def test_a_cluster_that_does_not_answer_hides_no_local_runs(tmp_path: Path) -> None:
    broken: Source = Broken()

    async def look(browser: Browser) -> None:
        text = await (await browser.get("/")).text()
        assert "The API server" in text or "the API server of context test does not answer" in text
        assert "/jobs/local/-/digits" in text
        assert (await browser.get("/jobs/cluster/default/digits")).status == 403

    visit({"local": LocalRuns(run_directory(tmp_path / "digits").parent), "cluster": broken}, look)


def test_requests_of_a_session_are_limited_in_rate(tmp_path: Path) -> None:
    now = [0.0]

    async def look(browser: Browser) -> None:
        statuses = [(await browser.get("/")).status for _ in range(int(REQUESTS) + 1)]
        assert statuses == [200] * int(REQUESTS) + [429]
        now[0] = 1.0
        assert (await browser.get("/")).status == 200

    visit({"local": LocalRuns(tmp_path)}, look, clock=lambda: now[0])


def test_a_run_with_very_many_events_of_step_0_is_read(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "digits")
    with (run / "attempts" / "0" / "worker-0" / "events.jsonl").open("a") as file:
        file.write(event(0) * (MOST_STEPS + 3))
    history = RunFollower(run).history()
    assert history is not None
    assert max(history.curve) > 0


def test_a_growing_run_is_read_incrementally_with_a_limited_number_of_steps(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "digits")
    follower = RunFollower(run)
    first = follower.history()
    assert first is not None
    assert max(first.curve) == 3
    with (run / "attempts" / "0" / "worker-0" / "events.jsonl").open("a") as file:
        file.write(event(4) + event(5)[:20])
    second = follower.history()
    assert second is not None
    assert max(second.curve) == 4
    with (run / "attempts" / "0" / "worker-0" / "events.jsonl").open("a") as file:
        file.write(event(5)[20:] + "".join(event(step) for step in range(6, MOST_STEPS + 3)))
    third = follower.history()
    assert third is not None
    assert (len(third.steps), max(third.curve)) == (MOST_STEPS // 2 + 1, MOST_STEPS + 2)


FORM = (
    b"POST /sign-in HTTP/1.1\r\nHost: x\r\nOrigin: http://x\r\nConnection: close\r\nContent-Length: 8\r\nContent-Type: %s\r\n\r\ntoken=ab"
)
MALFORMED = {
    "a token that is not UTF-8": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer \xff\r\n\r\n",
    "a cookie that is not UTF-8": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: muster=\xff\r\n\r\n",
    "a form in no character set": FORM % b"application/x-www-form-urlencoded; charset=nonsense",
    "a form without a boundary": FORM % b"multipart/form-data",
    "a form of another shape": FORM % b"multipart/form-data; boundary=en=ab",
}


@pytest.mark.parametrize("request_", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("in_cluster", [True, False], ids=["cluster", "own machine"])
def test_a_malformed_request_is_no_fault_of_the_page(request_: bytes, in_cluster: bool, caplog: pytest.LogCaptureFixture) -> None:
    users = UserSessions(server="https://127.0.0.1:1", authority=None, history=None, clock=lambda: 0.0)
    pages = Pages(users if in_cluster else OwnSession({}, lambda: 0.0), hosts=None, cookie="muster")

    async def status() -> bytes:
        async with TestServer(pages.application()) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request_)
            line = await asyncio.wait_for(reader.readline(), 60)
            writer.close()
            return line

    found = asyncio.run(status())
    assert found.startswith(b"HTTP/1.1 401 ") or (not in_cluster and request_.startswith(b"POST") and b" 404 " in found), found
    assert caplog.records == []


def test_a_large_job_does_not_occupy_the_event_loop_of_all_users(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"name": "digits", "namespace": "a", "uid": "j"}
    snapshot = Snapshot(now=datetime.now(UTC), job={"metadata": metadata, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}})
    threads = []

    async def read(*_: Any, **__: Any) -> Any:
        return snapshot

    async def no_logs(*_: Any, **__: Any) -> list[Any]:
        return []

    def recorded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def record(argument: Any) -> Any:
            threads.append(threading.current_thread())
            return function(argument)

        return record

    monkeypatch.setattr(views, "snapshot_of", read)
    monkeypatch.setattr(views, "tails_of", no_logs)
    for name in ("explain", "write_yaml"):
        monkeypatch.setattr(views, name, recorded(getattr(views, name)))
    connection: Any = type("Connection", (), {"namespace": "a"})
    view = asyncio.run(views.cluster_view(connection, "digits"))
    assert "strategy: DDP" in view.job_yaml
    assert len(threads) == 2
    assert threading.main_thread() not in threads
