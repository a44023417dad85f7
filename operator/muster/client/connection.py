"""The API server as the commands of a user and the web page see it: with the rights of the user, in one namespace. Its errors have an exit
code and a remedy. The client is `muster.kubernetes`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
import yaml
from kubernetes.aio import client, config

from muster.admission.oversized import without_oversized_spec
from muster.api.constants import API_VERSION
from muster.client import errors
from muster.client.cuts import Cuts
from muster.kubernetes.api_paths import ApiPath, InvalidNameError, collection, member
from muster.kubernetes.api_server import FOLLOWING, JSON, MERGE_PATCH, TABLE, ApiServer, Cut
from muster.kubernetes.credentials import from_kubeconfig, from_token
from muster.kubernetes.errors import AnswerTooLargeError, ClusterError, RefusedError
from muster.kubernetes.objects import Object
from muster_contract.text import printable

LARGEST_TEXT = 256 << 20
"""Bytes of one log. A kubelet keeps 10 MiB of each container by default."""
_WATCHING = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=330)
"""The server ends each watch after 300 s (timeoutSeconds), so a longer silence is a dead connection."""
_LONGEST = 1000  # characters of the API server's message


@dataclass(frozen=True)
class Target:
    """The cluster and namespace that a command uses. None stands for the value in the kubeconfig."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


