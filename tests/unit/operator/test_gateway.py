"""What the gateway reads: an unreadable object does not hide others, and an oversized job is read without its spec."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from muster.admission.oversized import MOST_BRACKETS
from muster.control.cluster import Listing
from muster.kubernetes.errors import NotFoundError
from muster.operator.gateway import Gateway
from muster.render.kueue import priority_class
from tests.support.oversized import change_of


class ListServer:
    """Lists jobs as the API server does: by pages, and as PartialObjectMetadataList. `texts` are the jobs' JSON by name."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self.limits: list[int] = []

    async def answer(self, request: web.Request) -> web.Response:
        if not request.path.endswith("/trainingjobs"):
            return web.json_response({"items": [], "metadata": {}})
        limit, begin = int(request.query["limit"]), int(request.query.get("continue", "0"))
        self.limits.append(limit)
        names = list(self.texts)[begin : begin + limit]
        if "PartialObjectMetadataList" in request.headers["Accept"]:
            items = [json.dumps({"metadata": metadata(name)}) for name in names]
        else:
            items = [self.texts[name] for name in names]
        more = {"continue": str(begin + limit)} if begin + limit < len(self.texts) else {}
        return web.Response(text=f'{{"items":[{",".join(items)}],"metadata":{json.dumps(more)}}}', content_type="application/json")


def metadata(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7"}


def text_of(name: str, **spec: Any) -> str:
    return json.dumps({"kind": "TrainingJob", "metadata": metadata(name), "spec": spec})


def listed(server: ListServer) -> Listing:
    async def scene(gateway: Gateway) -> Listing:
        return await gateway.list_all()

    return asyncio.run(serving(server, scene))


async def serving(server: ListServer, scene: Callable[[Gateway], Awaitable[Listing]]) -> Listing:
    app = web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")) as api:
            return await scene(Gateway(api))
    finally:
        await runner.cleanup()


def test_unreadable_objects_are_named_and_do_not_hide_others() -> None:
    names = [f"job-{number}" for number in range(60)]
    random.Random(5).shuffle(names)
    texts = {name: text_of(name) for name in names}
    broken = {names[3]: "{nonsense", names[30]: "]", names[59]: '{"metadata":{"name":"x"}}'}
    listing = listed(ListServer({**texts, **broken}))
    assert {job["metadata"]["name"] for job in listing.jobs} == set(names) - set(broken)
    assert {(each.kind, each.name) for each in listing.unreadable} >= {("TrainingJob", names[3]), ("TrainingJob", names[30])}
    assert len(listing.unreadable) == 3


def test_a_watch_delivers_a_cut_change() -> None:
    class Watched(ListServer):
        async def answer(self, request: web.Request) -> web.Response:
            return web.Response(body=change_of({"trainer": {"config": [[]] * (MOST_BRACKETS + 1)}}, status=True) + b"\n")

    async def scene(gateway: Gateway) -> Any:
        return [change async for change in gateway.changes("/apis/muster.dev/v1alpha1/trainingjobs", "0")]

    changes: Any = asyncio.run(serving(Watched({}), scene))
    assert [kind for kind, _ in changes] == ["OPENED", "MODIFIED"]
    assert len(json.dumps(changes[1])) < 40_000


@pytest.mark.parametrize("status", [True, False])
def test_a_job_with_an_oversized_spec_is_read_without_it(status: bool) -> None:
    class Server(ListServer):
        async def answer(self, request: web.Request) -> web.Response:
            change = change_of({"trainer": {"config": [[]] * (MOST_BRACKETS + 1)}}, status=status)
            return web.Response(body=change.removeprefix(b'{"type":"MODIFIED","object":').removesuffix(b"}"))

    async def scene(gateway: Gateway) -> Any:
        return await gateway.read_job("default", "large")

    job: Any = asyncio.run(serving(Server({}), scene))
    assert job["metadata"]["uid"] == "uid-large"
    assert ("status" in job) is status
    assert len(json.dumps(job)) < 40_000


def test_the_name_of_an_object_does_not_lead_to_another_path() -> None:
    """A tenant writes the name of the PriorityClass."""
    paths = []

    class Recorder(ListServer):
        async def answer(self, request: web.Request) -> web.Response:
            paths.append(request.raw_path)
            return web.Response(text="{}", content_type="application/json")

    async def scene(gateway: Gateway) -> Any:
        await gateway.read(priority_class("../../../../api/v1/pods?watch=true"))

    with pytest.raises(NotFoundError, match="not the name of an object"):
        asyncio.run(serving(Recorder({}), scene))
    assert paths == []
