"""The server half of the coordination channel: short POSTs of supervisors, answered at once. Connections are kept open for as long as
there are few.

Whatever a supervisor sends, the answer is a status code and a sentence, and never a failure of the server: what is on the
other end may be an older or newer trainer image, or no supervisor at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from aiohttp import web
from pydantic import ValidationError

from muster.api.reports import Reply, Report
from muster.control.reports import Reports

LARGEST_REPORT = 1 << 20  # bytes; 64 processes with their fingerprints and notices stay far below
SHORTEST_INTERVAL = 0.2  # seconds between two reports of one supervisor: those that live hear of a new attempt by the next one
REPORTS_PER_SECOND = 50.0  # what the server wants to see at most, over all supervisors
SHORTEST_WAIT, WAITS_PER_SECOND = 0.02, 200.0  # the same of those that wait for a world, since a recovery waits for them
CONNECTIONS_KEPT = 100  # of so many supervisors: a handshake costs ten times as much as a report, an open connection some memory
JITTER = 0.2  # intervals differ by this share, so that supervisors started together do not post together


@dataclass(frozen=True)
class Channel:
    """What the server needs of its owner.

    `identify` gives the pod uid that a bearer token stands for, or None. `orders_of` gives what the supervisor of a pod is to be
    told in answer to its report, or None when no such job is known. `wake` is called with the pod's uid when it said something new.
    `random` gives floats of [0, 1).
    """

    reports: Reports
    identify: Callable[[str], Awaitable[str | None]]
    orders_of: Callable[[str, Report], Reply | None]
    wake: Callable[[str], None]
    now: Callable[[], datetime]
    random: Callable[[], float]


def interval_seconds(supervisors: int, random: float, *, waiting: bool = False) -> float:
    """How long a supervisor should wait until its next report: longer the more there are; `random` is in [0, 1). `waiting`: it waits for a
    world, as all of these do."""
    fair = max(SHORTEST_WAIT, supervisors / WAITS_PER_SECOND) if waiting else max(SHORTEST_INTERVAL, supervisors / REPORTS_PER_SECOND)
    return round(fair * (1 + JITTER * (2 * random - 1)), 3)


def coordination_app(channel: Channel) -> web.Application:
    """The application that answers `POST /v1/report`."""

    async def report(request: web.Request) -> web.Response:
        return await _report(channel, request)

    app = web.Application(client_max_size=LARGEST_REPORT)
    app.router.add_post("/v1/report", report)
    return app


async def _report(channel: Channel, request: web.Request) -> web.Response:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return _refused(401, "a header 'Authorization: Bearer <token>' is needed")
    pod_uid = await channel.identify(token.strip())
    if pod_uid is None:
        return _refused(401, "the token belongs to no replica that is known here")
    try:
        report = Report.model_validate_json(await request.read())
    except web.HTTPRequestEntityTooLarge:
        return _refused(413, f"a report has at most {LARGEST_REPORT} bytes")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        return _refused(400, f"this is no report: {where}: {first['msg']}")
    if report.pod_uid and report.pod_uid != pod_uid:
        return _refused(403, f"the token is that of pod {pod_uid}, the report speaks for {report.pod_uid}")
    reply = channel.orders_of(pod_uid, report)
    if reply is None:
        return _refused(404, f"no job is known that pod {pod_uid} belongs to")
    if channel.reports.record(pod_uid, report, channel.now()):
        channel.wake(pod_uid)
    alike = channel.reports.waiting if report.waiting else len(channel.reports)
    interval = interval_seconds(alike, channel.random(), waiting=report.waiting)
    response = web.json_response(reply.model_copy(update={"interval_seconds": interval}).wire())
    if len(channel.reports) > CONNECTIONS_KEPT:
        response.force_close()
    return response


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)
