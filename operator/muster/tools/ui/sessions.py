"""Sessions: the users of the page and their rights.

On a user's own machine there is one session. A browser gets its cookie if it opens the address with the random token. On a cluster, a
session has the token with which a user signed in. All requests to the API server for this user use this token, and the server has no token
of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from muster.client import errors
from muster.client.connection import connected_as
from muster.kubernetes.token_bucket import AddressLimits, Bucket
from muster.tools.report.storage import Storage
from muster.tools.ui.sources import ClusterJobs, DeletedJobs, HistoryRights, ObservedSteps, Sources

MOST_SESSIONS = 500
MOST_PER_USER = 10
SESSION_SECONDS = 8 * 3600.0
IDLE_SECONDS = 3600.0
HEADER_SECONDS = 300.0
"""Seconds for which the review of a token in a header is valid."""
CLOSING_SECONDS = 20.0
"""The longest time that the changes in progress have when the server ends. A pod gets 30."""
SIGN_INS_PER_SECOND, SIGN_INS = 2.0, 20.0  # for each address
REQUESTS_PER_SECOND, REQUESTS = 5.0, 30.0
LONGEST_TOKEN = 16 * 1024
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}")
"""The form of a token in RFC 6750, section 2.1."""


class TooManyError(Exception):
    """A rate limit is exceeded."""


class NotSignedInError(Exception):
    """There is no session. The message has the cause. It is empty if there was no attempt to sign in."""


@dataclass
class Session:
    """`ends` is in monotonic seconds. `user` is empty on a user's own machine."""

    sources: Sources
    user: str
    ends: float
    bucket: Bucket
    seen_at: float
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    changes: set[asyncio.Task[Any]] = field(default_factory=set)
    """Changes of jobs that go on after their answer. They need the connection."""

    async def close(self) -> None:
        if self.changes:
            await asyncio.wait(self.changes)
        await self.stack.aclose()


class OwnSession:
    """The only session of a user's own machine. `secret` is the random token of the address, and `cookie` the name of its cookie."""

    def __init__(self, sources: Sources, clock: Callable[[], float]) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._clock = clock
        self._session = Session(sources, "", float("inf"), _bucket(clock()), clock())

    def fits(self, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(token.encode(errors="replace"), self.secret.encode())

    def session(self, cookie: str | None) -> Session:
        """Raises NotSignedInError, TooManyError."""
        if not self.fits(cookie):
            raise NotSignedInError("open the address that muster ui has printed, with its token")
        _take(self._session.bucket, self._clock())
        return self._session

    async def close(self) -> None:
        """Waits for the changes in progress."""
        if self._session.changes:
            await asyncio.wait(self._session.changes, timeout=CLOSING_SECONDS)


class UserSessions:
    """The sessions of the users of a cluster, in memory."""

    def __init__(self, *, server: str, authority: str | None, history: Storage | None, clock: Callable[[], float]) -> None:
        self._server, self._authority, self._history = server, authority, history
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sign_ins = AddressLimits(SIGN_INS_PER_SECOND, SIGN_INS, clock)
        self._requests = AddressLimits(REQUESTS_PER_SECOND, REQUESTS, clock)
        """By user, because a user may have several sessions."""

    async def sign_in(self, token: str, address: str) -> str:
        """The id of a new session. `address` is that of the peer. Raises NotSignedInError, TooManyError, NoClusterError."""
        id_ = secrets.token_urlsafe(32)
        await self._open(id_, token, SESSION_SECONDS, address)
        return id_

    async def sign_out(self, id_: str | None) -> None:
        session = self._sessions.pop(id_ or "", None)
        if session is not None:
            closing = asyncio.create_task(session.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def session(self, id_: str | None, bearer: str | None, address: str) -> Session:
        """The session of a cookie, or of the token that a proxy sends. `address` is that of the peer.

        Raises NotSignedInError, TooManyError, NoClusterError.
        """
        await self._remove_old()
        if bearer is not None:
            id_ = f"bearer {hashlib.sha256(_checked(bearer).encode()).hexdigest()}"
            if id_ not in self._sessions:
                await self._open(id_, bearer, HEADER_SECONDS, address)
        session = self._sessions.get(id_ or "")
        if session is None:
            raise NotSignedInError("")
        _take(session.bucket, self._clock())
        session.seen_at = self._clock()
        return session

    async def close(self) -> None:
        for id_ in list(self._sessions):
            await self.sign_out(id_)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSING_SECONDS)

    async def _open(self, id_: str, token: str, seconds: float, address: str) -> None:
        _checked(token)
        _take(self._sign_ins.bucket(address), self._clock())
        stack = AsyncExitStack()
        try:
            connection = await stack.enter_async_context(connected_as(token, server=self._server, authority=self._authority))
            user = await connection.user_name()
            if user in ("", "system:anonymous"):
                raise NotSignedInError("the API server does not accept this token")
        except errors.NoRightsError:
            await stack.aclose()
            raise NotSignedInError("the API server does not accept this token: has it expired?") from None
        except BaseException:
            await stack.aclose()
            raise
        rights = HistoryRights(connection)
        sources: Sources = {"cluster": ClusterJobs(connection, ObservedSteps(), history=self._history, rights=rights)}
        if self._history is not None:
            sources["gone"] = DeletedJobs(self._history, rights)
        now = self._clock()
        await self._make_room(user)
        self._sessions[id_] = Session(sources, user, now + seconds, self._requests.bucket(user), now, stack)

    async def _make_room(self, user: str) -> None:
        """Ends the oldest sessions of the user, or of all, if there are too many."""
        own = [id_ for id_, session in self._sessions.items() if session.user == user]
        for id_ in own[: len(own) - MOST_PER_USER + 1] if len(own) >= MOST_PER_USER else ():
            await self.sign_out(id_)
        if len(self._sessions) >= MOST_SESSIONS:
            await self.sign_out(min(self._sessions, key=lambda id_: self._sessions[id_].seen_at))

    async def _remove_old(self) -> None:
        now = self._clock()
        for id_, session in list(self._sessions.items()):
            if now > session.ends or now > session.seen_at + IDLE_SECONDS:
                await self.sign_out(id_)


def _checked(token: str) -> str:
    """The token. Raises NotSignedInError if it has not the form of one."""
    if not _TOKEN.fullmatch(token):
        raise NotSignedInError("this is no token: paste it alone, without spaces and line breaks")
    return token


def _bucket(now: float) -> Bucket:
    return Bucket(REQUESTS_PER_SECOND, REQUESTS, REQUESTS, now)


def _take(bucket: Bucket, now: float) -> None:
    if bucket.fill(now) < 1:
        raise TooManyError
    bucket.tokens -= 1
