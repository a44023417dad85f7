"""Is it alive, is it ready, what has it done: /healthz, /readyz and /metrics. They are served from the first moment, by standbys too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from muster.control.metrics import Metric, exposition

TEXT = "text/plain; version=0.0.4"

Complaint = Callable[[], str | None]
Answer = Callable[[web.Request], Awaitable[web.Response]]


class Probes:
    """`sick` and `unready` give sentences: what keeps the process from being alive, or ready. None: it is well."""

    def __init__(self, *, sick: Complaint, unready: Complaint, metrics: Callable[[], Sequence[Metric]]) -> None:
        health, figures = web.Application(), web.Application()
        health.router.add_get("/healthz", _answering(sick))
        health.router.add_get("/readyz", _answering(unready))
        figures.router.add_get("/metrics", _showing(metrics))
        self._health = web.AppRunner(health, access_log=None, shutdown_timeout=1.0)
        self._figures = web.AppRunner(figures, access_log=None, shutdown_timeout=1.0)

    async def start(self, health_port: int, metrics_port: int) -> None:
        """Raises OSError where a port is taken."""
        for server, port in ((self._health, health_port), (self._figures, metrics_port)):
            await server.setup()
            await web.TCPSite(server, None, port).start()

    async def stop(self) -> None:
        await self._health.cleanup()
        await self._figures.cleanup()


def _answering(complaint: Complaint) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        said = complaint()
        return web.Response(status=503, text=f"{said}\n") if said else web.Response(text="ok\n")

    return answer


def _showing(metrics: Callable[[], Sequence[Metric]]) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=exposition(metrics()).encode(), headers={"Content-Type": TEXT})

    return answer
