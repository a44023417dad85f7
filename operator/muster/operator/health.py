"""Whether the operator is alive and ready, and the HTTP servers of /healthz, /readyz and /metrics.

The servers answer from the start, on standby operators too. /metrics shows the namespaces and jobs of all users. So it uses HTTPS, and
needs a token of a user with the right to get that URL.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from muster.channel.coordination import RefusedReportError, bearer_token, refusal
from muster.channel.listener import Limits, Listener, recognise
from muster.control.job_store import Store
from muster.kubernetes.queue import WorkQueue
from muster.operator.metrics.counters import Metrics

STUCK_SECONDS = 300.0  # a pass creates a few hundred replicas at most (`control.executor`), and each request ends within 30 s
SILENT_SECONDS = 180.0  # longer than a dead watch stays unnoticed (75 s)


class Health:
    """Answers the probes. The answer is a sentence about the problem, or None if there is none.

    `is_listed` returns whether jobs and pods have been listed. `lacks_channel` returns whether this operator leads without a running
    channel.
    """

    def __init__(
        self,
        *,
        queue: WorkQueue,
        store: Store,
        availability: Availability,
        is_listed: Callable[[], bool],
        lacks_channel: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._store = store
        self._availability = availability
        self._is_listed = is_listed
        self._lacks_channel = lacks_channel

    def sick(self) -> str | None:
        """A problem that only a restart solves. None if there is none."""
        seconds = self._queue.longest_work()
        if seconds > STUCK_SECONDS:
            return f"a pass over a job has taken {seconds:.0f} s"
        if self._availability.answers and self._store.echoes.silence() > SILENT_SECONDS:
            return f"no watch has delivered an object that was written {self._store.echoes.silence():.0f} s ago"
        return None

    def unready(self) -> str | None:
        """The reason why this operator is not ready. A standby operator is ready once it has listed all jobs and pods. A leader must also
        be reachable for supervisors."""
        if not self._availability.answers:
            return "the API server does not answer"
        if not self._is_listed():
            return "jobs and pods are being listed"
        if self._lacks_channel():
            return "the coordination channel has no certificate yet"
        return None


NO_ANSWER = frozenset({0, 502, 503, 504})
"""Statuses that mean no answer, or only one from a load balancer in front of the API server."""


class Availability:
    """Counts every request, and calls `retry` when the API server answers again, because failed passes may succeed now."""

    def __init__(self, metrics: Metrics, retry: Callable[[], None]) -> None:
        self._metrics = metrics
        self._retry = retry
        self.answers = True
        """Whether the last request was answered."""

    def record(self, verb: str, status: int) -> None:
        """Records the status of a request, or 0 if it got no answer."""
        self._metrics.count_request(verb, status)
        answers = status not in NO_ANSWER
        if answers and not self.answers:
            self._retry()
        self.answers = answers


LIMITS = Limits(connections=64)

Check = Callable[[], str | None]
Answer = Callable[[web.Request], Awaitable[web.Response]]


class Probes:
    """`sick` and `unready` return the reason why the process is not alive or not ready, or None.

    `may_read` gets a token and the address of the peer. It raises RefusedReportError unless the bearer may read the metrics.
    """

    def __init__(
        self,
        *,
        sick: Check,
        unready: Check,
        metrics: Metrics,
        may_read: Callable[[str, str], Awaitable[None]],
    ) -> None:
        health, metrics_app = web.Application(), web.Application()
        health.router.add_get("/healthz", _answering(sick))
        health.router.add_get("/readyz", _answering(unready))
        metrics_app.router.add_get("/metrics", self._show)
        self._metrics = metrics
        self._may_read = may_read
        self._health = Listener(health, LIMITS)
        self._metrics_listener = Listener(metrics_app, LIMITS)

    async def start(self, health_port: int, metrics_port: int, context: ssl.SSLContext) -> None:
        """Starts to listen. `context` is for the metrics. Raises OSError if a port is taken."""
        await self._health.start(None, health_port)
        await self._metrics_listener.start(None, metrics_port, context)

    async def stop(self) -> None:
        await self._health.stop()
        await self._metrics_listener.stop()

    async def _show(self, request: web.Request) -> web.Response:
        try:
            await self._may_read(bearer_token(request), request.remote or "")
        except RefusedReportError as error:
            return refusal(error)
        recognise(request, "reader")
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answering(check: Check) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        reason = check()
        return web.Response(status=503, text=f"{reason}\n") if reason else web.Response(text="ok\n")

    return answer
