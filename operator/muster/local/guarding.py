"""Keeps a guard process by the side of a run; see `guard.py` for what it does."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from types import TracebackType

from muster.local.sweep import REPLICA_MARK, RUN_MARK

FAREWELL_SECONDS = 15.0


class Guard:
    """The guard of the run whose processes carry `mark`. One that is killed is replaced; on leaving it is let go, and waited for."""

    def __init__(self, mark: str, grace_seconds: float) -> None:
        self._arguments = (mark, str(grace_seconds))
        self._watch: asyncio.Task[None] | None = None
        self._pipe = -1
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Guard:
        await self._start()
        self._watch = asyncio.create_task(self._replace_when_killed())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        assert self._watch is not None
        assert self._process is not None
        self._watch.cancel()
        os.close(self._pipe)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), FAREWELL_SECONDS)

    async def _start(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a folder named muster where the user stands is not this package
                "-m",
                "muster.local.guard",
                *self._arguments,
                stdin=reading,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name not in (RUN_MARK, REPLICA_MARK)},
                start_new_session=True,
            )
        finally:
            os.close(reading)

    async def _replace_when_killed(self) -> None:
        while True:
            assert self._process is not None
            await self._process.wait()
            os.close(self._pipe)
            await self._start()
