"""A listening socket that limits the number, the duration and the cost of its connections.

- A connection that has not authenticated itself is closed after a few seconds, whether it waits for the TLS handshake, a request line,
  headers or a body.
- When there are too many connections, a new one replaces one of these: the oldest of the same address, or the oldest of all if the
  address has no other. So a peer that opens connections and sends nothing cannot block others.
- A connection that has authenticated itself stays open while it continues to do so. Each identity has few.
- The bytes that all connections have sent since they last authenticated themselves are limited, because aiohttp keeps them in memory. The
  headers of one request may take two megabytes there.

Bodies are never decompressed, because aiohttp would do that on the event loop, even for a body that no handler reads.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http import HttpProcessingError

from muster.channel.small_tls import start_tls

HANDSHAKE_SECONDS = 5.0
ANONYMOUS_SECONDS = 10.0  # from accepting a connection until it has authenticated itself
FEW_UNPROVEN = 16 * 1024  # bytes; the first request of a supervisor with eight processes
_DISCARD_SECONDS = 0.5  # for a body that was refused before it was read
_BACKLOG = 1024


@dataclass(frozen=True)
class Limits:
    """The limits of a listener. The defaults are those of the coordination channel."""

    connections: int = 6000
    per_identity: int = 2
    """Connections of one identity. A supervisor uses one, and a second one when it has lost the first."""
    unproven: int = 96 << 20
    """Bytes that all connections have sent since they last authenticated themselves. 6,000 supervisors that connect at once send 80 MB."""
    seconds: float = 30.0
    """From one authenticated request to the next. Supervisors report every two seconds."""


class _Malformed(logging.Filter):
    """Drops log records about requests that are not HTTP, because any peer can send them at any rate."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


log = logging.getLogger("muster.listener")
log.addFilter(_Malformed())


class Listener:
    """Serves an application from `start` to `stop`. `refused` is called with the reason for each connection that is closed early. `left` is
    called with an identity whose peer has closed, or lost, its last connection."""

    def __init__(
        self,
        application: web.Application,
        limits: Limits = Limits(),
        *,
        refused: Callable[[str], None] = lambda _: None,
        left: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=log,
            shutdown_timeout=1.0,
            keepalive_timeout=limits.seconds,
            auto_decompress=False,
            lingering_time=_DISCARD_SECONDS,
        )
        self._refused = refused
        self._left = left
        self._limits = limits
        self._context: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._anonymous: dict[_Connection, None] = {}  # the oldest first
        self._anonymous_of: dict[str, dict[_Connection, None]] = {}  # the same by address
        self._authenticated: dict[str, list[_Connection]] = {}
        self._authenticated_count = 0
        self.unproven = 0

    async def start(self, host: str | None, port: int, context: ssl.SSLContext | None = None) -> int:
        """Starts to listen on `host`, or on every address if it is None. Returns the port, which is a free one if `port` is 0. Raises
        OSError if the port is taken."""
        await self._runner.setup()
        self._context = context
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=_BACKLOG)
        free_port: int = self._server.sockets[0].getsockname()[1]
        return free_port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
        for connection in [*self._anonymous, *(connection for connections in self._authenticated.values() for connection in connections)]:
            connection.abort()

    @property
    def connections(self) -> int:
        """How many connections are open, including those in the TLS handshake."""
        return len(self._anonymous) + self._authenticated_count

    def _recognise(self, connection: _Connection, identity: str) -> None:
        connection.expire_after(self._limits.seconds)
        self._forgive(connection)
        if connection in self._anonymous:
            self._no_longer_anonymous(connection)
            connection.identity = identity
            mine = self._authenticated.setdefault(identity, [])
            mine.append(connection)
            self._authenticated_count += 1
            if len(mine) > self._limits.per_identity:
                mine[0].abort()

    def _admit(self, connection: _Connection) -> bool:
        if self.connections >= self._limits.connections:
            self._refused("connections")
            oldest = next(iter(self._anonymous_of.get(connection.address) or self._anonymous), None)
            if oldest is None:
                return False
            oldest.abort()
        self._anonymous[connection] = None
        self._anonymous_of.setdefault(connection.address, {})[connection] = None
        return True

    def _no_longer_anonymous(self, connection: _Connection) -> None:
        self._anonymous.pop(connection, None)
        same = self._anonymous_of.get(connection.address, {})
        same.pop(connection, None)
        if not same:
            self._anonymous_of.pop(connection.address, None)

    def _takes(self, connection: _Connection, size: int) -> bool:
        """Counts bytes that the connection has sent. If all connections have sent too many, closes this one if it has sent more than a few,
        or else the oldest unauthenticated one. Returns whether this one is still open."""
        connection.unproven += size
        self.unproven += size
        if self.unproven <= self._limits.unproven:
            return True
        self._refused("connections")
        oldest = next(iter(self._anonymous), connection)
        closed = connection if connection.unproven > FEW_UNPROVEN else oldest
        closed.abort()
        return closed is not connection

    def _forgive(self, connection: _Connection) -> None:
        self.unproven -= connection.unproven
        connection.unproven = 0

    def _drop(self, connection: _Connection) -> None:
        self._forgive(connection)
        self._no_longer_anonymous(connection)
        mine = self._authenticated.get(connection.identity, [])
        if connection in mine:
            mine.remove(connection)
            self._authenticated_count -= 1
            if not mine:
                del self._authenticated[connection.identity]
                if connection.closed_by_peer:
                    self._left(connection.identity)


