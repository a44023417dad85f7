"""Sends requests to the API server. The operator's gateway and the connection of a user's commands and web page share this.

`ApiClient` provides the configuration, the credentials and their renewal, and the connection pool.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client

from muster.control.cluster import Object
from muster.kubernetes.api_paths import ApiPath
from muster.kubernetes.errors import UnavailableError

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept header for writes: the answer needs only the metadata, which halves its cost on both sides."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)


class RedirectError(aiohttp.ClientError):
    """The server refers to another address."""


class ApiServer:
    """The API server, with the configuration of `api`. Redirects are not followed: kube-apiserver sends none, but it passes on those of
    pods and services behind its proxy, and they may lead anywhere."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse)
        api.configuration.trace_configs = [tracing]

    async def send(
        self,
        verb: str,
        path: ApiPath,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        content: str = JSON,
        limits: aiohttp.ClientTimeout = TIMEOUT,
    ) -> aiohttp.ClientResponse:
        """The answer, with any status. Raises UnavailableError."""
        full = f"{path}?{urlencode(query)}" if query else path
        headers = {"Accept": accept, "Content-Type": content}
        with answering():
            _, url, headers, _, _ = await self._api.param_serialize(verb, full, header_params=headers, auth_settings=["BearerToken"])
            answer = await self._api.call_api(verb, url, headers, body, _request_timeout=limits)
            response: aiohttp.ClientResponse = answer.response
            return response


@contextmanager
def answering() -> Iterator[None]:
    """Turns every error of the connection into an UnavailableError."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
        raise UnavailableError(f"the API server does not answer: {error or type(error).__name__}") from error


async def _refuse(session: aiohttp.ClientSession, context: SimpleNamespace, request: aiohttp.TraceRequestRedirectParams) -> None:
    request.response.close()
    raise RedirectError(f"it answers {request.response.status} and refers to another address, which is not followed")
