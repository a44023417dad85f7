"""Every request to the API server, in plain JSON.

The client's models are not used: they refuse fields that are newer than they are, and a training pod is the user's. `ApiClient` gives us
configuration, credentials (renewed in place) and the connection pool.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from urllib.parse import urlencode

import aiohttp
import orjson
from kubernetes.aio import client

from muster.api.constants import GROUP, JOB_NAME_LABEL, PLURAL, VERSION
from muster.control.cluster import Child, Listing, Object
from muster.control.errors import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    GoneError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from muster.kubernetes.credentials import load_configuration
from muster.kubernetes.views import child_of, claim_of
from muster.lifecycle.observed import ClaimView

PAGE = 500  # objects in one answer to a list
_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
_WATCHING = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=75)  # a watch that lives says so every minute, by a bookmark
_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY})
_OBJECT = "application/json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Of what we write we know the rest: the answer costs both sides half."""
_JOBS = f"/apis/{GROUP}/{VERSION}"
_NETWORKING = "/apis/networking.k8s.io/v1"
_PLURALS = {"Service": "services", "NetworkPolicy": "networkpolicies", "Event": "events", "Pod": "pods"}


class Gateway:
    """The API server, as the rest of Muster sees it.

    `namespaces` are those looked after; none: all. `policies`: network policies are listed too. `asked` hears of every request: its verb
    and the status of the answer, 0 for none. `writable` says whether this process may write now: one that has lost its lease must not.
    """

    def __init__(self, api: client.ApiClient, *, namespaces: tuple[str, ...] = (), policies: bool = False) -> None:
        self._api = api
        self._namespaces = namespaces
        self._policies = policies
        self.writable: Callable[[], bool] = lambda: True
        self.asked: Callable[[str, int], None] = lambda verb, status: None

    # jobs

    async def read_job(self, namespace: str, name: str) -> Object:
        return await self.request("GET", f"{_JOBS}/namespaces/{namespace}/{PLURAL}/{name}")

    async def write_status(self, job: Object, status: Object) -> Object:
        metadata = job["metadata"]
        path = f"{_JOBS}/namespaces/{metadata['namespace']}/{PLURAL}/{metadata['name']}/status"
        answer = await self._write("PUT", path, {**job, "status": status}, accept=_METADATA)
        return {**job, "metadata": answer["metadata"], "status": status}

    async def delete_job(self, namespace: str, name: str, *, uid: str) -> None:
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._write("DELETE", f"{_JOBS}/namespaces/{namespace}/{PLURAL}/{name}", options)

    # pods and services

    async def list_children(self, namespace: str, name: str) -> list[Child]:
        pods = self._pages(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"{JOB_NAME_LABEL}={name}")
        return _children([pod async for pod in pods])

    async def read_child(self, namespace: str, name: str) -> Child:
        return _child(await self.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}"))

    async def read_claim(self, namespace: str, name: str) -> ClaimView:
        try:
            return claim_of(await self.request("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"))
        except NotFoundError:
            return ClaimView()

    async def create_pod(self, manifest: Object) -> Child:
        return _child(await self._write("POST", _folder(manifest), manifest, accept=_METADATA))

    async def delete_pod(self, namespace: str, name: str, *, uid: str, grace_seconds: int | None) -> None:
        options: Object = {"preconditions": {"uid": uid}}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._write("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", options)

    async def read(self, manifest: Object) -> Object:
        return await self.request("GET", f"{_folder(manifest)}/{manifest['metadata']['name']}")

    async def create(self, manifest: Object) -> Object:
        return await self._write("POST", _folder(manifest), manifest)

    # everything

    async def list_all(self) -> Listing:
        jobs, pods, services = await asyncio.gather(
            self._everywhere(_JOBS, PLURAL),
            self._everywhere("/api/v1", "pods", labelSelector=JOB_NAME_LABEL),
            self._everywhere("/api/v1", "services", labelSelector=JOB_NAME_LABEL),
        )
        policies = await self._everywhere(_NETWORKING, "networkpolicies", labelSelector=JOB_NAME_LABEL) if self._policies else None
        return Listing(tuple(jobs), tuple(_children(pods)), tuple(services), None if policies is None else tuple(policies))

    def folders(self, group: str, plural: str) -> list[str]:
        """The paths under which this installation finds all that it looks after of a kind."""
        return [f"{group}/namespaces/{each}/{plural}" for each in self._namespaces] or [f"{group}/{plural}"]

    async def _everywhere(self, group: str, plural: str, **query: str) -> list[Object]:
        return [obj for path in self.folders(group, plural) async for obj in self._pages(path, **query)]

    async def _pages(self, path: str, **query: str) -> AsyncIterator[Object]:
        more: str | None = ""
        while more is not None:
            page = await self.request("GET", path, query={**query, "limit": str(PAGE), **({"continue": more} if more else {})})
            for obj in page["items"]:
                yield obj
            more = page["metadata"].get("continue") or None

    async def changes(self, path: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        """What happens to the children of jobs at `path` after `version`: ADDED, MODIFIED, DELETED and the object; BOOKMARK and what has a
        resourceVersion only. Version "0": first all that there is, as ADDED. It ends when the server ends it.

        Raises GoneError where that version is too old, UnavailableError where the line breaks or falls silent, another ClusterError where
        the server does not do it.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "labelSelector": JOB_NAME_LABEL, "resourceVersion": version}
        response = await self._send("GET", f"{path}?{urlencode(query)}", None, limits=_WATCHING)
        self.asked("WATCH", response.status)
        async with response:
            with _answering():
                if response.status != HTTPStatus.OK:
                    raise _error(response.status, _parsed(await response.read()))
                async for line in _lines(response.content):
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"].get("code", 0), event["object"])
                    yield event["type"], event["object"]

    # requests

    async def _write(self, verb: str, path: str, body: Object, *, accept: str = _OBJECT) -> Object:
        if not self.writable():
            raise UnavailableError("another operator may lead: this one does not write until it holds the lease again")
        return await self.request(verb, path, body=body, accept=accept)

    async def request(
        self, verb: str, path: str, *, body: Object | None = None, query: dict[str, str] | None = None, accept: str = _OBJECT
    ) -> Object:
        """One request; the object in the answer. Raises a ClusterError."""
        status, answer = await self._exchange(verb, f"{path}?{urlencode(query)}" if query else path, body, accept=accept)
        self.asked(verb, status)
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return answer
        raise _error(status, answer)

    async def _exchange(self, verb: str, path: str, body: Object | None, *, accept: str) -> tuple[int, Object]:
        try:
            response = await self._send(verb, path, body, limits=_TIMEOUT, accept=accept)
            with _answering():
                return response.status, _parsed(await response.read())
        except UnavailableError:
            self.asked(verb, 0)
            raise

    async def _send(
        self, verb: str, path: str, body: Object | None, *, limits: aiohttp.ClientTimeout, accept: str = _OBJECT
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": accept, "Content-Type": "application/json"}
        with _answering():
            _, url, headers, _, _ = await self._api.param_serialize(verb, path, header_params=headers, auth_settings=["BearerToken"])
            answer = await self._api.call_api(verb, url, headers, body, _request_timeout=limits)
            response: aiohttp.ClientResponse = answer.response
            return response


@contextmanager
def _answering() -> Iterator[None]:
    """UnavailableError for whatever goes wrong on the line."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError, orjson.JSONDecodeError) as error:
        raise UnavailableError(f"the API server does not answer: {error or type(error).__name__}") from error


def _parsed(text: bytes) -> Object:
    try:
        answer = orjson.loads(text)
    except ValueError:
        answer = {"message": text.decode(errors="replace")[:200]}
    return answer if isinstance(answer, dict) else {}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _error(status: int, answer: Object) -> ClusterError:
    message = str(answer.get("message") or f"status {status}")
    if status == HTTPStatus.NOT_FOUND:
        return NotFoundError(message)
    if status == HTTPStatus.CONFLICT:
        return AlreadyExistsError(message) if answer.get("reason") == "AlreadyExists" else ConflictError(message)
    if status == HTTPStatus.GONE:
        return GoneError(message)
    if status in _REFUSALS:
        return RefusedError(message)
    return UnavailableError(f"{status}: {message}")


def _folder(manifest: Object) -> str:
    """Where objects of this kind are, in the namespace of this one."""
    version, namespace = manifest["apiVersion"], manifest["metadata"]["namespace"]
    group = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{group}/namespaces/{namespace}/{_PLURALS[manifest['kind']]}"


def _children(pods: Iterable[Object]) -> list[Child]:
    return [child for pod in pods if (child := child_of(pod)) is not None]


def _child(pod: Object) -> Child:
    child = child_of(pod)
    if child is None:
        raise RefusedError(f"a pod {pod['metadata']['name']} is there and is no replica: remove it, or give the job another name")
    return child


@asynccontextmanager
async def connected(namespaces: tuple[str, ...], *, policies: bool) -> AsyncIterator[Gateway]:
    """The gateway, closed at the end."""
    async with client.ApiClient(await load_configuration()) as api:
        yield Gateway(api, namespaces=namespaces, policies=policies)
