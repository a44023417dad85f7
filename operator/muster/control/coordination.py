"""The server half of the coordination channel: short POSTs of supervisors, each answered at once.

Whatever a client sends, the answer is a status code and a sentence, and the server goes on: the client may be an older or newer trainer
image, a training process that uses its pod's token, or anything else that reaches the port. What costs something is done after what
refuses a request: encoding, token, rate, size, content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from time import monotonic

from aiohttp import web
from pydantic import ValidationError

from muster.api.reports import Reply, Report
from muster.control.doorway import Doorway
from muster.control.pace import Pace
from muster.control.reports import Reports

LARGEST_REPORT = 128 * 1024  # bytes; 64 processes with fingerprints, paces, stacks and notices take about 90 KiB
BODY_SECONDS = 5.0  # in which a body must arrive
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.2, 2.0  # seconds between two reports of one supervisor: it learns of a new attempt by the next one
REPORTS_PER_SECOND = 50.0  # of all supervisors together, as long as the longest interval allows it
SHORTEST_WAIT, LONGEST_WAIT = 0.02, 0.5  # the same of supervisors that wait for a world, since a recovery waits for them
WAITS_PER_SECOND = 200.0
CONNECTIONS_KEPT = 4096  # of so many supervisors: a handshake costs ten times as much as a report, an open connection some memory
JITTER = 0.2  # intervals differ by this share, so that supervisors started together do not post together

_CLOSING = frozenset({401, 403, 408, 413, 415})


class RefusedReportError(Exception):
    """A request that is answered with `status` and a sentence. `reason` is the word that it is counted under."""

    def __init__(self, status: int, reason: str, message: str, *, retry_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_seconds = retry_seconds


@dataclass(frozen=True)
class Channel:
    """What the server needs of its owner.

    `identify` gives the pod uid that a bearer token stands for, and `orders_of` the reply to a report; both raise RefusedReportError.
    `wake` is called with the pod's uid when a report was new. `random` gives floats of [0, 1). `refused` is called with the reason of
    each refusal.
    """

    reports: Reports
    identify: Callable[[str], Awaitable[str]]
    orders_of: Callable[[str, Report], Reply]
    wake: Callable[[str], None]
    now: Callable[[], datetime]
    random: Callable[[], float]
    refused: Callable[[str], None] = lambda _: None
    pace: Pace = field(default_factory=lambda: Pace(monotonic))


def interval_seconds(supervisors: int, random: float, *, waiting: bool = False) -> float:
    """How long a supervisor should wait until its next report: longer the more there are, up to a limit, so that nobody can slow down the
    supervisors of others. `random` is in [0, 1). `waiting`: it waits for a world, as all of these do."""
    if waiting:
        fair = min(LONGEST_WAIT, max(SHORTEST_WAIT, supervisors / WAITS_PER_SECOND))
    else:
        fair = min(LONGEST_INTERVAL, max(SHORTEST_INTERVAL, supervisors / REPORTS_PER_SECOND))
    return round(fair * (1 + JITTER * (2 * random - 1)), 3)


class CoordinationServer:
    """Answers `POST /v1/report`, from the start of its `door` to the stop."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        application = web.Application(client_max_size=LARGEST_REPORT)
        application.router.add_post("/v1/report", self._report)
        self.door = Doorway(application, refused=channel.refused)

    async def _report(self, request: web.Request) -> web.Response:
        try:
            return await self._answer(request)
        except RefusedReportError as error:
            self._channel.refused(error.reason)
            return refusal(error)

    async def _answer(self, request: web.Request) -> web.Response:
        channel = self._channel
        if "Content-Encoding" in request.headers:
            raise RefusedReportError(415, "encoding", "send the report as plain JSON, without a Content-Encoding")
        pod_uid = await channel.identify(bearer_token(request))
        self.door.recognise(request, pod_uid)
        size = LARGEST_REPORT if request.content_length is None else request.content_length
        if size > LARGEST_REPORT:
            raise _too_large()
        wait = channel.pace.retry_seconds(pod_uid, size=size, pods=len(channel.reports))
        if wait:
            raise RefusedReportError(429, "rate", f"too many reports: report again in {wait} s", retry_seconds=wait)
        report = _parsed(await _body(request))
        if report.pod_uid and report.pod_uid != pod_uid:
            raise RefusedReportError(403, "pod", f"the token is that of pod {pod_uid}, the report speaks for {report.pod_uid}")
        reply = channel.orders_of(pod_uid, report)
        if channel.reports.record(pod_uid, report, channel.now()):
            channel.wake(pod_uid)
        alike = channel.reports.waiting if report.waiting else len(channel.reports)
        interval = interval_seconds(alike, channel.random(), waiting=report.waiting)
        channel.pace.expect(pod_uid, interval)
        response = web.json_response(reply.model_copy(update={"interval_seconds": interval}).wire())
        if len(channel.reports) > CONNECTIONS_KEPT:
            response.force_close()
        return response


def refusal(error: RefusedReportError) -> web.Response:
    """The response. Where the body was not read, or the client is unknown, the connection ends with it."""
    response = web.json_response({"message": str(error)}, status=error.status)
    if error.retry_seconds is not None:
        response.headers["Retry-After"] = str(error.retry_seconds)
    if error.status in _CLOSING:
        response.force_close()
    return response


def bearer_token(request: web.Request) -> str:
    """The token of the header Authorization. Raises RefusedReportError."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise RefusedReportError(401, "token", "a header 'Authorization: Bearer <token>' is needed")
    return token.strip()


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except (ConnectionError, web.RequestPayloadError):  # a pod that ends in the middle of a report is no fault of the server
        raise RefusedReportError(400, "cut", "the connection closed before the body was complete") from None
    except TimeoutError:
        raise RefusedReportError(408, "deadline", f"the body did not arrive within {ceil(BODY_SECONDS)} s") from None


def _too_large() -> RefusedReportError:
    return RefusedReportError(413, "size", f"a report has at most {LARGEST_REPORT} bytes")


def _parsed(body: bytes) -> Report:
    try:
        return Report.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise RefusedReportError(400, "invalid", f"this is no report: {where}: {first['msg']}") from None
