"""The server of the coordination channel. Supervisors post short reports, and each gets its reply at once.

A client may be an older or newer trainer image, a training process that uses the token of its pod, or anything else that reaches the
port. A bad request gets a status code and a sentence. The cheap checks come first: encoding, token, rate, size, content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import ceil
from time import monotonic

from aiohttp import web

from muster.channel.listener import Listener, recognise
from muster.channel.pacing import SHORTEST_WAIT, interval_seconds, long_poll_seconds
from muster.channel.rate_limits import RateLimits
from muster.channel.reports import Reports
from muster_contract.reports import MAX_REPORT, Reply, Report
from muster_contract.wire import WireError, encode, parse

BODY_SECONDS = 5.0  # in which a body must arrive
MOST_OPEN = 5000  # supervisors whose connections stay open, because a handshake costs ten times as much as a report

_CLOSING = frozenset({401, 403, 408, 413, 415})


class RefusedReportError(Exception):
    """A request that is refused with `status` and a sentence. `reason` is the label in the metric of refused requests."""

    def __init__(self, status: int, reason: str, message: str, *, retry_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_seconds = retry_seconds


@dataclass(frozen=True)
class Channel:
    """The callbacks of the server.

    `identify` returns the uid of the pod that a bearer token from an address belongs to, and `reply_to` the reply to a report; both raise
    RefusedReportError. `wake` is called with the pod's uid when a report was new, and `left` when its supervisor has lost its connection.
    `random` returns floats of [0, 1). `refused` is called with the reason of each refusal. `job_of` returns the key of a pod's job, as
    `CoordinationServer.job_changed` takes it."""

    reports: Reports
    identify: Callable[[str, str], Awaitable[str]]
    reply_to: Callable[[str, Report], Reply]
    wake: Callable[[str], None]
    now: Callable[[], datetime]
    random: Callable[[], float]
    left: Callable[[str], None] = lambda _: None
    refused: Callable[[str], None] = lambda _: None
    job_of: Callable[[str], str] = lambda _: ""
    limits: RateLimits = field(default_factory=lambda: RateLimits(monotonic))


class _LongPolls:
    """Requests that are answered when their job changes, by the key of the job. Each pod has at most one."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, asyncio.Future[bool]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    async def wait(self, job: str, pod_uid: str, seconds: float) -> bool:
        """Waits for a change of the job, and returns whether there was one in time. A newer request of the pod ends the wait."""
        self.end(job, pod_uid)
        change: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        requests = self._jobs.setdefault(job, {})
        requests[pod_uid] = change
        timer = asyncio.get_running_loop().call_later(seconds, _finish, change, False)
        try:
            return await change
        finally:
            timer.cancel()
            if requests.get(pod_uid) is change:
                del requests[pod_uid]
            if not requests and self._jobs.get(job) is requests:
                del self._jobs[job]

    def end(self, job: str, pod_uid: str) -> None:
        if change := self._jobs.get(job, {}).get(pod_uid):
            _finish(change, False)

    def changed(self, job: str) -> None:
        for change in list(self._jobs.get(job, {}).values()):
            _finish(change, True)

    async def end_all(self, _: web.Application) -> None:
        for job in list(self._jobs.values()):
            for change in list(job.values()):
                _finish(change, False)


def _finish(change: asyncio.Future[bool], result: bool) -> None:
    if not change.done():
        change.set_result(result)


