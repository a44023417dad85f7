"""What the gateway reads: an unreadable object does not hide others, and an oversized job is read without its spec."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient

from muster.admission.oversized import MOST_BRACKETS
from muster.api.constants import API_VERSION, PLURAL
from muster.control.cluster import Listing
from muster.kubernetes.api_paths import ApiPath
from muster.kubernetes.errors import NotFoundError
from muster.operator.gateway import Gateway
from muster.render.kueue import priority_class
from tests.support.list_server import ListServer, serving, text_of
from tests.support.oversized import change_of


def listed(server: ListServer) -> Listing:
    async def scene(api: ApiClient) -> Listing:
        return await Gateway(api).list_all()

    return asyncio.run(serving(server.answer, scene))


def test_unreadable_objects_are_named_and_do_not_hide_others() -> None:
    names = [f"job-{number}" for number in range(60)]
    random.Random(5).shuffle(names)
    texts = {name: text_of("TrainingJob", name) for name in names}
    broken = {names[3]: "{nonsense", names[30]: "]", names[59]: '{"metadata":{"name":"x"}}'}
    listing = listed(ListServer({**texts, **broken}, plural="trainingjobs"))
    assert {job["metadata"]["name"] for job in listing.jobs} == set(names) - set(broken)
    assert {(each.kind, each.name) for each in listing.unreadable} >= {("TrainingJob", names[3]), ("TrainingJob", names[30])}
    assert len(listing.unreadable) == 3


@pytest.mark.parametrize("names", [[], ["small", "large"]])
def test_the_paths_of_a_kind_are_those_of_its_objects(names: list[str]) -> None:
    async def scene(api: ApiClient) -> list[ApiPath]:
        return await Gateway(api).paths(API_VERSION, PLURAL)

    server = ListServer({name: text_of("TrainingJob", name) for name in names}, plural=PLURAL)
    folder = f"/apis/{API_VERSION}/namespaces/default/{PLURAL}"
    assert asyncio.run(serving(server.answer, scene)) == [f"{folder}/{name}" for name in names]


def test_a_watch_delivers_a_cut_change() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=change_of({"trainer": {"config": [[]] * (MOST_BRACKETS + 1)}}, status=True) + b"\n")

    async def scene(api: ApiClient) -> Any:
        return [change async for change in Gateway(api).changes("/apis/muster.dev/v1beta1/trainingjobs", "0")]

    changes: Any = asyncio.run(serving(answer, scene))
    assert [kind for kind, _ in changes] == ["OPENED", "MODIFIED"]
    assert len(json.dumps(changes[1])) < 40_000


@pytest.mark.parametrize("status", [True, False])
def test_a_job_with_an_oversized_spec_is_read_without_it(status: bool) -> None:
    async def answer(request: web.Request) -> web.Response:
        change = change_of({"trainer": {"config": [[]] * (MOST_BRACKETS + 1)}}, status=status)
        return web.Response(body=change.removeprefix(b'{"type":"MODIFIED","object":').removesuffix(b"}"))

    async def scene(api: ApiClient) -> Any:
        return await Gateway(api).read_job("default", "large")

    job: Any = asyncio.run(serving(answer, scene))
    assert job["metadata"]["uid"] == "uid-large"
    assert ("status" in job) is status
    assert len(json.dumps(job)) < 40_000


def test_the_name_of_an_object_does_not_lead_to_another_path() -> None:
    """A tenant writes the name of the PriorityClass."""
    paths = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.raw_path)
        return web.Response(text="{}", content_type="application/json")

    async def scene(api: ApiClient) -> Any:
        await Gateway(api).read(priority_class("../../../../api/v1/pods?watch=true"))

    with pytest.raises(NotFoundError, match="not the name of an object"):
        asyncio.run(serving(answer, scene))
    assert paths == []
