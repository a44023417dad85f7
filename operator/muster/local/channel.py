"""The coordination channel of a local run. It is the server of `control` on loopback, with a random token for each replica."""

from __future__ import annotations

import hmac
import os
import random
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from muster.channel.coordination import Channel, CoordinationServer, RefusedReportError
from muster.channel.reports import Reports
from muster.local.errors import StorageError
from muster.local.files import open_regular
from muster_contract.reports import Reply, Report


class LocalChannel:
    """A context manager that serves while it is entered. Replicas send their reports to `url`."""

    def __init__(self, reports: Reports, *, reply_to: Callable[[str, Report], Reply], wake: Callable[[], None]) -> None:
        self._tokens: dict[str, str] = {}
        channel = Channel(
            reports=reports,
            identify=self._identify,
            reply_to=reply_to,
            wake=lambda _: wake(),
            now=lambda: datetime.now(UTC),
            random=random.random,
        )
        self._server = CoordinationServer(channel)
        self._listener = self._server.listener
        self.url = ""

    async def __aenter__(self) -> LocalChannel:
        port = await self._listener.start("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._listener.stop()

    def job_changed(self) -> None:
        """Answers the held reports of replicas whose reply has changed with the status."""
        self._server.job_changed("")

    def write_token(self, path: Path, pod_uid: str) -> None:
        """Makes a token for the replica and writes it to a file that only this user can read. Raises StorageError if that fails."""
        token = secrets.token_urlsafe(32)
        try:
            with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o600), "w") as file:
                file.write(token)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}") from None
        self._tokens[pod_uid] = token

    async def _identify(self, token: str, address: str) -> str:
        received = token.encode(errors="surrogateescape")
        uid = next((uid for uid, expected in self._tokens.items() if hmac.compare_digest(expected.encode(), received)), None)
        if uid is None:
            raise RefusedReportError(401, "token", "no replica of this run has this token")
        return uid
