"""The listener of the coordination channel, with silent, slow and hostile connections over real sockets and TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from aiohttp import web

from muster.channel import listener as listener_module
from muster.channel.certificate import new_certificate
from muster.channel.listener import Limits, Listener, recognise

CERTIFICATE = new_certificate("localhost", datetime.now(UTC))
SOON = 20.0
REQUEST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nX-Pod: %s\r\n\r\nok"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Stage:
    """A listener of an application that identifies a pod by a header."""

    listener: Listener
    port: int
    tls: bool
    refused: Counter[str]
    left: list[str]
    opened: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self, address: str = "127.0.0.1") -> Connection:
        """Connects from this address of the loopback interface."""
        context = ssl.create_default_context(cadata=CERTIFICATE.certificate) if self.tls else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname="localhost" if self.tls else None, local_addr=(address, 0)
        )
        self.opened.append(writer)
        return reader, writer

    async def request(self, connection: Connection, pod: bytes = b"") -> bytes:
        """Sends a request and returns the status line of the response."""
        reader, writer = connection
        writer.write(REQUEST % pod)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON)
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await asyncio.wait_for(reader.readexactly(length), SOON)
        return head.partition(b"\r\n")[0]

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SOON
        while not condition():
            assert time.monotonic() < deadline, (self.listener.connections, self.refused)
            await asyncio.sleep(0.01)


async def until_closed(connection: Connection) -> None:
    """Waits until the listener has closed it."""
    with suppress(ConnectionResetError):
        await asyncio.wait_for(connection[0].read(), SOON)


@asynccontextmanager
async def stage(*, tls: bool, limits: Limits = Limits(connections=100)) -> AsyncIterator[Stage]:
    refused: Counter[str] = Counter()
    left: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("X-Pod"):
            recognise(request, request.headers["X-Pod"])
        return web.Response(text=json.dumps({"encoding": request.headers.get("Content-Encoding")}))

    application = web.Application()
    application.router.add_post("/", answer)
    listener = Listener(application, limits, refused=lambda reason: refused.update([reason]), left=left.append)
    port = await listener.start("127.0.0.1", 0, CERTIFICATE.context() if tls else None)
    made = Stage(listener, port, tls, refused, left)
    try:
        yield made
    finally:
        for writer in made.opened:
            writer.transport.abort()
        await listener.stop()
    assert listener.connections == 0


@pytest.fixture(params=[True, False], ids=["TLS", "plain"])
def tls(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_an_authenticated_connection_stays_open_and_serves_many_requests(tls: bool) -> None:
    async def check() -> None:
        async with stage(tls=tls) as at:
            connection = await at.connect()
            for _ in range(5):
                assert await at.request(connection, b"pod") == b"HTTP/1.1 200 OK"
            assert at.listener.connections == 1
            connection[1].close()
            await at.until(lambda: at.listener.connections == 0)
            assert at.refused == {}

    asyncio.run(check())


CLIENT = """
import socket, ssl, sys, time
port, certificate, request = int(sys.argv[1]), sys.argv[2], sys.stdin.buffer.read()
connection = socket.create_connection(("127.0.0.1", port))
if certificate:
    connection = ssl.create_default_context(cadata=certificate).wrap_socket(connection, server_hostname="localhost")
