"""Every request to the API server, in plain JSON.

The client's models are not used: they refuse fields that are newer than they are, and a training pod is the user's. `ApiClient` gives us
configuration, credentials (renewed in place) and the connection pool.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client

from muster.api.constants import GROUP, JOB_NAME_LABEL, KIND, PLURAL, VERSION
from muster.control.cluster import Child, Listing, Object, Unreadable, owner_of
from muster.control.errors import NotFoundError, RefusedError, UnavailableError
from muster.control.store import key_of, slim
from muster.kubernetes.answers import AnswerTooLargeError, UnreadableAnswerError, error_of, lines, parsed, refusal, whole
from muster.kubernetes.credentials import load_configuration
from muster.kubernetes.views import child_of, claim_of
from muster.lifecycle.observed import ClaimView

PAGE, FIRST_PAGE = 250, 25  # objects in one answer to a list, and in the first, which shows how large they are
LARGEST_PAGE = 4 << 20  # bytes in one answer to a list of several objects: parsed, hostile ones take fifty times as much memory
_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
_WATCHING = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=75)  # a watch that lives says so every minute, by a bookmark
_OBJECT = "application/json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Of what we write we know the rest: the answer costs both sides half."""
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_JOBS = f"/apis/{GROUP}/{VERSION}"
_NETWORKING = "/apis/networking.k8s.io/v1"
_PLURALS = {"Service": "services", "NetworkPolicy": "networkpolicies", "Event": "events", "Pod": "pods", KIND: PLURAL}
_KINDS = {plural: kind for kind, plural in _PLURALS.items()}

Seen = TypeVar("Seen")

