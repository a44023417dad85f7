"""The watches, against a small server: every gap is reported, and a watch never ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from muster.kubernetes.api_server import ApiServer
from muster.kubernetes.backoff import Delays
from muster.kubernetes.watches import Watch

LIMIT = 10.0
PATH = "/api/v1/pods"


class WatchServer:
    """Answers the n-th watch with the n-th of `answers`: a status, or lines to send. After the last one it keeps the stream open."""

    def __init__(self, *answers: int | list[Any]) -> None:
        self._answers = list(answers)
        self.requests: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        answer = self._answers.pop(0) if self._answers else []
        if isinstance(answer, int):
            headers = {"Retry-After": "1"} if answer == 429 else {}
            return web.json_response({"message": "no", "code": answer}, status=answer, headers=headers)
        response = web.StreamResponse()
        await response.prepare(request)
        for line in answer:
            text = (line if isinstance(line, str) else json.dumps(line)).encode() + b"\n"
            await response.write(text[:7])
            await asyncio.sleep(0.01)  # a line may come in several packets
            await response.write(text[7:])
        if not self._answers:
            await asyncio.Event().wait()
        return response


def event(kind: str, version: int, name: str = "pod") -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": str(version)}}}


def watched(
    server: WatchServer, until: Callable[[list[tuple[str, str]], list[int]], bool], *, broken: str = ""
) -> tuple[list[tuple[str, str]], list[int]]:
    """The changes (kind and name), and after how many watches each gap was reported, until `until` is true."""
    changes: list[tuple[str, str]] = []
    gaps: list[int] = []

    def on_change(kind: str, obj: dict[str, Any]) -> None:
        changes.append((kind, obj["metadata"]["name"]))
        if obj["metadata"]["name"] == broken:
            raise KeyError("labels")

    async def watch(api: ApiServer) -> None:
        watch = Watch(
            api,
            PATH,
            on_change=on_change,
            labels="example.com/watched",
            on_gap=lambda: gaps.append(len(server.requests)),
            delays=Delays(0.001, 0.01),
        )
        task = asyncio.create_task(watch.run())
        async with asyncio.timeout(LIMIT):
            while not until(changes, gaps):  # noqa: ASYNC110 - the lists have no event
                await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(serving(server, watch))
    return changes, gaps


async def serving(server: WatchServer, scene: Callable[[ApiServer], Awaitable[None]]) -> None:
    app = web.Application()
    app.router.add_get(PATH, server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with client.ApiClient(configuration) as api:
            await scene(ApiServer(api))
    finally:
        await runner.cleanup()


def test_a_watch_starts_with_all_objects_and_continues_where_a_stream_ended() -> None:
    server = WatchServer([event("ADDED", 5, "a"), event("MODIFIED", 7, "a")], [event("DELETED", 9, "a")])
    changes, gaps = watched(server, lambda changes, _: len(changes) == 3)
    assert changes == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert gaps == [1]
    assert [query["resourceVersion"] for query in server.requests] == ["0", "7"]
    for query in server.requests:
        assert (query["labelSelector"], query["allowWatchBookmarks"]) == ("example.com/watched", "true")


def test_a_list_is_requested_once_a_new_watch_is_open() -> None:
    """A pod that was deleted between the first list and the start of the watch is in no event."""
    _, gaps = watched(WatchServer([]), lambda _, gaps: bool(gaps))
    assert gaps == [1]


def test_a_bookmark_moves_the_version_and_is_no_change() -> None:
    server = WatchServer([event("ADDED", 5, "a"), event("BOOKMARK", 50)], [event("ADDED", 51, "b")])
    changes, _ = watched(server, lambda changes, _: ("ADDED", "b") in changes)
    assert changes == [("ADDED", "a"), ("ADDED", "b")]
    assert server.requests[1]["resourceVersion"] == "50"


def test_an_expired_version_is_a_gap_and_starts_the_watch_again() -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    server = WatchServer([event("ADDED", 5, "a"), gone], 410, [event("ADDED", 90, "b")])
    changes, gaps = watched(server, lambda changes, _: ("ADDED", "b") in changes)
    assert changes == [("ADDED", "a"), ("ADDED", "b")]
    assert gaps == [1, 3]
    assert [query["resourceVersion"] for query in server.requests] == ["0", "0", "0"]


def test_a_watch_survives_refusals_broken_lines_and_bad_objects() -> None:
    server = WatchServer(500, 403, [event("ADDED", 5, "odd"), event("ADDED", 6, "a"), "<html>"], 503, [event("MODIFIED", 8, "a")])
    changes, gaps = watched(server, lambda changes, _: ("MODIFIED", "a") in changes, broken="odd")
    assert changes == [("ADDED", "odd"), ("ADDED", "a"), ("MODIFIED", "a")]
    assert gaps == [3, 3, 3]  # the start, the bad object and the broken line: a list gives the current state
    assert [query["resourceVersion"] for query in server.requests] == ["0", "0", "0", "6", "6"]


def test_a_watch_that_gets_status_429_waits_for_retry_after() -> None:
    began = time.monotonic()
    changes, _ = watched(WatchServer(429, [event("ADDED", 5, "a")]), lambda changes, _: bool(changes))
    assert changes == [("ADDED", "a")]
    assert time.monotonic() - began >= 1.0


def test_an_error_that_repeats_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    server = WatchServer(404, 404, 404, 500, [event("ADDED", 5, "a"), "<html>"], 404, [event("ADDED", 6, "b")])
    watched(server, lambda changes, _: ("ADDED", "b") in changes)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [f"{PATH}: the watch broke: {error}" for error in ("no", "500: no", "no")]