connection.sendall(request)
connection.recv(1)
print("answered", flush=True)
time.sleep(600)
"""


def test_a_killed_process_has_left_at_once(tls: bool) -> None:
    async def check() -> None:
        async with stage(tls=tls) as at:
            arguments = ("-c", CLIENT, str(at.port), CERTIFICATE.certificate if tls else "")
            client = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            assert client.stdin
            assert client.stdout
            try:
                client.stdin.write(REQUEST % b"pod")
                client.stdin.close()
                assert await asyncio.wait_for(client.stdout.readline(), SOON) == b"answered\n"
                assert at.left == []
            finally:
                client.kill()
                await client.wait()
            await at.until(lambda: at.left == ["pod"])

    asyncio.run(check())


def test_only_the_peer_that_closes_its_last_connection_has_left(tls: bool) -> None:
    async def check() -> None:
        limits = Limits(connections=100, seconds=0.5)
        async with stage(tls=tls, limits=limits) as at:
            first, second = await at.connect(), await at.connect()
            for connection in (first, second):
                await at.request(connection, b"pod")
            first[1].transport.abort()
            await at.until(lambda: at.listener.connections == 1)
            await until_closed(second)  # the listener closes it after its time
            unknown = await at.connect()
            await at.request(unknown)
            unknown[1].transport.abort()
            await at.until(lambda: at.listener.connections == 0)
            assert at.left == []

    asyncio.run(check())


UNFINISHED = {
    "nothing": b"",
    "half a request line": b"POST /v1/rep",
    "half the headers": b"POST / HTTP/1.1\r\nHost: localhost\r\nX-",
    "no body": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf",
}


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED)
def test_a_connection_that_never_authenticates_is_closed(data: bytes, tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "ANONYMOUS_SECONDS", 0.5)

    async def check() -> None:
        async with stage(tls=tls) as at:
            connections = []
            for _ in range(10):
                with suppress(OSError):  # it was closed during the handshake, which takes that long on a busy machine
                    connections.append(await at.connect())
            for _, writer in connections:
                writer.write(data)
            for connection in connections:
                await until_closed(connection)
            await at.until(lambda: at.listener.connections == 0)
            assert set(at.refused) <= {"deadline"}

    asyncio.run(check())


def test_a_handshake_that_does_not_end_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with stage(tls=True) as at:
            with monkeypatch.context() as hasty:
                hasty.setattr(listener_module, "HANDSHAKE_SECONDS", 0.3)
                silent = [await asyncio.open_connection("127.0.0.1", at.port) for _ in range(10)]
                at.opened += [writer for _, writer in silent]
                for number, (_, writer) in enumerate(silent):
                    writer.write(b"\x16\x03\x01\x02\x00\x01"[: number % 7])
                for connection in silent:
                    await until_closed(connection)
            await at.until(lambda: at.listener.connections == 0)
            assert await at.request(await at.connect(), b"pod") == b"HTTP/1.1 200 OK"

    asyncio.run(check())


def test_the_oldest_unauthenticated_connections_are_closed_above_the_limit(tls: bool) -> None:
    async def check() -> None:
        async with stage(tls=tls, limits=Limits(connections=20)) as at:
            identified = [await at.connect() for _ in range(5)]
            for number, connection in enumerate(identified):
                await at.request(connection, b"pod-%d" % number)
            for _ in range(60):
                await at.connect()
            await at.until(lambda: at.listener.connections <= 20)
            newcomer = await at.connect()
            assert await at.request(newcomer, b"new") == b"HTTP/1.1 200 OK"
            for number, connection in enumerate(identified):
                assert await at.request(connection, b"pod-%d" % number) == b"HTTP/1.1 200 OK"
            assert at.refused["connections"] >= 40

    asyncio.run(check())


def test_an_address_with_many_connections_replaces_only_its_own(tls: bool) -> None:
    async def check() -> None:
        async with stage(tls=tls, limits=Limits(connections=20)) as at:
            for _ in range(30):
                await at.connect()
            other = await at.connect("127.0.0.2")
            for _ in range(60):
                await at.connect()
            await at.until(lambda: at.refused["connections"] >= 70)
            assert at.listener.connections == 20
            assert await at.request(other, b"other") == b"HTTP/1.1 200 OK"

    asyncio.run(check())


def test_a_new_connection_is_refused_if_all_others_are_authenticated(tls: bool) -> None:
    async def check() -> None:
        async with stage(tls=tls, limits=Limits(connections=3)) as at:
            identified = [await at.connect() for _ in range(3)]
            for number, connection in enumerate(identified):
                await at.request(connection, b"pod-%d" % number)
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await at.request(await at.connect())
            assert at.refused == {"connections": 1}
            assert await at.request(identified[0], b"pod-0") == b"HTTP/1.1 200 OK"

    asyncio.run(check())


UNPROVEN = 300_000
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: %s\r\n" % (b"a" * 8000) * 5  # does not end


def test_what_all_connections_send_without_authentication_is_limited(tls: bool) -> None:
    async def check() -> None:
        async with stage(tls=tls, limits=Limits(unproven=UNPROVEN)) as at:
            honest = await at.connect()
            assert await at.request(honest, b"honest") == b"HTTP/1.1 200 OK"
            hostile = [await at.connect() for _ in range(30)]
            for number, connection in enumerate(hostile[:10]):  # a pod that has authenticated itself once sends no more than others
                await at.request(connection, b"hostile-%d" % number)
            for _, writer in hostile:
                writer.write(HEAD)
            await at.until(lambda: at.refused["connections"] >= 10)
            assert at.listener.unproven <= UNPROVEN
            assert await at.request(honest, b"honest") == b"HTTP/1.1 200 OK"
            assert await at.request(await at.connect(), b"new") == b"HTTP/1.1 200 OK"

    asyncio.run(check())


def test_a_silent_connection_is_closed_before_one_that_sends_little() -> None:
    async def check() -> None:
        async with stage(tls=False, limits=Limits(unproven=200)) as at:
            silent = await at.connect()
            silent[1].write(b"POST / HTTP/1.1\r\nX-A: " + b"a" * 170)
            await at.until(lambda: at.listener.unproven > 0)
            assert await at.request(await at.connect(), b"new") == b"HTTP/1.1 200 OK"
            await until_closed(silent)

    asyncio.run(check())


def test_authenticated_requests_do_not_add_up() -> None:
    async def check() -> None:
        async with stage(tls=False, limits=Limits(unproven=4 * len(REQUEST))) as at:
            connections = [await at.connect() for _ in range(3)]
            for number, connection in enumerate(10 * connections):
                assert await at.request(connection, b"pod-%d" % (number % 3)) == b"HTTP/1.1 200 OK"
            assert at.refused == {}

    asyncio.run(check())


def test_one_identity_has_a_limited_number_of_connections() -> None:
    async def check() -> None:
        async with stage(tls=False) as at:
            for _ in range(10):
                await at.request(await at.connect(), b"pod")
            await at.until(lambda: at.listener.connections == Limits().per_identity)

    asyncio.run(check())


def test_a_compressed_body_is_not_inflated() -> None:
    press = zlib.compressobj(9)
    bomb = b"".join(press.compress(b"\0" * (1 << 20)) for _ in range(1000)) + press.flush()  # inflating it takes more than a second

    async def check() -> float:
        async with stage(tls=False) as at:
            worst = 0.0

            async def watch() -> None:
                nonlocal worst
                while True:
                    begun = time.thread_time()
                    await asyncio.sleep(0)
                    worst = max(worst, time.thread_time() - begun)

            watching = asyncio.create_task(watch())
            _, writer = connection = await at.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)
            await asyncio.wait_for(connection[0].readuntil(b"}"), SOON)
            writer.close()
            await at.until(lambda: at.listener.connections == 0)
            watching.cancel()
            return worst

    assert asyncio.run(check()) < 0.2  # seconds of CPU in one turn of the event loop


def test_an_unused_tls_connection_takes_little_memory() -> None:
    async def buffer() -> int:
        async with stage(tls=True) as at:
            await at.connect()
            await at.until(lambda: at.listener.connections == 1)
            [connection] = at.listener._anonymous
            assert connection._transport is not None
            return len(connection._transport.get_protocol().get_buffer(-1))  # type: ignore[attr-defined,union-attr]

    assert asyncio.run(buffer()) <= 16 * 1024  # asyncio's own is 256 KiB


def test_data_that_is_not_http_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with stage(tls=False) as at:
            reader, writer = await at.connect()
            writer.write(b"\x00\x01\x02 nonsense\r\n\r\n")
            assert b"400" in await asyncio.wait_for(reader.read(), SOON)

    asyncio.run(check())
    assert [record for record in caplog.records if record.name == "muster.listener"] == []
