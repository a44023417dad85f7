"""The pages, as an aiohttp application. Only a POST from a form of the page itself changes a job, with the rights of the user."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from aiohttp.http import HttpProcessingError
from jinja2 import PackageLoader

from muster.channel.listener import recognise
from muster.client import errors
from muster.explain.explain import capital
from muster.kubernetes.fairness import Slots
from muster.tools.report.job import job_page, overlay
from muster.tools.report.page import UPLOT, environment, file_text, style
from muster.tools.report.plots import SERIES
from muster.tools.ui.choosing import SHOWN_AT_ONCE, Choice, columns_of
from muster.tools.ui.job_rows import Kind, Listed, actions_in, path_of
from muster.tools.ui.sessions import LONGEST_TOKEN, NotSignedInError, OwnSession, Session, TooManyError, UserSessions
from muster.tools.ui.sources import Source

REFRESH_SECONDS, REFRESH_ENDED_SECONDS = 3, 30
ROWS_PER_SECOND = 100
"""The number of rows for each second of the refresh interval. So a longer list is refreshed less often."""
AT_ONCE, AT_ONCE_PER_USER = 8, 2
"""The number of pages that are made at the same time, and of those for one user."""
MOST_WAITING = 20
"""The number of pages that wait for their turn, and of changes that go on, for one user. A browser opens up to six connections for each
session."""
MOST_OVERLAID = len(SERIES)
"""The number of jobs in one plot: that of colours that can be told apart."""
ANSWER_SECONDS = 20.0
"""How long a change of a job may take before the browser gets an answer."""
KINDS: tuple[Kind, ...] = ("cluster", "local", "gone")


def _own(name: str) -> str:
    return files("muster.tools.ui").joinpath("static", name).read_text(encoding="utf-8")


STATIC: dict[str, tuple[str, Callable[[], str]]] = {
    "page.css": ("text/css", style),
    "ui.css": ("text/css", partial(_own, "ui.css")),
    "ui.js": ("text/javascript", partial(_own, "ui.js")),
    "plots.js": ("text/javascript", partial(file_text, "plots.js")),
    "uplot.js": ("text/javascript", partial(file_text, UPLOT, "uPlot.iife.min.js")),
    "icon.svg": ("image/svg+xml", partial(_own, "icon.svg")),
}
"""The type and the content of each file."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send forms with the origin `null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer. Plots have style attributes, so inline styles are allowed. Scripts are not allowed."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages:
    """`sessions` are those of the users of a cluster, or the only one of a user's machine. `hosts` are the names under which a browser may
    reach the page. None allows any name, because a session is bound to the name that the browser uses. `namespace` is the default of the
    list. None stands for all namespaces."""

    def __init__(
        self, sessions: OwnSession | UserSessions, *, hosts: Collection[str] | None, cookie: str, namespace: str | None = None
    ) -> None:
        self._sessions = sessions
        self._hosts = hosts
        self._cookie = cookie
        self._namespace = namespace
        self._templates = environment(PackageLoader("muster.tools.ui", "templates"))
        self._changes: dict[asyncio.Task[Any], str] = {}
        """The changes of jobs that go on, and the user of each."""
        self._slots = Slots(AT_ONCE, share=AT_ONCE_PER_USER)

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard], client_max_size=2 * LONGEST_TOKEN)
        application.router.add_get("/", self._jobs)
        application.router.add_get("/jobs/{kind}/{namespace}/{name}", self._job)
        application.router.add_get("/jobs/{kind}/{namespace}/{name}/logs", self._logs)
        application.router.add_post("/jobs/{kind}/{namespace}/{name}/{action:suspend|resume|restart|delete}", self._change)
        application.router.add_get("/overlay", self._overlay)
        application.router.add_get("/static/{file}", self._static)
        application.router.add_get("/healthz", self._alive)
        if isinstance(self._sessions, UserSessions):
            application.router.add_get("/sign-in", self._sign_in_page)
            application.router.add_post("/sign-in", self._sign_in)
            application.router.add_post("/sign-out", self._sign_out)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses foreign names and origins, turns errors into pages, and adds the headers."""
        try:
            if self._hosts is not None and request.host not in self._hosts:
                raise web.HTTPForbidden(text="This name is not served here: use the address that muster ui has printed.")
            if request.method == "POST" and request.headers.get("Origin", "").partition("://")[2] != request.host:
                raise web.HTTPForbidden(text="This form was sent by another site.")
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        except TooManyError:
            response = self._problem(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests", "Wait a moment, then load the page again.")
            response.headers["Retry-After"] = "2"
        except NotSignedInError as error:
            response = self._not_signed_in(error)
        except errors.ClientError as error:
            title = "This cannot be done" if request.method == "POST" else "This cannot be shown"
            response = self._problem(_status(error), title, f"{error}.")
        except (TimeoutError, ConnectionError):
            raise
        except Exception:
            logging.getLogger("muster.ui").exception("a page failed")
            response = self._problem(HTTPStatus.INTERNAL_SERVER_ERROR, "This page failed", "This is a fault of Muster's. Its log has more.")
        response.headers.update(HEADERS)
        return response

    async def _session(self, request: web.Request) -> Session:
        cookie = request.cookies.get(self._cookie)
        if isinstance(self._sessions, OwnSession):
            return self._sessions.session(cookie)
        kind, _, bearer = request.headers.get("Authorization", "").partition(" ")
        session = await self._sessions.session(cookie, bearer.strip() if kind.lower() == "bearer" else None, request.remote or "")
        recognise(request, session.user)
        return session

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        if (opened := self._opened(request)) is not None:
            return opened
        session = await self._session(request)
        choice = Choice.of(request.query.items())
        namespace = None if choice.namespace == "*" else choice.namespace or self._namespace
        async with self._turn(session):
            rows, notes = await self._rows(session, namespace)
            values = await asyncio.to_thread(_list, rows, choice, time.time())
        refresh = min(REFRESH_ENDED_SECONDS, max(REFRESH_SECONDS, len(rows) // ROWS_PER_SECOND))
        values |= {"notes": notes, "kinds": session.sources, "asks_namespace": "cluster" in session.sources, "namespace": namespace}
        return await self._page("jobs.html.j2", session, refresh=refresh, **values)

    @asynccontextmanager
    async def _turn(self, session: Session) -> AsyncIterator[None]:
        """Waits until a page may be made for the user, who may have several sessions. Raises TooManyError."""
        if self._slots.waiting(session.user) >= MOST_WAITING:
            raise TooManyError
        async with self._slots.of(session.user):
            yield

    async def _rows(self, session: Session, namespace: str | None) -> tuple[list[Listed], list[str]]:
        """The jobs of all sources. A source that does not answer causes a note."""
        rows: list[Listed] = []
        notes: list[str] = []
        for kind in KINDS:
            if kind in session.sources:
                try:
                    rows += await session.sources[kind].listed(namespace)
                except errors.ClientError as error:
                    hint = ". Choose a namespace" if isinstance(error, errors.NoRightsError) and namespace is None else ""
                    notes.append(f"{error}{hint}.")
        there = {(row.namespace, row.name) for row in rows if row.kind == "cluster"}
        return [row for row in rows if row.kind != "gone" or (row.namespace, row.name) not in there], notes

    async def _job(self, request: web.Request) -> web.StreamResponse:
        if (opened := self._opened(request)) is not None:
            return opened
        session = await self._session(request)
        source, namespace, name = _asked(session, request)
        async with self._turn(session):
            view = await source.view(namespace, name, replica=request.query.get("replica"))
            page = await asyncio.to_thread(job_page, view)
            refresh = REFRESH_ENDED_SECONDS if view.status.phase.final else REFRESH_SECONDS
            actions = () if request.match_info["kind"] == "gone" else actions_in(view.state)
            return await self._page("job.html.j2", session, refresh=refresh, page=page, name=name, actions=actions, path=_path(request))

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        session = await self._session(request)
        source, namespace, name = _asked(session, request)
        replica, search = (request.query.get(each, "").strip() for each in ("replica", "search"))
        async with self._turn(session):
            lines, notes = await source.log(namespace, name, replica=replica or None)
            found = [line for line in lines if search.casefold() in line.casefold()]
            if "download" in request.query:
                text = "".join(f"{line}\n" for line in found)
                headers = {"Content-Disposition": f'attachment; filename="{re.sub("[^A-Za-z0-9.-]", "_", name)}.log"'}
                return web.Response(
                    body=text.encode(errors="backslashreplace"), headers=headers, content_type="text/plain", charset="utf-8"
                )
            values = {"name": name, "path": _path(request), "replica": replica, "search": search, "lines": found, "total": len(lines)}
            return await self._page("logs.html.j2", session, refresh=REFRESH_SECONDS, notes=notes, **values)

    async def _overlay(self, request: web.Request) -> web.StreamResponse:
        session = await self._session(request)
        chosen = list(dict.fromkeys(request.query.getall("job", [])))[:MOST_OVERLAID]
        async with self._turn(session):
            views = []
            for each in chosen:
                kind, namespace, name = (*map(unquote, each.split("/")), "", "")[:3]
                if kind not in session.sources:
                    raise errors.NoJobError("there is no such job")
                views.append(await session.sources[kind].view(namespace, name, replica=None))
            page = await asyncio.to_thread(overlay, views)
            refresh = REFRESH_ENDED_SECONDS if all(view.status.phase.final for view in views) else REFRESH_SECONDS
            return await self._page("job.html.j2", session, refresh=refresh, page=page, name=page.title, actions=(), path="")

    async def _change(self, request: web.Request) -> web.StreamResponse:
        """Changes a job. What takes long, such as the end of a save, goes on after the answer."""
        session = await self._session(request)
        source, namespace, name = _asked(session, request)
        action = request.match_info["action"]
        if sum(user == session.user for user in self._changes.values()) >= MOST_WAITING:
            raise TooManyError
        work = asyncio.create_task(getattr(await source.job(namespace, name), action)())
        self._changes[work] = session.user
        session.changes.add(work)
        work.add_done_callback(session.changes.discard)
        work.add_done_callback(self._changed)
        done, _ = await asyncio.wait({work}, timeout=ANSWER_SECONDS)
        if done:
            work.result()
        return _lead_to("/" if action == "delete" else _path(request))

    def _changed(self, work: asyncio.Task[Any]) -> None:
        del self._changes[work]
        if not work.cancelled() and (error := work.exception()) is not None:
            logging.getLogger("muster.ui").info("a change failed: %s", error)

    async def _static(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"]
        if name not in STATIC:
            raise web.HTTPNotFound
        content_type, text = STATIC[name]
        return web.Response(text=text(), content_type=content_type)

    async def _alive(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _sign_in_page(self, request: web.Request) -> web.StreamResponse:
        return self._sign_in_form("", HTTPStatus.OK)

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        assert isinstance(self._sessions, UserSessions)
        try:
            token = (await request.post()).get("token")
        except (ValueError, LookupError, HttpProcessingError):  # the form or its character set is malformed
            token = None
        id_ = await self._sessions.sign_in(token.strip() if isinstance(token, str) else "", request.remote or "")
        return self._with_cookie(id_)

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        assert isinstance(self._sessions, UserSessions)
        await self._sessions.sign_out(request.cookies.get(self._cookie))
        response = _lead_to("/sign-in")
        response.del_cookie(self._cookie, path="/", secure=True, httponly=True, samesite="Strict")
        return response

    def _opened(self, request: web.Request) -> web.StreamResponse | None:
        """For an address with the token of a user's own machine: the cookie, and the way to the same address without the token."""
        token = request.query.get("token")
        if not isinstance(self._sessions, OwnSession) or token is None or not self._sessions.fits(token):
            return None
        rest = [(name, value) for name, value in request.query.items() if name != "token"]
        return self._with_cookie(token, str(request.rel_url.with_query(rest)))

    def _with_cookie(self, value: str, path: str = "/") -> web.StreamResponse:
        response = _lead_to(path)
        secure = isinstance(self._sessions, UserSessions)
        response.set_cookie(self._cookie, value, httponly=True, samesite="Strict", path="/", secure=secure)
        return response

    def _not_signed_in(self, error: NotSignedInError) -> web.StreamResponse:
        if isinstance(self._sessions, OwnSession):
            return self._problem(HTTPStatus.UNAUTHORIZED, "Not signed in", f"{capital(str(error))}.")
        return self._sign_in_form(capital(str(error)), HTTPStatus.UNAUTHORIZED)

    def _sign_in_form(self, message: str, status: HTTPStatus) -> web.StreamResponse:
        text = self._text("sign_in.html.j2", message=f"{message}." if message else "", refresh=0, user="")
        return web.Response(text=text, status=status, content_type="text/html")

    def _problem(self, status: HTTPStatus, title: str, message: str) -> web.StreamResponse:
        text = self._text("problem.html.j2", title=title, message=capital(message), refresh=0, user="")
        return web.Response(text=text, status=status, content_type="text/html")

    def _text(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)

    async def _page(self, template: str, session: Session, **values: Any) -> web.StreamResponse:
        text = await asyncio.to_thread(partial(self._text, template, user=session.user, **values))
        return web.Response(body=text.encode(errors="backslashreplace"), content_type="text/html", charset="utf-8")


