"""TLS for thousands of connections: 16 KiB of memory each, where `loop.start_tls` of asyncio takes 256 KiB.

With 6,000 connections that is 96 MiB instead of 1.5 GiB. Neither asyncio nor aiohttp has a parameter for it, so a subclass of asyncio's own
protocol sets the size. Other connections of the process keep their large buffers, with which long lists are read faster.
`tests/unit/channel/test_listener.py::test_an_unused_tls_connection_takes_little_memory` fails without this module.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto

BUFFER = 16 * 1024
"""Bytes of the largest TLS record."""


class _SmallSSLProtocol(sslproto.SSLProtocol):
    max_size = BUFFER

    @property
    def app_transport(self) -> asyncio.Transport:
        transport: asyncio.Transport = self._app_transport
        return transport


async def start_tls(
    transport: asyncio.Transport, protocol: asyncio.Protocol, context: ssl.SSLContext, *, handshake_seconds: float, shutdown_seconds: float
) -> asyncio.Transport:
    """The server's side of a TLS connection on this transport, as `loop.start_tls` makes it. Raises OSError, also as TimeoutError and
    ssl.SSLError."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    secured = _SmallSSLProtocol(
        loop,
        protocol,
        context,
        done,
        server_side=True,
        call_connection_made=False,
        ssl_handshake_timeout=handshake_seconds,  # type: ignore[arg-type]  # a float works as well
        ssl_shutdown_timeout=shutdown_seconds,
    )
    transport.pause_reading()  # until the protocol below has the transport
    transport.set_protocol(secured)
    callbacks = loop.call_soon(secured.connection_made, transport), loop.call_soon(transport.resume_reading)
    try:
        await done
    except BaseException:
        transport.close()
        for callback in callbacks:
            callback.cancel()
        raise
    return secured.app_transport