log = logging.getLogger("muster.gateway")


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
        """Sends no spec: this subresource ignores it, and what is known of it may not be all of it (`store.slim`)."""
        metadata = {name: job["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
        path = f"{_JOBS}/namespaces/{metadata['namespace']}/{PLURAL}/{metadata['name']}/status"
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "status": status}
        answer = await self._write("PUT", path, body, accept=_METADATA)
        return {**job, "metadata": answer["metadata"], "status": status}

    async def delete_job(self, namespace: str, name: str, *, uid: str) -> None:
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._write("DELETE", f"{_JOBS}/namespaces/{namespace}/{PLURAL}/{name}", options)

    # pods and services

    async def list_children(self, namespace: str, name: str) -> list[Child]:
        folder, unreadable = f"/api/v1/namespaces/{namespace}/pods", list[Unreadable]()
        pods = [pod async for pod in self._pages(folder, unreadable, labelSelector=f"{JOB_NAME_LABEL}={name}")]
        if unreadable:  # it may be a replica, and is not to be taken for gone
            raise UnreadableAnswerError(f"pod {unreadable[0].name} cannot be read: {unreadable[0].reason}")
        return _children(pods)

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
        """What cannot be read of it is named in the listing, and keeps nothing else from being listed."""
        unreadable: list[Unreadable] = []
        selected = {"labelSelector": JOB_NAME_LABEL}
        jobs, pods, services = await asyncio.gather(
            self._everywhere(_JOBS, PLURAL, _job, unreadable),
            self._everywhere("/api/v1", "pods", child_of, unreadable, **selected),
            self._everywhere("/api/v1", "services", _belonging, unreadable, **selected),
        )
        policies = await self._everywhere(_NETWORKING, "networkpolicies", _belonging, unreadable, **selected) if self._policies else None
        children = tuple(child for child in pods if child is not None)
        return Listing(tuple(jobs), children, tuple(services), None if policies is None else tuple(policies), tuple(unreadable))

    def folders(self, group: str, plural: str) -> list[str]:
        """The paths under which this installation finds all that it looks after of a kind."""
        return [f"{group}/namespaces/{each}/{plural}" for each in self._namespaces] or [f"{group}/{plural}"]

    @property
    def job_folders(self) -> list[str]:
        """The same for jobs."""
        return self.folders(_JOBS, PLURAL)

    async def _everywhere(
        self, group: str, plural: str, see: Callable[[Object], Seen], unreadable: list[Unreadable], **query: str
    ) -> list[Seen]:
        """What `see` gives for each object; those that it raises for are added to `unreadable`."""
        seen: list[Seen] = []
        for path in self.folders(group, plural):
            async for obj in self._pages(path, unreadable, **query):
                try:
                    seen.append(see(obj))
                except Exception as error:
                    log.exception("%s %s cannot be read", _KINDS[plural], obj.get("metadata"))
                    unreadable.append(_unreadable(_KINDS[plural], obj, f"{type(error).__name__}: {error}"))
        return seen

    async def _pages(self, path: str, unreadable: list[Unreadable], **query: str) -> AsyncIterator[Object]:
        """Every object, by pages of as many as fit into LARGEST_PAGE. One that cannot be parsed by itself is added to `unreadable`."""
        more: str | None = ""
        size = FIRST_PAGE
        while more is not None:
            asked = {**query, "limit": str(size), **({"continue": more} if more else {})}
            try:
                text = await self._text("GET", path, query=asked, most=LARGEST_PAGE if size > 1 else None)
                page = await parsed(text)
            except (AnswerTooLargeError, UnreadableAnswerError) as error:
                if size > 1:
                    size = size // 8 or 1
                    continue
                text = b""
                page = await self.request("GET", path, query=asked, accept=_METADATA_LIST)
                unreadable += [_unreadable(_KINDS[path.rpartition("/")[2]], obj, str(error)) for obj in page["items"]]
                page["items"] = []
            each = len(text) // max(1, len(page["items"]))
            size = min(PAGE, LARGEST_PAGE // 2 // (each + 1) or 1)
            for obj in page["items"]:
                yield obj
            more = page["metadata"].get("continue") or None

    async def changes(self, path: str, version: str, *, labels: str = "") -> AsyncIterator[tuple[str, Object]]:
        """What happens to the objects at `path` that have these `labels`, after `version`: ADDED, MODIFIED, DELETED and the object;
        BOOKMARK and what has a resourceVersion only; UNREADABLE and nothing, for a change that cannot be parsed. OPENED and nothing comes
        first, once the server has accepted the watch. Version "0": first all that there is, as ADDED. It ends when the server ends it.

        Raises GoneError where that version is too old, UnavailableError where the line breaks or falls silent, another ClusterError where
        the server does not do it.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            **({"labelSelector": labels} if labels else {}),
        }
        response = await self._send("GET", f"{path}?{urlencode(query)}", None, limits=_WATCHING)
        self.asked("WATCH", response.status)
        async with response:
            with _answering():
                if response.status != HTTPStatus.OK:
                    raise await refusal(response.status, await response.read())
                yield "OPENED", {}
                async for line in lines(response.content):
                    yield await _change(line)

    # requests

    async def _write(self, verb: str, path: str, body: Object, *, accept: str = _OBJECT) -> Object:
        if not self.writable():
            raise UnavailableError("another operator may lead: this one does not write until it holds the lease again")
        return await self.request(verb, path, body=body, accept=accept)

    async def request(
        self, verb: str, path: str, *, body: Object | None = None, query: dict[str, str] | None = None, accept: str = _OBJECT
    ) -> Object:
        """One request; the object in the answer. Raises a ClusterError."""
        return await parsed(await self._text(verb, path, body=body, query=query, accept=accept))

    async def _text(
        self,
        verb: str,
        path: str,
        *,
        body: Object | None = None,
        query: dict[str, str] | None = None,
        accept: str = _OBJECT,
        most: int | None = None,
    ) -> bytes:
        """The answer, of at most `most` bytes, to a request that succeeded. Raises a ClusterError."""
        try:
            response = await self._send(verb, f"{path}?{urlencode(query)}" if query else path, body, limits=_TIMEOUT, accept=accept)
            with _answering():
                text = await whole(response, most)
        except UnavailableError:
            self.asked(verb, 0)
            raise
        self.asked(verb, response.status)
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return text
        raise await refusal(response.status, text)

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
    except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
        raise UnavailableError(f"the API server does not answer: {error or type(error).__name__}") from error


async def _change(line: bytes) -> tuple[str, Object]:
    """One line of a watch: what happened, and the object."""
    try:
        event = await parsed(line)
        kind, obj = str(event["type"]), event["object"]
        if kind == "ERROR":
            raise error_of(obj.get("code", 0), obj)
        return kind, {**obj, "metadata": obj["metadata"]}
    except (UnreadableAnswerError, LookupError, TypeError, AttributeError) as error:
        log.error("a change that cannot be read is passed over: %s: %s", type(error).__name__, error)
        return "UNREADABLE", {}


def _folder(manifest: Object) -> str:
    """Where objects of this kind are, in the namespace of this one."""
    version, namespace = manifest["apiVersion"], manifest["metadata"]["namespace"]
    group = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{group}/namespaces/{namespace}/{_PLURALS[manifest['kind']]}"


def _job(job: Object) -> Object:
    """What is kept of a job."""
    key_of(job)
    return slim(job)


def _belonging(obj: Object) -> Object:
    """What is kept of a service or a policy: whose it is."""
    metadata = {name: obj["metadata"].get(name) for name in ("name", "namespace", "uid", "resourceVersion", "ownerReferences")}
    owner_of({"metadata": metadata})
    return {"metadata": metadata}


def _unreadable(kind: str, obj: Object, reason: str) -> Unreadable:
    namespace, name, uid = (str((obj.get("metadata") or {}).get(field, "")) for field in ("namespace", "name", "uid"))
    return Unreadable(kind, namespace, name, uid, reason[:500])


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
