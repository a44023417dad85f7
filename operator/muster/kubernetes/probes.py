"""Is it alive, is it ready, what has it done: /healthz, /readyz and /metrics. They are served from the first moment, by standbys too.

/metrics names namespaces and jobs of everybody. It is served over HTTPS, to bearers of a token whose user has the right to get that URL.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from muster.control.coordination import RefusedReportError, bearer_token, refusal
from muster.control.doorway import Doorway
from muster.control.metrics import Metric, exposition

TEXT = "text/plain; version=0.0.4"
MOST_CONNECTIONS = 64

Complaint = Callable[[], str | None]
Answer = Callable[[web.Request], Awaitable[web.Response]]


class Probes:
    """`sick` and `unready` give sentences: what keeps the process from being alive, or ready. None: it is well.

    `may_read` raises RefusedReportError unless the bearer of a token may read the metrics.
    """

    def __init__(
        self,
        *,
        sick: Complaint,
        unready: Complaint,
        metrics: Callable[[], Sequence[Metric]],
        may_read: Callable[[str], Awaitable[None]],
    ) -> None:
        health, figures = web.Application(), web.Application()
        health.router.add_get("/healthz", _answering(sick))
        health.router.add_get("/readyz", _answering(unready))
        figures.router.add_get("/metrics", self._show)
        self._metrics = metrics
        self._may_read = may_read
        self._health = Doorway(health, most=MOST_CONNECTIONS)
        self._figures = Doorway(figures, most=MOST_CONNECTIONS)

    async def start(self, health_port: int, metrics_port: int, context: ssl.SSLContext) -> None:
        """Raises OSError if a port is taken. `context` is for the metrics."""
        await self._health.start(None, health_port)
        await self._figures.start(None, metrics_port, context)

    async def stop(self) -> None:
        await self._health.stop()
        await self._figures.stop()

    async def _show(self, request: web.Request) -> web.Response:
        try:
            await self._may_read(bearer_token(request))
        except RefusedReportError as error:
            return refusal(error)
        self._figures.recognise(request, "reader")
        return web.Response(body=exposition(self._metrics()).encode(), headers={"Content-Type": TEXT})


def _answering(complaint: Complaint) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        said = complaint()
        return web.Response(status=503, text=f"{said}\n") if said else web.Response(text="ok\n")

    return answer