class CoordinationServer:
    """Answers `POST /v1/report` while its `listener` is open."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        application = web.Application(client_max_size=MAX_REPORT)
        application.router.add_post("/v1/report", self._report)
        self._long_polls = _LongPolls()
        application.on_shutdown.append(self._long_polls.end_all)
        self.listener = Listener(application, refused=channel.refused, left=self._disconnect)

    @property
    def held(self) -> int:
        """The number of reports whose reply is delayed."""
        return len(self._long_polls)

    def job_changed(self, job: str) -> None:
        """Answers the held reports of the job's pods if their reply has changed."""
        self._long_polls.changed(job)

    def _disconnect(self, pod_uid: str) -> None:
        if self._channel.reports.disconnect(pod_uid, self._channel.now()):
            self._channel.left(pod_uid)

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
        pod_uid = await channel.identify(bearer_token(request), request.remote or "")
        recognise(request, pod_uid)
        channel.reports.connect(pod_uid)
        size = MAX_REPORT if request.content_length is None else request.content_length
        if size > MAX_REPORT:
            raise _too_large()
        wait = channel.limits.retry_seconds(pod_uid, size=size, pods=len(channel.reports))
        if wait:
            raise RefusedReportError(429, "rate", f"too many reports: report again in {wait} s", retry_seconds=wait)
        body = await _body(request)
        recognise(request, pod_uid)  # the body does not count any more
        report = _parsed(body)
        if report.pod_uid and report.pod_uid != pod_uid:
            raise RefusedReportError(403, "pod", f"the token is of pod {pod_uid}, and the report of pod {report.pod_uid}")
        reply = channel.reply_to(pod_uid, report)
        if channel.reports.record(pod_uid, report, channel.now()):
            channel.wake(pod_uid)
        begun, preferred = monotonic(), _preferred_wait(request)
        if preferred and report.waiting:
            until = begun + long_poll_seconds(preferred, len(channel.reports))
            reply = await self._reply_with_news(pod_uid, report, reply, until=until)
        if reply.world is not None:
            channel.reports.start(pod_uid, reply.attempt)
        if report.waiting and reply.world is None:
            random = 0.5 if preferred else channel.random()  # a report that was held needs no jitter, because its interval is usually over
            interval = interval_seconds(channel.reports.waiting, random, waiting=True)
            interval = max(SHORTEST_WAIT, interval - (monotonic() - begun))
        else:
            interval = interval_seconds(len(channel.reports), channel.random())
        channel.limits.expect(pod_uid, interval, news=(reply.attempt, reply.world is not None) if _is_news(reply, report) else None)
        response = web.json_response(encode(replace(reply, interval_seconds=interval)))
        if len(channel.reports) > MOST_OPEN:
            response.force_close()
        return response

    async def _reply_with_news(self, pod_uid: str, report: Report, reply: Reply, *, until: float) -> Reply:
        """The first reply that lets a waiting supervisor go on. If there is none in time, the newest reply."""
        channel = self._channel
        while not _is_news(reply, report) and (seconds := until - monotonic()) > 0:
            if not await self._long_polls.wait(channel.job_of(pod_uid), pod_uid, seconds):
                break
            reply = channel.reply_to(pod_uid, report)
        return reply


def _is_news(reply: Reply, report: Report) -> bool:
    """Whether the supervisor has to do something. The number of an attempt that it is ready to start does not count."""
    return reply.end or reply.world is not None or reply.attempt not in (report.attempt, report.startable_attempt)


def _preferred_wait(request: web.Request) -> float:
    """The seconds of the header `Prefer: wait=10` (RFC 7240); 0 without one."""
    name, _, value = request.headers.get("Prefer", "").partition("=")
    return float(value) if name.strip().lower() == "wait" and value.isascii() and value.isdecimal() and len(value) < 5 else 0.0


def refusal(error: RefusedReportError) -> web.Response:
    """The response. The connection closes after it if the body was not read, or if the client is unknown."""
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
        if request.content.is_eof():  # it came with the headers
            return await request.read()
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except (ConnectionError, web.RequestPayloadError):  # a pod may end in the middle of a report
        raise RefusedReportError(400, "cut", "the connection closed before the body was complete") from None
    except TimeoutError:
        raise RefusedReportError(408, "deadline", f"the body did not arrive within {ceil(BODY_SECONDS)} s") from None


def _too_large() -> RefusedReportError:
    return RefusedReportError(413, "size", f"a report has at most {MAX_REPORT} bytes")


def _parsed(body: bytes) -> Report:
    try:
        return parse(Report, body)
    except WireError as error:
        raise RefusedReportError(400, "invalid", f"invalid report: {error}") from None
