"""The watches, against an API server of a page: nothing is missed without being said, and none gives up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web
from kubernetes.aio import client

from muster.kubernetes.gateway import Gateway
from muster.kubernetes.watches import Watch
from muster.lifecycle.policy import Delays

LIMIT = 10.0
PATH = "/api/v1/pods"


class WatchServer:
    """Answers the n-th watch with the n-th of `answers`: a status, or lines to send; after the last it holds the line."""

    def __init__(self, *answers: int | list[Any]) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        answer = self._answers.pop(0) if self._answers else []
        if isinstance(answer, int):
            headers = {"Retry-After": "1"} if answer == 429 else {}
            return web.json_response({"message": "no", "code": answer}, status=answer, headers=headers)
        response = web.StreamResponse()
        await response.prepare(request)
        for line in answer:
            text = (line if isinstance(line, str) else json.dumps(line)).encode() + b"\n"
            await response.write(text[:7])
            await asyncio.sleep(0.01)  # lines and packets have nothing to do with each other
            await response.write(text[7:])
        if not self._answers:
            await asyncio.Event().wait()
        return response


def event(kind: str, version: int, name: str = "pod") -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": str(version)}}}


def watched(
    server: WatchServer, until: Callable[[list[tuple[str, str]], list[int]], bool], *, broken: str = ""
) -> tuple[list[tuple[str, str]], list[int]]:
    """What was heard (kind and name), and after how many watches something was said to be lost, until that is true."""
    heard: list[tuple[str, str]] = []
    lost: list[int] = []

    def hear(kind: str, obj: dict[str, Any]) -> None:
        heard.append((kind, obj["metadata"]["name"]))
        if obj["metadata"]["name"] == broken:
            raise KeyError("labels")

    async def watch(gateway: Gateway) -> None:
        watch = Watch(
            gateway,
            PATH,
            on_change=hear,
            labels="muster.dev/job-name",
            on_gap=lambda: lost.append(len(server.asked)),
            delays=Delays(0.001, 0.01),
        )
        task = asyncio.create_task(watch.run())
        async with asyncio.timeout(LIMIT):
            while not until(heard, lost):  # noqa: ASYNC110 - what is waited for is lists that grow
                await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(serving(server, watch))
    return heard, lost


async def serving(server: WatchServer, scene: Callable[[Gateway], Awaitable[None]]) -> None:
    app = web.Application()
    app.router.add_get(PATH, server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with client.ApiClient(configuration) as api:
            await scene(Gateway(api))
    finally:
        await runner.cleanup()


def test_it_begins_with_all_there_is_selects_on_the_server_and_goes_on_where_a_stream_ended() -> None:
    server = WatchServer([event("ADDED", 5, "a"), event("MODIFIED", 7, "a")], [event("DELETED", 9, "a")])
    heard, lost = watched(server, lambda heard, _: len(heard) == 3)
    assert heard == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert lost == [1]
    assert [asked["resourceVersion"] for asked in server.asked] == ["0", "7"]
    for asked in server.asked:
        assert (asked["labelSelector"], asked["allowWatchBookmarks"]) == ("muster.dev/job-name", "true")


def test_a_list_is_requested_once_a_new_watch_is_open_even_if_nothing_is_left_to_see() -> None:
    """A pod that was deleted between the first list and the start of the watch is in no event."""
    _, lost = watched(WatchServer([]), lambda _, lost: bool(lost))
    assert lost == [1]


def test_a_bookmark_moves_on_and_is_told_to_nobody() -> None:
    server = WatchServer([event("ADDED", 5, "a"), event("BOOKMARK", 50)], [event("ADDED", 51, "b")])
    heard, _ = watched(server, lambda heard, _: ("ADDED", "b") in heard)
    assert heard == [("ADDED", "a"), ("ADDED", "b")]
    assert server.asked[1]["resourceVersion"] == "50"


def test_where_too_much_was_missed_it_says_so_and_begins_anew() -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    server = WatchServer([event("ADDED", 5, "a"), gone], 410, [event("ADDED", 90, "b")])
    heard, lost = watched(server, lambda heard, _: ("ADDED", "b") in heard)
    assert heard == [("ADDED", "a"), ("ADDED", "b")]
    assert lost == [1, 3]
    assert [asked["resourceVersion"] for asked in server.asked] == ["0", "0", "0"]


def test_it_outlives_refusals_broken_lines_and_objects_that_cannot_be_taken_in() -> None:
    server = WatchServer(500, 403, [event("ADDED", 5, "odd"), event("ADDED", 6, "a"), "<html>"], 503, [event("MODIFIED", 8, "a")])
    heard, lost = watched(server, lambda heard, _: ("MODIFIED", "a") in heard, broken="odd")
    assert heard == [("ADDED", "odd"), ("ADDED", "a"), ("MODIFIED", "a")]
    assert lost == [3, 3, 3]  # the beginning, the odd object and the broken line: a list shows what they were
    assert [asked["resourceVersion"] for asked in server.asked] == ["0", "0", "0", "6", "6"]


def test_a_watch_that_is_refused_with_status_429_waits_as_long_as_retry_after_says() -> None:
    began = time.monotonic()
    heard, _ = watched(WatchServer(429, [event("ADDED", 5, "a")]), lambda heard, _: bool(heard))
    assert heard == [("ADDED", "a")]
    assert time.monotonic() - began >= 1.0
