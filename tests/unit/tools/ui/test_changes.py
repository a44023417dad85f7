"""What a user does on the page: changes of jobs, logs, and curves of several jobs in one plot."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from muster.api.status import TrainingJobStatus
from muster.client import errors
from muster.client.places import places_of
from muster.kubernetes.token_bucket import Bucket
from muster.tools.report.job import JobView, job_page
from muster.tools.report.page import as_html
from muster.tools.ui.app import MOST_OVERLAID, Pages
from muster.tools.ui.sessions import OwnSession, Session
from muster.tools.ui.sources import LocalRuns, Source, Sources
from tests.unit.local.local_jobs import job as job_of
from tests.unit.tools.ui.test_pages import HOST, Browser, Empty, event, run_directory, visit

ORIGIN = f"http://{HOST}"
JOB = "/jobs/local/-/digits"
Post = Callable[..., Awaitable[ClientResponse]]


def post(sources: Sources, look: Callable[[Post], Awaitable[None]]) -> None:
    async def session() -> None:
        own = OwnSession(sources, lambda: 0.0)
        async with TestClient(TestServer(Pages(own, hosts={HOST}, cookie="muster").application())) as client:

            async def send(path: str, *, cookie: str = own.secret, **headers: str) -> Any:
                given = {"Host": HOST, "Cookie": f"muster={cookie}", "Origin": ORIGIN, **headers}
                return await client.post(path, headers=given, allow_redirects=False)

            await look(send)

    asyncio.run(session())


class Recorded(Empty):
    """A source that records the changes of its jobs. Those of the job `ended` are refused."""

    def __init__(self) -> None:
        self.changes: list[str] = []

    async def job(self, namespace: str, name: str) -> Any:
        changes = self.changes

        class Job:
            def __getattr__(self, action: str) -> Callable[[], Awaitable[None]]:
                async def change() -> None:
                    if name == "ended":
                        raise errors.RefusedError("ended has ended")
                    changes.append(f"{action} {namespace}/{name}")

                return change

        return Job()


def test_a_form_of_the_page_changes_a_job_with_the_client_of_the_user() -> None:
    source = Recorded()
    recorded: Source = source

    async def look(send: Post) -> None:
        for action in ("suspend", "resume", "restart"):
            answer = await send(f"/jobs/cluster/ml/digits/{action}")
            assert (answer.status, answer.headers["Location"]) == (303, "/jobs/cluster/ml/digits")
        answer = await send("/jobs/cluster/ml/digits/delete")
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        refused = await send("/jobs/cluster/ml/ended/suspend")
        assert (refused.status, "ended has ended" in (await refused.text()).lower()) == (409, True)

    post({"cluster": recorded}, look)
    assert source.changes == [f"{action} ml/digits" for action in ("suspend", "resume", "restart", "delete")]


def test_a_session_that_ends_keeps_its_connection_until_its_changes_are_done() -> None:
    async def session() -> list[str]:
        done: list[str] = []
        ended = Session({}, "ann", 0.0, Bucket(1.0, 1.0, 1.0, 0.0), 0.0)
        ended.stack.callback(done.append, "closed")
        go_on = asyncio.Event()

        async def change() -> None:
            await go_on.wait()
            done.append("changed")

        ended.changes.add(asyncio.create_task(change()))
        closing = asyncio.create_task(ended.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        return done

    assert asyncio.run(session()) == ["changed", "closed"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (f"{JOB}/delete", {"Origin": "https://evil.example"}, 403),
        (f"{JOB}/delete", {"Origin": "null"}, 403),
        (f"{JOB}/delete", {"Origin": ""}, 403),
        (f"{JOB}/delete", {"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        (f"{JOB}/delete", {"cookie": "wrong"}, 401),
        (f"{JOB}/_stop_and_start", {}, 404),
        ("/jobs/local/-/..%2fdigits/delete", {}, 404),
        ("/jobs/gone/-/digits/delete", {}, 404),
    ],
)
def test_other_requests_change_no_job(tmp_path: Path, path: str, headers: dict[str, str], status: int) -> None:
    run = run_directory(tmp_path / "digits")

    async def look(send: Post) -> None:
        assert (await send(path, **headers)).status == status

    post({"local": LocalRuns(tmp_path)}, look)
    assert run.exists()


def test_a_local_run_is_deleted_as_the_command_does(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "digits")

    async def look(send: Post) -> None:
        assert (await send(f"{JOB}/delete")).status == 303
        assert (await send(f"{JOB}/delete")).status == 404

    post({"local": LocalRuns(tmp_path)}, look)
    assert (run.exists(), (tmp_path / "digits.1" / "job.yaml").exists()) == (False, True)


@pytest.mark.parametrize(
    ("phase", "actions"), [("Succeeded", ["delete"]), ("Failed", ["restart", "delete"]), ("Suspended", ["resume", "delete"])]
)
def test_a_page_offers_what_fits_the_state_of_the_job(tmp_path: Path, phase: str, actions: list[str]) -> None:
    (run_directory(tmp_path / "digits") / "status.json").write_text(json.dumps({"phase": phase}))

    async def look(browser: Browser) -> None:
        assert re.findall(r'action="[^"]*/(\w+)"', await (await browser.get(JOB)).text()) == actions

    visit({"local": LocalRuns(tmp_path)}, look)


def test_the_log_is_searched_and_downloaded(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "digits")
    other = run / "attempts" / "0" / "worker-1"
    other.mkdir()
    (other / "log.txt").write_text("<script>alert(1)</script>\x1b line 7\n")

    async def look(browser: Browser) -> None:
        page = await (await browser.get(f"{JOB}/logs?search=LINE+7")).text()
        found = ["[worker-0] line 7", *(f"[worker-0] line 7{n}" for n in range(10))]
        assert all(f"{line}\n" in page for line in found)
        assert "line 8\n" not in page
        assert "[worker-1] &lt;script&gt;" in page
        assert "\x1b" not in page
        answer = await browser.get(f"{JOB}/logs?search=line+29&replica=worker-0&download=1")
        assert answer.headers["Content-Disposition"] == 'attachment; filename="digits.log"'
        assert (await answer.text()).splitlines() == ["[worker-0] line 29", *(f"[worker-0] line 29{n}" for n in range(10))]
        assert (await browser.get("/jobs/local/-/none/logs")).status == 404
        assert (await browser.get(f"{JOB}/logs", signed_in=False)).status == 401

    visit({"local": LocalRuns(tmp_path)}, look)


def test_the_curves_of_several_runs_are_in_one_plot_for_each_metric(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run = run_directory(tmp_path / name)
        with (run / "attempts" / "0" / "worker-0" / "events.jsonl").open("a") as file:
            for each in ("accuracy", "learning_rate"):
                evaluation = {**json.loads(event(3)), "event": "evaluation", "metrics": {each: 0.25}}
                file.write(json.dumps(evaluation) + "\n")

    async def look(browser: Browser) -> None:
        page = await (await browser.get("/overlay?job=local/-/one&job=local/-/two")).text()
        plots = [json.loads(html.unescape(each)) for each in re.findall(r'data-plot="([^"]*)"', page)]
        assert [plot["yLabel"] for plot in plots] == ["loss", "accuracy", "learning_rate"]
        assert [[line["label"] for line in plot["lines"]] for plot in plots] == [["one", "two"]] * 3
        assert plots[0]["lines"][0]["points"] == [[1, 0.5], [2, 0.5], [3, 0.5]]
        assert len({line["colour"] for line in plots[0]["lines"]}) == 2
        for wrong in ("local/-/none", "cluster/a/b", "local", ""):
            assert (await browser.get(f"/overlay?job={wrong}")).status == 404
        many = "&".join(f"job=local/-/one&job=local/-/two{n}" for n in range(MOST_OVERLAID))
        assert (await browser.get(f"/overlay?{many}")).status == 404

    visit({"local": LocalRuns(tmp_path)}, look)


ENV = [
    {"name": "MLFLOW_TRACKING_URI", "value": "http://mlflow.example"},
    {"name": "WANDB_PROJECT", "value": "digits"},
    {"name": "WANDB_ENTITY", "value": "../team"},
    {"name": "WANDB_RUN_ID", "value": "r1"},
    {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
    "nonsense",
]


def test_a_page_leads_to_the_trackers_and_checkpoints_that_the_job_names() -> None:
    job = job_of()
    role = job.spec.roles["worker"].model_copy(update={"template": {"spec": {"containers": [{"name": "trainer", "env": ENV}]}}})
    places = places_of(job.model_copy(update={"spec": job.spec.model_copy(update={"roles": {"worker": role}})}), tensorboard="runs/a/tb")
    assert places == [
        ("MLflow", "http://mlflow.example"),
        ("W&B", "https://wandb.ai/..%2Fteam/digits/runs/r1"),
        ("TensorBoard", "tensorboard --logdir runs/a/tb"),
    ]


def test_an_address_that_is_no_web_page_is_no_link() -> None:
    places = [("a", "https://a.example/?x=<b>"), ("b", "javascript:alert(1)"), ("c", "s3://bucket/a")]
    page = as_html(job_page(JobView("digits", "Running", TrainingJobStatus(), places=places)))
    assert re.findall(r'href="([^"]*)"', page) == ["https://a.example/?x=&lt;b&gt;"]
    assert "<code>javascript:alert(1)</code>" in page
