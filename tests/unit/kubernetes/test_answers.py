"""Responses of the API server: each becomes an object or a ClusterError, and an unreadable object does not hide others."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio import client

from muster.admission.bounds import MAX_BYTES, bound_problems, bounded
from muster.control.cluster import Listing
from muster.kubernetes.answers import (
    DEPTH,
    LONGEST_RETRY_SECONDS,
    MOST_BRACKETS,
    UnreadableAnswerError,
    parsed,
    refusal,
    shallow,
    without_oversized_spec,
)
from muster.kubernetes.errors import ClusterError, NotFoundError, UnavailableError
from muster.lifecycle.policy import Delays
from muster.operator import gateway as gateway_module
from muster.operator.gateway import Gateway
from muster.render.kueue import priority_class

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(st.sampled_from('ab"\\[]{},:é\n'), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('ab"\\[]{}'), max_size=4), inner, max_size=3),
    max_leaves=30,
)


def emptied(value: Any, depth: int) -> Any:
    """The expected result of `shallow`."""
    if isinstance(value, dict):
        return {} if depth == 1 else {key: emptied(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [] if depth == 1 else [emptied(inner, depth - 1) for inner in value]
    return value


@given(anything, st.integers(1, 5), st.sampled_from([None, 1]), st.booleans())
def test_shallow_empties_only_values_below_the_level(value: Any, depth: int, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert json.loads(shallow(text, depth)) == emptied(value, depth)


@given(st.binary(max_size=200) | st.text(st.sampled_from('[]{}"\\,:a1'), max_size=60).map(str.encode))
def test_text_becomes_an_object_or_a_cluster_error(text: bytes) -> None:
    with suppress(ClusterError):
        assert isinstance(asyncio.run(parsed(text)), dict)


@pytest.mark.parametrize("levels", [1_000, 1_100, 10_000, 200_000])
def test_a_deeply_nested_object_keeps_its_metadata_and_does_not_hide_others(levels: int) -> None:
    deep = '{"metadata":{"name":"deep"},"spec":' + '{"a":' * levels + "1" + "}" * levels + ',"status":{"phase":"Pending"}}'
    text = f'{{"items":[{deep},{{"metadata":{{"name":"honest"}}}}],"metadata":{{"continue":"more"}}}}'
    answer = asyncio.run(parsed(text.encode()))
    assert [each["metadata"]["name"] for each in answer["items"]] == ["deep", "honest"]
    assert answer["items"][0]["status"] == {"phase": "Pending"}
    assert answer["metadata"] == {"continue": "more"}
    assert DEPTH > 32


@pytest.mark.parametrize("text", [b"", b"<html>", b"[1]", b"3", b'{"a":', b"[" * 5_000, b"[" * 5_000 + b"]" * 5_000])
def test_text_that_is_not_an_object_is_an_unreadable_answer(text: bytes) -> None:
    with pytest.raises(UnreadableAnswerError):
        asyncio.run(parsed(text))
    assert isinstance(asyncio.run(refusal(404, text)), NotFoundError)
    assert isinstance(asyncio.run(refusal(503, text)), UnavailableError)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("1", 1), (" 17 ", 17), ("999999999", LONGEST_RETRY_SECONDS), (None, 0), ("", 0), ("-1", 0), ("soon", 0), ("9" * 400, 0), ("1.5", 0)],
)
def test_an_error_has_the_bounded_seconds_of_retry_after(header: str | None, seconds: float) -> None:
    for text in (b'{"message": "too many requests"}', b"<html>"):
        assert asyncio.run(refusal(429, text, retry_after=header)).retry_seconds == seconds


# lists


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


def test_pages_shrink_for_large_objects_and_grow_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "LARGEST_PAGE", 100_000)
    large = {f"large-{number}": text_of(f"large-{number}", strategy="x" * 40_000) for number in range(10)}
    small = {f"small-{number}": text_of(f"small-{number}") for number in range(300)}
    server = ListServer({**large, **small})
    listing = listed(server)
    assert len(listing.jobs) == 310
    assert listing.unreadable == ()
    assert server.limits[0] > 1
    assert max(server.limits[1:10]) <= 3
    assert max(server.limits) == gateway_module.PAGE, "small objects come by large pages again"


class BusyServer(ListServer):
    """Refuses each page after the first one once, or always."""

    def __init__(self, count: int, *, recovers: bool) -> None:
        super().__init__({name: text_of(name) for name in map("job-{}".format, range(count))})
        self.pages: list[str] = []
        self._recovers = recovers

    async def answer(self, request: web.Request) -> web.Response:
        page = request.query.get("continue", "")
        if request.path.endswith("/trainingjobs"):
            self.pages.append(page)
            if page and (self.pages.count(page) == 1 or not self._recovers):
                return web.json_response({"message": "Timeout: Too large resource version"}, status=504)
        return await super().answer(request)


def test_a_page_that_a_busy_server_refuses_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "PAGE_DELAYS", Delays(first=0.01, longest=0.01))
    server = BusyServer(600, recovers=True)
    assert len(listed(server).jobs) == 600
    assert server.pages == ["", "25", "25", "275", "275", "525", "525"]


def test_a_list_ends_if_the_server_refuses_a_page_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "PAGE_DELAYS", Delays(first=0.01, longest=0.01))
    server = BusyServer(60, recovers=False)
    with pytest.raises(UnavailableError, match="504: Timeout"):
        listed(server)
    assert server.pages == ["", *["25"] * gateway_module.PAGE_TRIES]


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


def test_a_redirect_is_not_followed() -> None:
    paths = []

    class Redirecting(ListServer):
        async def answer(self, request: web.Request) -> web.Response:
            paths.append(request.path)
            raise web.HTTPFound("/elsewhere")

    async def scene(gateway: Gateway) -> Any:
        await gateway.read(priority_class("high"))

    with pytest.raises(UnavailableError, match="another address"):
        asyncio.run(serving(Redirecting({}), scene))
    assert paths == ["/apis/scheduling.k8s.io/v1/priorityclasses/high"]


def change_of(spec: dict[str, Any], *, status: bool) -> bytes:
    """A change as the API server sends it: with sorted fields and without spaces."""
    managed = [{"fieldsV1": {"f:spec": {f"f:{number}": {} for number in range(1000)}}, "manager": "kubectl"}]
    annotations = {"a": ',"spec":{ ],"name":" ,"status":{'}
    whole = {"metadata": {**metadata("large"), "annotations": annotations, "managedFields": managed}, "spec": spec}
    obj = {**whole, "status": {"attempt": 3, "phase": "Running"}} if status else whole
    return b'{"type":"MODIFIED","object":%s}' % json.dumps(obj, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize("status", [True, False])
def test_a_change_with_an_oversized_spec_is_cut_before_it_is_parsed(status: bool) -> None:
    template = {"a": [[]] * (MOST_BRACKETS + 1), "b": {"c": 1, "status": {"attempt": 9}}}
    spec = {"inputs": [], "managedBy": "example.com/theirs", "roles": {"worker": {"template": template}}, "strategy": "DDP"}
    cut = without_oversized_spec(change_of(spec, status=status))
    assert len(cut) < 20_000
    change = json.loads(cut)
    obj = change["object"]
    assert change["type"] == "MODIFIED"
    assert (obj["metadata"]["name"], obj["metadata"]["resourceVersion"], obj["metadata"]["uid"]) == ("large", "7", "uid-large")
    assert obj.get("status") == ({"attempt": 3, "phase": "Running"} if status else None)
    assert obj["spec"]["managedBy"] == "example.com/theirs"
    [problem] = bound_problems(bounded(obj["spec"]))
    assert problem.field == "spec.roles.worker.template"
    assert "too many values" in problem.message


def test_a_cut_change_names_the_part_that_is_too_large() -> None:
    spec = {"roles": {"worker": {"template": {"spec": {}}}}, "strategy": "DDP", "trainer": {"config": [[]] * (MOST_BRACKETS + 1)}}
    [problem] = bound_problems(bounded(json.loads(without_oversized_spec(change_of(spec, status=True)))["object"]["spec"]))
    assert problem.field == "spec.trainer.config"


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


def test_a_change_of_the_largest_valid_spec_is_not_cut() -> None:
    change = change_of({"trainer": {"config": {"text": "{[" * (MAX_BYTES // 2)}}}, status=True)
    assert without_oversized_spec(change) is change


@given(st.text(st.sampled_from('[]{}",:a\\ '), max_size=200))
def test_a_text_of_another_form_is_returned_as_it_is(text: str) -> None:
    strange = (text + "[" * (MOST_BRACKETS + 1)).encode()
    assert without_oversized_spec(strange) is strange
