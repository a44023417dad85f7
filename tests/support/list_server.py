"""A server that lists objects as the API server does, for tests of what reads its answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiohttp import web
from kubernetes.aio import client

T = TypeVar("T")


class ListServer:
    """Lists the objects of one collection by pages, and as PartialObjectMetadataList, whose items are null if there are none. `texts` are
    their JSON by name. Other lists are empty. `limits` has the size of each page that was asked for."""

    def __init__(self, texts: dict[str, str], *, plural: str) -> None:
        self.texts = texts
        self.limits: list[int] = []
        self._plural = plural

    def lists(self, request: web.Request) -> bool:
        """Whether the request is for the collection."""
        return request.path.endswith(f"/{self._plural}")

    async def answer(self, request: web.Request) -> web.Response:
        if not self.lists(request):
            return web.json_response({"items": [], "metadata": {}})
        limit, begin = int(request.query["limit"]), int(request.query.get("continue", "0"))
        self.limits.append(limit)
        names = list(self.texts)[begin : begin + limit]
        is_metadata = "PartialObjectMetadataList" in request.headers["Accept"]
        items = [json.dumps({"metadata": metadata(name)}) for name in names] if is_metadata else [self.texts[name] for name in names]
        more = {"continue": str(begin + limit)} if begin + limit < len(self.texts) else {}
        listed = f"[{','.join(items)}]" if items or not is_metadata else "null"
        return web.Response(text=f'{{"items":{listed},"metadata":{json.dumps(more)}}}', content_type="application/json")


Answer = Callable[[web.Request], Awaitable[web.Response]]


def metadata(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7"}


def text_of(kind: str, name: str, **spec: Any) -> str:
    """The JSON of an object."""
    return json.dumps({"kind": kind, "metadata": metadata(name), "spec": spec})


async def serving(answer: Answer, scene: Callable[[client.ApiClient], Awaitable[T]]) -> T:
    """Runs a scene with a client of a server that gives these answers."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")) as api:
            return await scene(api)
    finally:
        await runner.cleanup()
