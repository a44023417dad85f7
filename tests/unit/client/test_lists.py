"""Lists of the API server over HTTP: they are read in pages of few bytes, without specs, and nothing leads to another address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from muster.client import cuts, errors
from muster.client.connection import Connection
from muster.client.jobs import Jobs
from muster.client.snapshot import snapshot_of
from muster.kubernetes import api_server
from muster.kubernetes.api_server import ApiServer
from muster.kubernetes.objects import Object

COLUMNS = ("Name", "STRATEGY", "PHASE", "WORKERS", "STEP", "%", "MESSAGE", "A NEWER ONE")


class TableServer:
    """Serves these objects in pages, each of them below any path, and as Tables if asked to."""

    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects
        self.asked: list[web.Request] = []
        self.largest = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        begin, size = int(request.query.get("continue", "0")), int(request.query.get("limit", "1"))
        cut = self.objects[begin : begin + size]
        more = str(begin + size) if begin + size < len(self.objects) else ""
        metadata = {"continue": more}
        if "as=Table" in request.headers["Accept"]:
            rows = [{"cells": [each["metadata"]["name"], "DDP", "Running", "2/2", 7, 70, "m" * 9000, 1], "object": each} for each in cut]
            answer = web.json_response({"metadata": metadata, "columnDefinitions": [{"name": name} for name in COLUMNS], "rows": rows})
        elif request.path.endswith("/digits"):
            answer = web.json_response(job("digits"))
        else:
            answer = web.json_response({"metadata": metadata, "items": cut})
        self.largest = max(self.largest, len(answer.body))  # type: ignore[arg-type]
        return answer


def job(name: str) -> Object:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "creationTimestamp": "2026-11-21T11:16:14Z"}
    return {"metadata": metadata, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}}


def pod(number: int, **spec: Any) -> Object:
    metadata = {"name": f"digits-worker-{number}", "namespace": "team", "uid": f"pod-{number}", "managedFields": [{"a": "b" * 5000}]}
    labels = {"muster.dev/role": "worker", "muster.dev/index": str(number)}
    env = [{"name": "LARGE", "value": "x" * 5000}]
    container = {"name": "trainer", "env": env, "resources": {"limits": {"cpu": "1"}}}
    status = {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": {"running": {}}, "imageID": "i" * 5000}]}
    return {"metadata": {**metadata, "labels": labels}, "spec": {"containers": [container], **spec}, "status": status}


def on(server: TableServer, scene: Callable[[Connection], Awaitable[Any]]) -> Any:
    async def session() -> Any:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", server.answer)
        async with TestServer(application) as site, client.ApiClient(client.Configuration(host=str(site.make_url("")))) as api:
            return await scene(Connection(ApiServer(api), namespace="team", context="here"))

    return asyncio.run(session())


def test_jobs_are_listed_without_their_specs() -> None:
    server = TableServer([job("a"), job("b")])
    listed = on(server, lambda connection: Jobs(connection).summaries())
    assert [each["metadata"]["name"] for each in listed] == ["a", "b"]
    assert listed[0]["spec"] == {"strategy": "DDP"}
    assert listed[0]["status"].items() >= {"phase": "Running", "workers": "2/2", "progress": {"step": 7, "percent": 70}}.items()
    assert len(listed[0]["status"]["message"]) < 9000
    assert server.asked[0].query["includeObject"] == "Metadata"


def test_a_list_is_read_in_pages_of_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "LARGEST_PAGE", 1 << 20)
    objects = [{"metadata": {"name": f"n{number}", "annotations": {"large": "x" * 300_000}}} for number in range(12)]
    server = TableServer(objects)
    names = on(server, lambda connection: connection.items(connection.path("v1", "events"), cuts.plain))
    assert names == [{"metadata": {"name": f"n{number}"}} for number in range(12)]
    read = [request for request in server.asked if request.query["limit"] != "25"]
    assert {request.query["limit"] for request in read} <= {"1", "2", "3"}


def test_an_object_that_is_too_large_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "LARGEST_PAGE", 1000)
    monkeypatch.setattr(api_server, "LARGEST_ANSWER", 2000)
    with pytest.raises(errors.TooLargeError, match="more than 2000 bytes"):
        on(TableServer([pod(1)]), lambda connection: connection.items(connection.path("v1", "pods")))


def test_a_pod_is_kept_without_what_no_explanation_reads() -> None:
    pods = on(TableServer([pod(number) for number in range(100)]), lambda connection: Jobs(connection).pods(job("digits")))
    assert len(pods) == 100
    assert len(str(pods[0])) < 700
    assert pods[0]["spec"]["containers"] is pods[1]["spec"]["containers"], "equal parts are one object"
    assert {each["metadata"]["labels"]["muster.dev/index"] for each in pods} == {str(number) for number in range(100)}


def test_what_is_kept_of_a_list_is_limited_and_what_was_not_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "MOST_KEPT", 3000)
    server = TableServer([pod(number, nodeName=f"node-{number}" * 20) for number in range(50)])
    snapshot = on(server, lambda connection: snapshot_of(connection, "digits"))
    assert "pods" in snapshot.unreadable
    assert snapshot.job["metadata"]["name"] == "digits"


class Manager(TableServer):
    """A cluster whose MultiKueue copies the job to another one. It serves Kueue's API in these versions."""

    def __init__(self, *versions: str, code: int = 200) -> None:
        super().__init__([])
        self.versions = versions
        self.code = code

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kueue = "/apis/kueue.x-k8s.io"
        if request.path == kueue and self.versions:
            return web.json_response({"versions": [{"version": each} for each in self.versions]})
        if request.path == f"{kueue}/{self.versions[:1] and self.versions[0]}/namespaces/team/workloads/digits" and self.code == 200:
            return web.json_response({"metadata": {"name": "digits"}, "status": {"clusterName": "east"}})
        if request.path == kueue:
            return web.Response(text="404 page not found", status=404)
        if request.path.startswith(kueue):
            reason, message = {403: ("Forbidden", "you cannot get workloads")}.get(self.code, ("NotFound", "not found"))
            code = 404 if self.code == 200 else self.code
            return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)
        if request.path.endswith("/trainingjobs/digits"):
            return web.json_response({**job("digits"), "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}})
        return await super().answer(request)


@pytest.mark.parametrize(
    ("manager", "cluster", "unreadable"),
    [
        (Manager("v1beta2", "v1beta1"), "east", False),
        (Manager("v1beta1", "v1alpha1"), "east", False),
        (Manager("v1beta3"), "", False),
        (Manager(), "", False),
        (Manager("v1beta2", code=404), "", False),
        (Manager("v1beta2", code=403), "", True),
    ],
    ids=["current", "earlier", "unknown", "no Kueue", "no Workload", "no rights"],
)
def test_the_workload_of_a_job_that_multikueue_copies_is_read(manager: Manager, cluster: str, unreadable: bool) -> None:
    snapshot = on(manager, lambda connection: snapshot_of(connection, "digits"))
    assert (snapshot.workload or {}).get("status", {}).get("clusterName", "") == cluster
    assert ("workloads" in snapshot.unreadable) is unreadable


def test_the_workload_of_another_job_is_not_read() -> None:
    server = TableServer([])
    assert on(server, lambda connection: snapshot_of(connection, "digits")).workload is None
    assert not [each for each in server.asked if "kueue" in each.path]


def test_the_jobs_that_are_kept_of_a_list_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "MOST_KEPT", 3000)
    server = TableServer([job(f"job-{number}") for number in range(100)])
    with pytest.raises(errors.TooLargeError, match="MiB"):
        on(server, lambda connection: Jobs(connection).summaries())
    assert len(server.asked) < 10
    with pytest.raises(errors.NoJobError, match="there is no job absent"):
        on(Absent(server.objects), lambda connection: Jobs(connection).get("absent"))


class Absent(TableServer):
    """Has no job of the name `absent`."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/absent"):
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}, status=404)
        return await super().answer(request)


def test_of_many_writers_of_a_job_only_the_last_writes_are_kept() -> None:
    writers = [{"manager": f"m{number}", "time": f"2026-11-21T11:{number % 60:02}:00Z"} for number in range(4000)]
    writers += [{"manager": "muster", "subresource": "status", "time": f"2026-11-21T12:0{number}:00Z"} for number in range(5)]
    written = job("a")
    written["metadata"]["managedFields"] = writers
    [listed] = on(TableServer([written]), lambda connection: Jobs(connection).summaries())
    assert listed["metadata"]["managedFields"] == [
        {"time": "2026-11-21T11:59:00Z"},
        {"time": "2026-11-21T12:04:00Z", "subresource": "status"},
    ]


@pytest.mark.parametrize("namespace", ["../../../../api/v1/pods?x=", "a/b", "", "a.b", "x" * 64])
def test_a_namespace_does_not_lead_to_another_path(namespace: str) -> None:
    server = TableServer([])
    with pytest.raises(errors.NotFoundError, match="not the name of a namespace"):
        on(server, lambda connection: Jobs(connection.within(namespace)).summaries())
    assert server.asked == []


def test_a_redirect_is_not_followed() -> None:
    class Redirecting(TableServer):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            self.asked.append(request)
            raise web.HTTPTemporaryRedirect("/api/v1/secrets")

    server = Redirecting([])
    with pytest.raises(errors.NoClusterError, match="another address"):
        on(server, lambda connection: Jobs(connection).summaries())
    assert [request.path for request in server.asked] == ["/apis/muster.dev/v1beta1/namespaces/team/trainingjobs"]


class Streaming(TableServer):
    """A log with one line without an end for 16 MiB, and another line."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(256):
            await answer.write(b"x" * 65_536)
        await answer.write(b"\nnext\n")
        return answer


def test_a_line_without_end_in_a_log_is_cut() -> None:
    async def lengths(connection: Connection) -> list[int]:
        return [len(line) async for line in connection.stream(connection.path("v1", "pods", "digits-worker-0", subresource="log"))]

    assert on(Streaming([]), lengths) == [api_server.LARGEST_ANSWER, len("next")]


@pytest.mark.parametrize(
    "name", ["../../secrets", "a/b", "a%2fb", "a?b", "a#b", "..", "", "a\nb", "\u0430", "a\uff0fb", "A", "x" * 254, "a..b"]
)
def test_the_name_of_an_object_does_not_lead_to_another_path(name: str) -> None:
    server = TableServer([])
    with pytest.raises(errors.NoJobError):
        on(server, lambda connection: Jobs(connection).get(name))
    assert {request.path for request in server.asked} <= {"/apis/muster.dev/v1beta1/namespaces/team/trainingjobs"}


def test_a_redirect_of_a_stream_is_not_followed() -> None:
    class Redirecting(TableServer):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            self.asked.append(request)
            raise web.HTTPFound("http://127.0.0.1:1/latest/meta-data")

    async def scene(connection: Connection) -> list[bytes]:
        return [line async for line in connection.stream(connection.path("v1", "pods", "digits-worker-0", subresource="log"))]

    server = Redirecting([])
    with pytest.raises(errors.NoClusterError, match="another address"):
        on(server, scene)
    assert len(server.asked) == 1