class Connection:
    """The API server, and the namespace that a command works in."""

    def __init__(self, server: ApiServer, *, namespace: str, context: str) -> None:
        self._server = server
        self.namespace = namespace
        self.context = context

    def within(self, namespace: str) -> Connection:
        """The same connection, for work in another namespace."""
        return Connection(self._server, namespace=namespace, context=self.context)

    def path(self, version: str, plural: str, name: str | None = None, *, subresource: str = "") -> ApiPath:
        """The objects of a kind in the namespace, or one of them. Raises NotFoundError if no object can have the name."""
        try:
            folder = collection(version, plural, namespace=self.namespace)
            return folder if name is None else member(folder, name, subresource=subresource)
        except InvalidNameError as error:
            raise errors.NotFoundError(printable(str(error))) from error

    async def get(self, path: ApiPath, **query: str) -> Object:
        """The object at `path`. Raises a ClientError."""
        return await self._object("GET", path, query=query)

    async def get_bounded(self, path: ApiPath) -> Object:
        """The job at `path`. A spec that is far out of bounds is replaced by a small one that is out of bounds too."""
        return await self._object("GET", path, cut=without_oversized_spec)

    async def items(self, path: ApiPath, cut: Callable[[Object], Object] | None = None, **query: str) -> list[Object]:
        """All objects of a list, page by page. `cut` keeps a part of each. Raises TooLargeError if these are too large together."""
        kept = Cuts(cut) if cut is not None else None
        return [obj if kept is None else kept.of(obj) async for page in self._pages(path, JSON, query) for obj in page.get("items") or ()]

    async def tables(self, path: ApiPath) -> AsyncIterator[Object]:
        """The pages of a list as Tables: the columns of `kubectl get`, and the metadata. So specs are not sent."""
        async for page in self._pages(path, TABLE, {"includeObject": "Metadata"}):
            yield page

    async def _pages(self, path: ApiPath, accept: str, query: dict[str, str]) -> AsyncIterator[Object]:
        with self._explained():
            async for page in self._server.pages(path, query=query, accept=accept):
                yield page

    async def create(self, path: ApiPath, body: Object, **query: str) -> Object:
        """Creates the object. The API server refuses unknown fields."""
        return await self._object("POST", path, body=body, query={"fieldManager": "muster", "fieldValidation": "Strict", **query})

    async def replace(self, path: ApiPath, body: Object) -> Object:
        return await self._object("PUT", path, body=body, query={"fieldManager": "muster"})

    async def may(self, attributes: Object) -> bool:
        """Whether the user has the right that these resource attributes describe. The attributes are those of an access review."""
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        answer = await self._object("POST", collection("authorization.k8s.io/v1", "selfsubjectaccessreviews"), body=body)
        return bool((answer.get("status") or {}).get("allowed"))

    async def user_name(self) -> str:
        """The name of the user at the API server. Raises NoRightsError if the API server cannot authenticate the user."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = await self._object("POST", collection("authentication.k8s.io/v1", "selfsubjectreviews"), body=body)
        return printable(str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or ""))

    async def patch(self, path: ApiPath, body: Object) -> Object:
        """Applies a JSON merge patch."""
        return await self._object("PATCH", path, body=body, query={"fieldManager": "muster"}, content=MERGE_PATCH)

    async def delete(self, path: ApiPath, options: Object | None = None) -> Object:
        return await self._object("DELETE", path, body=options)

    async def text(self, path: ApiPath, **query: str) -> str:
        """The body of an answer that is not JSON, such as a log."""
        with self._explained():
            text = await self._server.text("GET", path, query=query, accept="*/*", most=LARGEST_TEXT)
        return text.decode(errors="replace")

    async def stream(self, path: ApiPath, **query: str) -> AsyncIterator[bytes]:
        """The lines of an answer as they arrive, such as those of a log or a watch."""
        limits = _WATCHING if "watch" in query else FOLLOWING
        with self._explained():
            async with self._server.stream(path, query=query, accept="*/*", limits=limits) as received:
                async for line in received:
                    yield line

    async def _object(
        self,
        verb: str,
        path: ApiPath,
        *,
        body: Object | None = None,
        query: dict[str, str] | None = None,
        content: str = JSON,
        cut: Cut | None = None,
    ) -> Object:
        with self._explained():
            return await self._server.request(verb, path, body=body, query=query, content=content, cut=cut)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns every ClusterError into a ClientError."""
        try:
            yield
        except ClusterError as error:
            raise client_error(error, context=self.context) from error


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Connection]:
    """A connection to the cluster that `target` and the kubeconfig name. Raises NoClusterError."""
    try:
        configuration, namespace, context = await from_kubeconfig(target.kubeconfig, target.context)
    except (config.ConfigException, OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise errors.NoClusterError(f"no cluster: {_one_line(str(error))}; set KUBECONFIG, or give --kubeconfig and --context") from error
    async with client.ApiClient(configuration) as api:
        yield Connection(ApiServer(api), namespace=target.namespace or namespace, context=context)


@asynccontextmanager
async def connected_as(token: str, *, server: str, authority: str | None) -> AsyncIterator[Connection]:
    """A connection with only the rights of a token. `authority` is the file with the certificates of the API server."""
    async with client.ApiClient(from_token(token, server=server, authority=authority)) as api:
        yield Connection(ApiServer(api), namespace="default", context="this cluster")


def client_error(error: ClusterError, *, context: str) -> errors.ClientError:
    """The error as the user of a command reads it, with the remedy. `context` is the name of the kubeconfig's context."""
    message, status = _one_line(str(error)), error.status
    if isinstance(error, AnswerTooLargeError):
        return errors.TooLargeError(f"{message}, so it is not read")
    if not status:
        return errors.NoClusterError(f"context {context}: {message}")
    if status == HTTPStatus.UNAUTHORIZED:
        return errors.NoRightsError("the API server does not accept your credentials: log in again, or choose another --context")
    if status == HTTPStatus.FORBIDDEN and " cannot " in message:
        return errors.NoRightsError(f"no rights: {message}; ask for the role that the chart aggregates to view and edit")
    if status == HTTPStatus.NOT_FOUND:
        return errors.NotFoundError(message) if error.reason == "NotFound" else errors.NotInstalledError(NOT_INSTALLED)
    if status == HTTPStatus.CONFLICT:
        return errors.ConflictError(message)
    if "unknown field" in message:
        return errors.OldDefinitionError(
            f"the cluster's TrainingJob definition is older than this command: {message}; apply the crds/ of this version"
        )
    if isinstance(error, RefusedError):
        return errors.RefusedError(message)
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return errors.NoClusterError(f"the API server answered {message}")
    return errors.ClientError(f"the API server answered {message}")


NOT_INSTALLED = (
    f"the cluster has no TrainingJob definition with {API_VERSION}: install or upgrade Muster (helm upgrade --install muster "
    "charts/muster), or choose another --context"
)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()), most=_LONGEST)