def _list(rows: Sequence[Listed], choice: Choice, now: float) -> dict[str, Any]:
    """What the list shows of these jobs."""
    columns, figures = columns_of(rows, choice.columns)
    found = [row for row in rows if choice.has(row)]
    return {
        "choice": choice,
        "columns": columns,
        "figures": figures,
        "rows": choice.ordered(found, columns, now)[choice.begin : choice.begin + SHOWN_AT_ONCE],
        "found": len(found),
        "total": len(rows),
        "states": sorted({row.state for row in rows}),
        "strategies": sorted({row.strategy for row in rows if row.strategy}),
        "now": now,
        "AT_ONCE": SHOWN_AT_ONCE,
    }


def _asked(session: Session, request: web.Request) -> tuple[Source, str, str]:
    """The source, the namespace and the name of the job in the path. Raises NoJobError."""
    kind, namespace, name = (request.match_info[each] for each in ("kind", "namespace", "name"))
    if kind not in session.sources:
        raise errors.NoJobError("there is no such job")
    return session.sources[kind], namespace, name


def _path(request: web.Request) -> str:
    """The path of the job's page."""
    return path_of(*(request.match_info[each] for each in ("kind", "namespace", "name")))


def _lead_to(path: str) -> web.Response:
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": path})


def _status(error: errors.ClientError) -> HTTPStatus:
    if isinstance(error, errors.NoJobError | errors.NotFoundError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, errors.NoRightsError):
        return HTTPStatus.FORBIDDEN
    if isinstance(error, errors.RefusedError | errors.ConflictError):
        return HTTPStatus.CONFLICT
    return HTTPStatus.SERVICE_UNAVAILABLE