def recognise(request: web.BaseRequest, identity: str) -> None:
    """Keeps the connection of this request open, because it has authenticated itself. What it has sent so far does not count any more.
    Does nothing for a request that no Listener serves."""
    connection = request.transport.get_protocol() if request.transport is not None else None
    if isinstance(connection, _Connection):
        connection.recognise(identity)


class _Connection(asyncio.Protocol):
    """Passes everything from a connection on to aiohttp's protocol after the TLS handshake."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._handler: asyncio.Protocol | None = None
        self._early: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._expires = 0.0
        self._upgrade: asyncio.Task[None] | None = None
        self.address = ""
        self.identity = ""
        self.unproven = 0  # bytes since it last authenticated itself
        self.closed_by_peer = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._listener._admit(self):
            transport.abort()
            return
        self.expire_after(ANONYMOUS_SECONDS)
        if self._listener._context is None:
            self._serve(transport)
        else:
            transport.pause_reading()
            self._upgrade = asyncio.create_task(self._secure(transport, self._listener._context))

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        secured = None
        with suppress(OSError):  # includes TimeoutError and ssl.SSLError
            secured = await start_tls(transport, self, context, handshake_seconds=HANDSHAKE_SECONDS, shutdown_seconds=1.0)
        if secured is None or transport.is_closing():
            self.abort()
        else:
            self._serve(secured)

    def _serve(self, transport: asyncio.Transport) -> None:
        server = self._listener._runner.server
        if server is None:  # the server is stopping
            self.abort()
            return
        self._handler = server()
        self._handler.connection_made(transport)
        early, self._early = self._early, []
        for data in early:
            self._handler.data_received(data)

    def recognise(self, identity: str) -> None:
        self._listener._recognise(self, identity)

    def expire_after(self, seconds: float) -> None:
        """Closes the connection after so many seconds, unless this is called again."""
        loop = asyncio.get_running_loop()
        self._expires = loop.time() + seconds
        if self._timer is None or self._timer.when() > self._expires:
            self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._expires, self._expire)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._expires:  # there was a request meanwhile, and a new timer for each would cost more
            self._set_timer(loop)
            return
        if not self.identity:
            self._listener._refused("deadline")
        self.abort()

    def abort(self) -> None:
        """Closes the connection now, even if data is still to be sent."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._listener._drop(self)

    # callbacks of asyncio

    def data_received(self, data: bytes) -> None:
        if not self._listener._takes(self, len(data)):
            return
        if self._handler is None:  # the first request arrived with the end of the handshake
            self._early.append(data)
        else:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        self.closed_by_peer = True
        return self._handler.eof_received() if self._handler is not None else None

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed_by_peer = self.closed_by_peer or exc is not None
        self._forget()
        if self._handler is not None:
            self._handler.connection_lost(exc)
