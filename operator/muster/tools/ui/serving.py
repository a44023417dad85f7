"""Serves the pages until the process gets a signal to end."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from muster.channel.listener import FEW_UNPROVEN, Limits, Listener
from muster.client import errors
from muster.client.connection import Target, connected
from muster.tools.report.storage import Storage
from muster.tools.ui.app import Pages
from muster.tools.ui.sessions import OwnSession, UserSessions
from muster.tools.ui.sources import ClusterJobs, DeletedJobs, LocalRuns, ObservedSteps, Sources

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 500
LIMITS = Limits(connections=MOST_CONNECTIONS, per_identity=64, unproven=MOST_CONNECTIONS * FEW_UNPROVEN, seconds=120.0)
"""Those of the page in a cluster. A browser opens up to six connections, and the proxy of many users may open more for one of them."""


@dataclass(frozen=True)
class Own:
    """What the page of a user's own machine shows. `target` is None if it shows no cluster. `everywhere` lists the jobs of all
    namespaces."""

    runs: Path
    target: Target | None
    everywhere: bool
    history: Storage | None


async def serve_own(own: Own, *, port: int, opened: Callable[[str], None]) -> None:
    """Serves on loopback. `opened` gets the address, with its token. Raises OSError if the port is taken."""
    async with AsyncExitStack() as stack:
        sources: Sources = {"local": LocalRuns(own.runs)}
        namespace = None
        if own.target is not None:
            try:
                connection = await stack.enter_async_context(connected(own.target))
                sources["cluster"] = ClusterJobs(connection, ObservedSteps(), history=own.history)
                namespace = None if own.everywhere else connection.namespace
            except errors.NoClusterError:
                if own.target != Target():
                    raise  # the user has named a cluster
        if own.history is not None:
            sources["gone"] = DeletedJobs(own.history, None)
        session = OwnSession(sources, time.monotonic)
        listening = socket.create_server((LOOPBACK, port))
        free = listening.getsockname()[1]
        pages = _own_pages(session, free, namespace=namespace)
        runner = web.AppRunner(pages.application(), access_log=None, auto_decompress=False, shutdown_timeout=1.0, keepalive_timeout=30.0)
        await runner.setup()
        stack.push_async_callback(session.close)
        stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listening).start()
        opened(f"http://{LOOPBACK}:{free}/?token={session.secret}")
        await _stop_signal()


async def serve_users(sessions: UserSessions, *, host: str, port: int, certificate: Path | None, opened: Callable[[str], None]) -> None:
    """Serves users who sign in with tokens of the cluster, on `host`, or on every address if it is empty. `certificate` is a folder with
    `tls.crt` and `tls.key`; without one the page is plain HTTP. Raises OSError if the port is taken or the certificate cannot be read."""
    # The prefix makes browsers refuse the cookie unless it is secure and of this host alone.
    pages = Pages(sessions, hosts=None, cookie="__Host-muster-ui")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(sessions.close)
        listener = Listener(pages.application(), LIMITS)
        stack.push_async_callback(listener.stop)
        free = await listener.start(host or None, port, _tls(certificate))
        opened(f"{'https' if certificate else 'http'}://{host or '*'}:{free}/")
        await _stop_signal()


def _tls(folder: Path | None) -> ssl.SSLContext | None:
    if folder is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def _own_pages(session: OwnSession, port: int, *, namespace: str | None) -> Pages:
    """The allowed host names. Cookies do not depend on ports, so the cookie's name has the port. Other names would let another site read
    the page."""
    hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
    return Pages(session, hosts=hosts, cookie=f"muster-ui-{port}", namespace=namespace)


async def _stop_signal() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    await stop.wait()
