"""Requests of tests to the API server, in plain JSON. Each thread has one connection."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.support.waiting import wait_until

Object = dict[str, Any]

REOPENS, REOPENS_SECONDS = b"storage is (re)initializing", 30.0
"""What the API server answers for a moment after a change of a definition."""
JOBS = "/apis/muster.dev/v1beta1/namespaces/{}/trainingjobs"


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """A client of the API server."""

    def __init__(self, server: str, token: str, authority: str) -> None:
        self.server, self.token, self.authority = server, token, authority
        self._context = ssl.create_default_context(cafile=authority)
        self._own = threading.local()

    @classmethod
    def of(cls, kubeconfig: Path) -> Api:
        """The client with the server and the account of a kubeconfig."""
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        return cls(cluster["server"], user["token"], cluster["certificate-authority"])

    def request(
        self, verb: str, path: str, body: Any = None, *, content: str = "application/json", accept: str = "application/json"
    ) -> Object:
        """The object in the answer; {"text": ...} where it is too deep for Python. A body of bytes is sent as it is. Raises ApiError."""
        sent = body if isinstance(body, bytes | None) else json.dumps(body)
        headers = {**self._headers(content), "Accept": accept}
        status, text = self._answer(verb, path, sent, headers)
        deadline = time.monotonic() + REOPENS_SECONDS
        while status == 429 and REOPENS in text and time.monotonic() < deadline:
            time.sleep(0.2)
            status, text = self._answer(verb, path, sent, headers)
        try:
            result: Object = json.loads(text) if text.startswith(b"{") else {"message": text.decode(errors="replace")}
        except RecursionError:
            result = {"text": text.decode()}
        if status >= 300:
            raise ApiError(status, str(result.get("message")))
        return result

    def _answer(self, verb: str, path: str, sent: bytes | str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        for last in (False, True):
            connection = self._connection()
            try:
                connection.request(verb, path, sent, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError):
                self._own.connection = None  # an idle connection may have been closed
                if last:
                    raise
        raise AssertionError

    def get(self, path: str) -> Object:
        return self.request("GET", path)

    def create(self, path: str, body: Object) -> Object:
        return self.request("POST", path, body)

    def delete(self, path: str, options: Object | None = None) -> None:
        """Deletes the object if it exists."""
        try:
            self.request("DELETE", path, options)
        except ApiError as error:
            if error.status != 404:
                raise

    def patch(self, path: str, body: Object) -> Object:
        """A JSON merge patch."""
        return self.request("PATCH", path, body, content="application/merge-patch+json")

    def apply(self, path: str, body: Object) -> Object:
        """Server-side apply, with `force`."""
        return self.request("PATCH", f"{path}?fieldManager=tests&force=true", body, content="application/apply-patch+yaml")

    def replace_status(self, path: str, change: Callable[[Object], Object]) -> None:
        """Replaces the status of an object by the result of `change`. Tries again if the object was written in between."""

        def written() -> bool:
            current = self.get(path)
            try:
                self.request("PUT", f"{path}/status", {**current, "status": change(current.get("status") or {})})
            except ApiError as error:
                if error.status != 409:
                    raise
                return False
            return True

        wait_until(written, f"the status of {path} is replaced")

    def items(self, path: str, **query: str) -> list[Object]:
        return list(self.get(f"{path}?{urlencode(query)}")["items"])

    def watch(self, path: str, version: str, **query: str) -> Watch:
        """The changes from a resourceVersion on."""
        options = urlencode({"watch": "true", "resourceVersion": version, "timeoutSeconds": "3000", **query})
        connection = self._connect(timeout=None)
        connection.request("GET", f"{path}?{options}", headers=self._headers("application/json"))
        return Watch(connection)

    def _headers(self, content: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": content, "Accept": "application/json"}

    def _connection(self) -> http.client.HTTPSConnection:
        if getattr(self._own, "connection", None) is None:
            self._own.connection = self._connect(timeout=30.0)
        connection: http.client.HTTPSConnection = self._own.connection
        return connection

    def _connect(self, timeout: float | None) -> http.client.HTTPSConnection:
        address = urlsplit(self.server)
        assert address.hostname
        return http.client.HTTPSConnection(address.hostname, address.port, timeout=timeout, context=self._context)


class Watch:
    """Events, until the server ends it, or `close` is called from another thread."""

    def __init__(self, connection: http.client.HTTPSConnection) -> None:
        self._connection = connection
        self._socket = connection.sock
        self._answer = connection.getresponse()

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        rest = b""
        with closing(self._connection):
            while chunk := self._read():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    yield event["type"], event["object"]

    def close(self) -> None:
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not the TLS socket's own: that would let the reader read ciphertext

    def _read(self) -> bytes:
        try:
            return self._answer.read1(1 << 16)
        except (http.client.HTTPException, OSError, ValueError):
            return b""
