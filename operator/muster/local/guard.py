"""The guard process of a run: it ends all processes of the run after `muster run` has ended, even by SIGKILL.

`python -m muster.local.guard MARK SECONDS` reads from a pipe, and only `muster run` has the other end. When that end closes, the guard
sends SIGTERM to all processes with the run's mark. They get SECONDS to save, and then SIGKILL. The guard runs in its own session, so
neither Ctrl-C nor a closed terminal ends it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from types import TracebackType

from muster.local.sweep import REPLICA_MARK, RUN_MARK, sweep

END_SECONDS = 15.0


class Guard:
    """Starts the guard of the run whose processes have this `mark`, and replaces it if it is killed.

    On exit, the guard sweeps and ends, and the context manager waits for it.
    """

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
            await asyncio.wait_for(self._process.wait(), END_SECONDS)

    async def _start(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a folder named muster in the working directory is not this package
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


def main(mark: str, grace_seconds: float) -> int:
    """Waits for the end of standard input, then sweeps."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    return 1 if sweep(RUN_MARK, mark, grace_seconds=grace_seconds) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
