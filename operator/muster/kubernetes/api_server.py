"""The client of the API server: all requests of the operator, of a user's commands and of the web page, in plain JSON.

`ApiClient` of the Kubernetes package provides the configuration, the credentials and their renewal, and the connection pool. Its models are
not used, because they refuse fields that are newer than the client, and users write pod templates.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from types import SimpleNamespace
from typing import Protocol
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client

from muster.kubernetes.answers import error_of, lines, parsed, refusal, whole
from muster.kubernetes.api_paths import ApiPath
from muster.kubernetes.backoff import Delays
from muster.kubernetes.errors import AnswerTooLargeError, UnavailableError, UnreadableAnswerError
from muster.kubernetes.objects import Object

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept header for writes: the answer needs only the metadata, which halves its cost on both sides."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
"""The columns of `kubectl get` in place of the objects. Source: Kubernetes documentation, "Kubernetes API Concepts"."""
MERGE_PATCH = "application/merge-patch+json"

TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
FOLLOWING = aiohttp.ClientTimeout(total=None, sock_connect=10)
"""For a stream that may be silent for as long as it likes, such as a log."""
WATCHING = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=75)
"""For a watch with bookmarks, of which the server sends one every minute."""

PAGE, FIRST_PAGE = 250, 25  # objects in one page of a list, and in the first page, which shows their size
LARGEST_PAGE = 4 << 20
"""Bytes in one page with several objects. Hostile objects take fifty times as much memory when they are parsed."""
LARGEST_ANSWER = 4 << 20
"""Bytes of one object. The API server stores at most 1.5 MiB of it."""
PAGE_TRIES = 6  # of each page after the first one, because a busy server would otherwise never finish a list of many pages
PAGE_DELAYS = Delays(first=0.5, longest=8.0)

Cut = Callable[[bytes], bytes]
"""Removes parts from the JSON text of an object before it is parsed."""

log = logging.getLogger("muster.api-server")


class Requests(Protocol):
    """What sends single requests: an ApiServer, or what stands before one."""

    async def request(self, verb: str, path: ApiPath, *, body: Object | None = None, query: dict[str, str] | None = None) -> Object:
        """Returns the object in the answer. Raises a ClusterError."""


class RedirectError(aiohttp.ClientError):
    """The server refers to another address."""


class ApiServer:
    """The API server, with the configuration of `api`. Every method raises a ClusterError if the request fails.

    Redirects are not followed: kube-apiserver sends none, but it passes on those of pods and services behind its proxy, and they may lead
    anywhere. `largest` is the largest number of bytes of one object. `on_request` is called after each request with its verb and the status
    of the answer, or 0 if there was none.
    """

    def __init__(
        self,
        api: client.ApiClient,
        *,
        largest: int | None = None,
        on_request: Callable[[str, int], None] = lambda verb, status: None,
    ) -> None:
        self._api = api
        self._largest = largest
        self._on_request = on_request
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse)
        api.configuration.trace_configs = [tracing]

    async def request(
        self,
        verb: str,
        path: ApiPath,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        content: str = JSON,
        cut: Cut | None = None,
    ) -> Object:
        """Sends a request. Returns the object in the answer."""
        text = await self.text(verb, path, body=body, query=query, accept=accept, content=content)
        return await parsed(cut(text) if cut else text)

    async def text(
        self,
        verb: str,
        path: ApiPath,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        content: str = JSON,
        most: int | None = None,
    ) -> bytes:
        """Sends a request. Returns the body of the answer, of at most `most` bytes."""
        try:
            response = await self._send(verb, path, body=body, query=query, accept=accept, content=content, limits=TIMEOUT)
            with _answering():
                text = await whole(response, most or self._largest_answer)
        except UnavailableError:
            self._on_request(verb, 0)
            raise
        self._on_request(verb, response.status)
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return text
        raise await refusal(response.status, text, retry_after=response.headers.get("Retry-After"))

    async def pages(
        self,
        path: ApiPath,
        *,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        unreadable: Callable[[Object, str], None] | None = None,
    ) -> AsyncIterator[Object]:
        """The pages of a list. A page with several objects has at most LARGEST_PAGE bytes.

        `unreadable` is called with the metadata of each object that cannot be parsed, and with the reason. Without it, such an object is an
        error.
        """
        more: str | None = ""
        size, failures = FIRST_PAGE, 0
        while more is not None:
            page_query = {**(query or {}), "limit": str(size), **({"continue": more} if more else {})}
            try:
                text = await self.text("GET", path, query=page_query, accept=accept, most=LARGEST_PAGE if size > 1 else None)
                page = await parsed(text)
            except UnavailableError as error:
                failures += 1
                if not more or failures == PAGE_TRIES:
                    raise
                await asyncio.sleep(max(error.retry_seconds, PAGE_DELAYS.after(failures)))
                continue
            except (AnswerTooLargeError, UnreadableAnswerError) as error:
                if size > 1:
                    size = size // 8 or 1
                    continue
                if unreadable is None:
                    raise
                text = b""
                page = await self.request("GET", path, query=page_query, accept=METADATA_LIST)
                for obj in page["items"] or ():
                    unreadable(obj, str(error))
                page["items"] = []
            yield page
            each = len(text) // max(1, len(page.get("items") or page.get("rows") or ()))
            size = min(PAGE, LARGEST_PAGE // 2 // (each + 1) or 1)
            more, failures = (page.get("metadata") or {}).get("continue") or None, 0

    @asynccontextmanager
    async def stream(
        self, path: ApiPath, *, query: Mapping[str, str], accept: str = JSON, limits: aiohttp.ClientTimeout = FOLLOWING
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer as they arrive, such as those of a log or a watch."""
        response = await self._send("GET", path, query=query, accept=accept, limits=limits)
        self._on_request("WATCH" if "watch" in query else "GET", response.status)
        async with response:
            if response.status != HTTPStatus.OK:
                with _answering():
                    text = await whole(response, self._largest_answer)
                raise await refusal(response.status, text, retry_after=response.headers.get("Retry-After"))
            yield _lines(response, self._largest_answer)

    async def changes(self, path: ApiPath, version: str, *, labels: str = "", cut: Cut | None = None) -> AsyncIterator[tuple[str, Object]]:
        """Yields the changes after `version` to the objects at `path` with these `labels`, until the server ends the stream.

        - (OPENED, {}) comes first, once the server has accepted the watch.
        - (ADDED, MODIFIED or DELETED, object) is a change. With version "0", all existing objects come first, as ADDED.
        - (BOOKMARK, object) has an object with a resourceVersion only.
        - (UNREADABLE, {}) is a change that cannot be parsed.

        Raises ExpiredError if the version is too old, UnavailableError if the connection breaks or is silent for too long, and another
        ClusterError if the server refuses the watch.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            **({"labelSelector": labels} if labels else {}),
        }
        async with self.stream(path, query=query, limits=WATCHING) as received:
            yield "OPENED", {}
            async for line in received:
                yield await _change(cut(line) if cut else line)

    @property
    def _largest_answer(self) -> int:
        return self._largest or LARGEST_ANSWER

    async def _send(
        self,
        verb: str,
        path: ApiPath,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        content: str = JSON,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The answer, with any status. Raises UnavailableError."""
        full = f"{path}?{urlencode(query)}" if query else path
        headers = {"Accept": accept, "Content-Type": content}
        with _answering():
            _, url, headers, _, _ = await self._api.param_serialize(verb, full, header_params=headers, auth_settings=["BearerToken"])
            answer = await self._api.call_api(verb, url, headers, body, _request_timeout=limits)
            response: aiohttp.ClientResponse = answer.response
            return response


async def _lines(response: aiohttp.ClientResponse, most: int) -> AsyncIterator[bytes]:
    with _answering():
        async for line in lines(response.content, most):
            yield line


async def _change(line: bytes) -> tuple[str, Object]:
    """The type and the object of one line of a watch."""
    try:
        event = await parsed(line)
        kind, obj = str(event["type"]), event["object"]
        if kind == "ERROR":
            raise error_of(obj.get("code", 0), obj)
        return kind, {**obj, "metadata": obj["metadata"]}
    except (UnreadableAnswerError, LookupError, TypeError, AttributeError) as error:
        log.error("a change that cannot be read is ignored: %s: %s", type(error).__name__, error)
        return "UNREADABLE", {}


@contextmanager
def _answering() -> Iterator[None]:
    """Turns every error of the connection into an UnavailableError."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
        raise UnavailableError(f"the API server does not answer: {error or type(error).__name__}") from error


async def _refuse(session: aiohttp.ClientSession, context: SimpleNamespace, request: aiohttp.TraceRequestRedirectParams) -> None:
    request.response.close()
    raise RedirectError(f"it answers {request.response.status} and refers to another address, which is not followed")
