"""The client of the API server: lists come in bounded pages, and nothing leads to another address."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient

from muster.kubernetes import api_server
from muster.kubernetes.api_paths import collection, member
from muster.kubernetes.api_server import ApiServer
from muster.kubernetes.backoff import Delays
from muster.kubernetes.errors import AnswerTooLargeError, UnavailableError
from tests.support.list_server import ListServer, serving, text_of

WIDGETS = collection("example.com/v1", "widgets")


def widget(name: str, **spec: Any) -> str:
    return text_of("Widget", name, **spec)


def widgets(texts: dict[str, str]) -> ListServer:
    return ListServer(texts, plural="widgets")


def listed(server: ListServer) -> tuple[list[str], list[str]]:
    """The names of the objects, and of those that cannot be read."""

    async def scene(api: ApiClient) -> tuple[list[str], list[str]]:
        unreadable: list[str] = []
        pages = ApiServer(api).pages(WIDGETS, unreadable=lambda obj, reason: unreadable.append(obj["metadata"]["name"]))
        return [obj["metadata"]["name"] async for page in pages for obj in page["items"]], unreadable

    return asyncio.run(serving(server.answer, scene))


def test_an_object_that_cannot_be_parsed_is_named_and_does_not_hide_others() -> None:
    texts = {f"widget-{number}": widget(f"widget-{number}") for number in range(30)}
    names, unreadable = listed(widgets({**texts, "widget-3": "{nonsense", "widget-29": "]"}))
    assert set(names) == set(texts) - {"widget-3", "widget-29"}
    assert unreadable == ["widget-3", "widget-29"]


def test_an_answer_that_is_too_large_is_not_read() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b" " * 20_000)

    async def scene(api: ApiClient) -> None:
        await ApiServer(api).text("GET", WIDGETS, most=10_000)

    with pytest.raises(AnswerTooLargeError, match="more than 10000 bytes"):
        asyncio.run(serving(answer, scene))


def test_pages_shrink_for_large_objects_and_grow_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "LARGEST_PAGE", 100_000)
    large = {f"large-{number}": widget(f"large-{number}", strategy="x" * 40_000) for number in range(10)}
    small = {f"small-{number}": widget(f"small-{number}") for number in range(300)}
    server = widgets({**large, **small})
    names, unreadable = listed(server)
    assert (len(names), unreadable) == (310, [])
    assert server.limits[0] > 1
    assert max(server.limits[1:10]) <= 3
    assert max(server.limits) == api_server.PAGE, "small objects come by large pages again"


class BusyServer(ListServer):
    """Refuses each page after the first one once, or always."""

    def __init__(self, count: int, *, recovers: bool) -> None:
        super().__init__({name: widget(name) for name in map("widget-{}".format, range(count))}, plural="widgets")
        self.pages: list[str] = []
        self._recovers = recovers

    async def answer(self, request: web.Request) -> web.Response:
        page = request.query.get("continue", "")
        if self.lists(request):
            self.pages.append(page)
            if page and (self.pages.count(page) == 1 or not self._recovers):
                return web.json_response({"message": "Timeout: Too large resource version"}, status=504)
        return await super().answer(request)


def test_a_page_that_a_busy_server_refuses_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "PAGE_DELAYS", Delays(first=0.01, longest=0.01))
    server = BusyServer(600, recovers=True)
    assert len(listed(server)[0]) == 600
    assert server.pages == ["", "25", "25", "275", "275", "525", "525"]


def test_a_list_ends_if_the_server_refuses_a_page_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "PAGE_DELAYS", Delays(first=0.01, longest=0.01))
    server = BusyServer(60, recovers=False)
    with pytest.raises(UnavailableError, match="504: Timeout"):
        listed(server)
    assert server.pages == ["", *["25"] * api_server.PAGE_TRIES]


def test_a_redirect_is_not_followed() -> None:
    paths = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async def scene(api: ApiClient) -> None:
        await ApiServer(api).request("GET", member(WIDGETS, "high"))

    with pytest.raises(UnavailableError, match="another address"):
        asyncio.run(serving(answer, scene))
    assert paths == [f"{WIDGETS}/high"]
