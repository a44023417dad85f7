"""`muster ui` and `muster report` as commands, and the connections that the page of a cluster accepts."""

from __future__ import annotations

import asyncio
import http.client
import re
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from muster.channel import listener
from muster.cli.main import main
from muster.client import errors
from muster.kubernetes.token_bucket import Bucket
from muster.tools.ui import serving, sessions
from muster.tools.ui.serving import serve_users
from muster.tools.ui.sessions import Session, UserSessions

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def test_the_page_is_served_over_https_with_the_certificate_of_a_folder(tmp_path: Path) -> None:
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "1"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files], check=True, capture_output=True, timeout=60
    )
    command = [sys.executable, "-m", "muster.cli", "ui", "--sign-in", "--port", "0", "--certificate", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.fullmatch(r"Serving https://127\.0\.0\.1:(\d+)/\n", process.stdout.readline())
            assert address is not None
            trusted = ssl.create_default_context(cafile=str(certificate))
            connection = http.client.HTTPSConnection("localhost", int(address[1]), timeout=60, context=trusted)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            connection.close()
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_the_error_for_a_missing_certificate_names_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ui", "--sign-in", "--port", "0", "--certificate", str(tmp_path)])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("the page cannot be served: ")


def test_a_report_of_an_unknown_name_mentions_runs_and_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["report", "nowhere", "--kubeconfig", str(tmp_path / "none")])
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith("nowhere: there is no such run directory. As the name of a job: no cluster")


class Site:
    """The page of a cluster's users, served by this process. Ada is signed in with the cookie."""

    COOKIE = "__Host-muster-ui=ada"

    def __init__(self, port: int) -> None:
        self._port = port

    async def connect(self, address: str) -> Connection:
        """Connects from this address of the loopback interface."""
        return await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))

    async def get(self, connection: Connection, path: str) -> bytes:
        """Sends a request and returns the status line of the response."""
        return await self._answer(connection, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {self.COOKIE}\r\n\r\n")

    async def sign_in(self, connection: Connection, token: str) -> bytes:
        """Sends the form with the token and returns the status line of the response."""
        form = f"token={token}"
        head = f"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Length: {len(form)}\r\n"
        return await self._answer(connection, f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\n{form}")

    async def _answer(self, connection: Connection, request: str) -> bytes:
        reader, writer = connection
        writer.write(request.encode())
        async with asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            await reader.readexactly(int(length[1]) if length else 0)
        return head.partition(b"\r\n")[0]


@asynccontextmanager
async def serving_users() -> AsyncIterator[Site]:
    users = UserSessions(server="http://127.0.0.1:9", authority=None, history=None, clock=time.monotonic)
    bucket = Bucket(1000.0, 1000.0, 1000.0, time.monotonic())
    users._sessions["ada"] = Session({}, "ada", float("inf"), bucket, time.monotonic())
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve_users(users, host="127.0.0.1", port=0, certificate=None, opened=address.set_result))
    try:
        async with asyncio.timeout(60):
            yield Site(int((await address).rstrip("/").rpartition(":")[2]))
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


def test_silent_connections_are_limited_and_keep_no_user_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LIMITS", replace(serving.LIMITS, connections=10))

    async def check() -> None:
        async with serving_users() as site:
            signed_in = await site.connect("127.0.0.1")
            assert await site.get(signed_in, "/") == b"HTTP/1.1 200 OK"
            silent = [await site.connect("127.0.0.1") for _ in range(30)]
            other = await site.connect("127.0.0.2")
            silent += [await site.connect("127.0.0.1") for _ in range(30)]
            for reader, _ in silent[:-8]:
                with suppress(ConnectionResetError):
                    await reader.read()
            assert [reader.at_eof() for reader, _ in silent[-8:]] == [False] * 8
            assert await site.get(other, "/sign-in") == b"HTTP/1.1 200 OK"
            assert await site.get(signed_in, "/") == b"HTTP/1.1 200 OK"
            for _, writer in (signed_in, other, *silent):
                writer.close()

    asyncio.run(check())


def test_a_connection_without_a_signed_in_user_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "ANONYMOUS_SECONDS", 0.5)

    async def check() -> None:
        async with serving_users() as site:
            signed_in, nobody = [await site.connect("127.0.0.1") for _ in range(2)]
            assert await site.get(signed_in, "/") == b"HTTP/1.1 200 OK"
            with suppress(ConnectionResetError):
                await nobody[0].read()
            assert await site.get(signed_in, "/") == b"HTTP/1.1 200 OK"
            signed_in[1].close()

    asyncio.run(check())


def test_sign_ins_of_one_address_keep_no_other_address_out(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def refused(*_: object, **__: object) -> AsyncIterator[None]:
        raise errors.NoRightsError("unknown token")
        yield

    monkeypatch.setattr(sessions, "connected_as", refused)

    async def check() -> None:
        async with serving_users() as site:
            hostile, other = await site.connect("127.0.0.1"), await site.connect("127.0.0.2")
            answers = [await site.sign_in(hostile, f"wrong-{number}") for number in range(int(2 * sessions.SIGN_INS))]
            assert answers[0] == b"HTTP/1.1 401 Unauthorized"
            assert answers[-1] == b"HTTP/1.1 429 Too Many Requests"
            assert await site.sign_in(other, "wrong") == b"HTTP/1.1 401 Unauthorized"
            for _, writer in (hostile, other):
                writer.close()

    monkeypatch.setattr(sessions, "SIGN_INS_PER_SECOND", 0.001)  # a slow machine gives the address no new sign-ins
    asyncio.run(check())
