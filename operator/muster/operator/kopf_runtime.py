"""Runs the operator under kopf, which starts it, logs it in, handles signals and stops it.

kopf watches no jobs, peers, namespaces or definitions here. `watches.py` explains why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import kopf

from muster.kubernetes.credentials import load_configuration


class _Pauses:
    """Endless pauses, in seconds, between the retries of a request by kopf. By default, kopf ends the operator after a minute of status
    503. A load balancer answers with this status while the API server is down."""

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 1.0, 2.0, 3.0), repeat(5.0))


async def run(
    *, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]], stop_flag: asyncio.Event, namespaces: Sequence[str]
) -> None:
    """Calls `start`, waits for a signal or for `stop_flag`, and calls `stop`."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def on_startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await start()

    @kopf.on.login(registry=registry)
    async def on_login(**_: Any) -> kopf.ConnectionInfo:
        return await _connection()

    @kopf.on.cleanup(registry=registry)
    async def on_cleanup(**_: Any) -> None:
        await stop()

    scope: dict[str, Any] = {"namespaces": list(namespaces)} if namespaces else {"clusterwide": True}
    await kopf.operator(registry=registry, standalone=True, stop_flag=stop_flag, **scope)


def configure(settings: kopf.OperatorSettings) -> None:
    """Switches off the parts of kopf that Muster replaces."""
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Pauses()
    settings.process.ultimate_exiting_timeout = 25


async def _connection() -> kopf.ConnectionInfo:
    """The credentials. kopf calls this again when the API server refuses the token, because a pod's token changes within an hour."""
    configuration = await load_configuration()
    scheme, _, token = (await configuration.get_api_key_with_prefix("BearerToken") or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme if token else None,
        token=token.strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )
