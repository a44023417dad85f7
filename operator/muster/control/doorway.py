"""A listening socket whose connections are bounded in number, in time and in what they may make the server do.

A connection that has not authenticated itself is closed after a few seconds, whatever it waits for: the TLS handshake, a request line,
headers or a body. When there are too many connections, the oldest of these makes room for a new one. So a peer that opens connections
and sends nothing cannot keep others out. A connection that has authenticated itself is kept as long as it goes on doing so, two for each
identity.

Bodies are never inflated: aiohttp would do that on the event loop, also for a body that no handler reads.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web
from aiohttp.http import HttpProcessingError

MOST_CONNECTIONS = 6000
HANDSHAKE_SECONDS = 5.0
ANONYMOUS_SECONDS = 10.0  # from accepting a connection until it has authenticated itself
KNOWN_SECONDS = 30.0  # the same from each request that has, to the next: supervisors report every two seconds
PER_IDENTITY = 2  # connections; a supervisor uses one, and a second one when it has lost the first
_LINGERING_SECONDS = 0.5  # for a body that was refused unread
_TLS_BUFFER = 16 * 1024  # bytes, the largest TLS record; asyncio takes 256 KiB for each connection
_BACKLOG = 1024


class _Malformed(logging.Filter):
    """Drops records about requests that are not HTTP: any peer can send those, as fast as it likes."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


log = logging.getLogger("muster.doorway")
log.addFilter(_Malformed())


class Doorway:
    """Serves an application from `start` to `stop`. `refused` is called with a word for each connection that is closed early."""

    def __init__(
        self, application: web.Application, *, refused: Callable[[str], None] = lambda _: None, most: int = MOST_CONNECTIONS
    ) -> None:
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=log,
            shutdown_timeout=1.0,
            keepalive_timeout=KNOWN_SECONDS,
            auto_decompress=False,
            lingering_time=_LINGERING_SECONDS,
        )
        self._refused = refused
        self._most = most
        self._context: ssl.SSLContext | None = None
        self._listener: asyncio.Server | None = None
        self._anonymous: dict[_Entry, None] = {}  # the oldest first
        self._known: dict[str, list[_Entry]] = {}
        self._count = 0

    async def start(self, host: str | None, port: int, context: ssl.SSLContext | None = None) -> int:
        """Listens; `host` None means every address. The port, which is a free one if `port` is 0. Raises OSError if the port is taken."""
        sslproto.SSLProtocol.max_size = _TLS_BUFFER  # no parameter sets it
        await self._runner.setup()
        self._context = context
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Entry(self), host, port, backlog=_BACKLOG)
        found: int = self._listener.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()
        for entry in [*self._anonymous, *(entry for entries in self._known.values() for entry in entries)]:
            entry.abort()

    @property
    def connections(self) -> int:
        """How many are open, handshakes included."""
        return len(self._anonymous) + self._count

    def recognise(self, request: web.BaseRequest, identity: str) -> None:
        """The connection of this request has authenticated itself: keep it. Does nothing for a request that came another way."""
        entry = request.transport.get_protocol() if request.transport is not None else None
        if not isinstance(entry, _Entry):
            return
        entry.expire_after(KNOWN_SECONDS)
        if entry in self._anonymous:
            del self._anonymous[entry]
            entry.identity = identity
            mine = self._known.setdefault(identity, [])
            mine.append(entry)
            self._count += 1
            if len(mine) > PER_IDENTITY:
                mine[0].abort()

    def _admit(self, entry: _Entry) -> bool:
        if self.connections >= self._most:
            self._refused("connections")
            oldest = next(iter(self._anonymous), None)
            if oldest is None:
                return False
            oldest.abort()
        self._anonymous[entry] = None
        return True

    def _drop(self, entry: _Entry) -> None:
        self._anonymous.pop(entry, None)
        mine = self._known.get(entry.identity, [])
        if entry in mine:
            mine.remove(entry)
            self._count -= 1
            if not mine:
                del self._known[entry.identity]


class _Entry(asyncio.Protocol):
    """Between a connection and aiohttp's protocol for it, to which everything is passed on once the handshake is done."""

    def __init__(self, door: Doorway) -> None:
        self._door = door
        self._socket: asyncio.Transport | None = None
        self._handler: asyncio.Protocol | None = None
        self._early: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._upgrade: asyncio.Task[None] | None = None
        self.identity = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        if not self._door._admit(self):
            transport.abort()
            return
        self.expire_after(ANONYMOUS_SECONDS)
        if self._door._context is None:
            self._serve(transport)
        else:
            transport.pause_reading()
            self._upgrade = asyncio.create_task(self._secure(transport, self._door._context))

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        secured = None
        with suppress(OSError):  # TimeoutError and ssl.SSLError are such
            secured = await loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS, ssl_shutdown_timeout=1.0
            )
        if secured is None or transport.is_closing():
            self.abort()
        else:
            self._serve(secured)

    def _serve(self, transport: asyncio.Transport) -> None:
        server = self._door._runner.server
        if server is None:  # it is being stopped
            self.abort()
            return
        self._handler = server()
        self._handler.connection_made(transport)
        early, self._early = self._early, []
        for data in early:
            self._handler.data_received(data)

    def expire_after(self, seconds: float) -> None:
        """Closes the connection after so long, unless this is called again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        if not self.identity:
            self._door._refused("deadline")
        self.abort()

    def abort(self) -> None:
        """Closes the connection now, whatever is still to be sent."""
        self._forget()
        if self._socket is not None:
            self._socket.abort()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._door._drop(self)

    # what asyncio calls

    def data_received(self, data: bytes) -> None:
        if self._handler is None:  # the first request came with the end of the handshake
            self._early.append(data)
        else:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received() if self._handler is not None else None

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self._handler is not None:
            self._handler.connection_lost(exc)
