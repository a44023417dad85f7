"""Following a job over lost connections. An outage lasts while the API server does not answer, not while the job does not change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.client import errors, jobs

JOB = {"metadata": {"name": "digits", "resourceVersion": "1"}}


class Connection:
    """An API server that answers as `answers` says: a job, or None for no answer. Each watch is quiet for `quiet` seconds, and breaks."""

    namespace = "default"

    def __init__(self, *answers: dict[str, Any] | None, quiet: float) -> None:
        self.answers = list(answers)
        self.quiet = quiet
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def path(self, version: str, plural: str, name: str | None = None) -> str:
        return f"{version}/{plural}/{name}"

    async def get(self, path: str) -> dict[str, Any]:
        if not self.answers:
            raise errors.NotFoundError(path)
        answer = self.answers.pop(0)
        if answer is None:
            self.now += jobs.OUTAGE_SECONDS / 4
            raise errors.NoClusterError("no answer")
        return answer

    async def stream(self, path: str, **query: str) -> AsyncIterator[bytes]:
        self.now += self.quiet
        if self.now:
            raise errors.NoClusterError("the connection is lost")
        yield b""


def seen(connection: Connection) -> list[dict[str, Any] | None]:
    followed = jobs.Jobs(connection, clock=connection.monotonic, poll_seconds=0)  # type: ignore[arg-type]

    async def follow() -> list[dict[str, Any] | None]:
        return [change async for change in followed.changes("digits")]

    return asyncio.run(follow())


def test_a_connection_that_is_lost_after_a_quiet_hour_is_opened_again() -> None:
    assert seen(Connection(JOB, None, None, JOB, quiet=3600)) == [JOB, JOB, None]


def test_an_outage_that_takes_too_long_is_an_error() -> None:
    with pytest.raises(errors.NoClusterError):
        seen(Connection(JOB, *[None] * 10, quiet=1))
