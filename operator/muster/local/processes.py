"""The replicas of a run as process groups of this machine, seen as the lifecycle core sees pods."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.api.reports import LastWords
from muster.api.spec import RoleName
from muster.control.reports import Reports
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.local.errors import ConfigurationError, StorageError
from muster.local.launch import Launch
from muster.local.sweep import REPLICA_MARK, sweep

SIGNAL_BASE = 128
REAP_SECONDS = 5.0  # what a supervisor gets on top of the grace period, to reap and to write its last words
CLOSE_SECONDS = 5.0  # until a replica whose processes were ended counts as ended; it takes milliseconds


@dataclass(frozen=True)
class Identity:
    """Which replica of which attempt: `name` and `uid` as a pod would have them, and the folder it writes to."""

    name: str
    uid: str
    role: RoleName
    index: int
    attempt: int
    folder: Path
    standby: bool = False

    @property
    def label(self) -> str:
        return f"{self.role.value}-{self.index}"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def termination(self) -> Path:
        return self.folder / "termination.json"


@dataclass
class Replica:
    """A replica that was started. Once `finished` is set nothing of it runs any more."""

    identity: Identity
    process: asyncio.subprocess.Process
    created: datetime
    finished: datetime | None = None
    deleting: datetime | None = None
    exit_code: int | None = None
    last_words: LastWords | None = None

    def view(self, reports: Reports) -> ReplicaView:
        received = reports.of(self.identity.uid)
        return ReplicaView(
            name=self.identity.name,
            uid=self.identity.uid,
            role=self.identity.role,
            index=self.identity.index,
            attempt=self.identity.attempt,
            standby=self.identity.standby,
            phase=self._phase(),
            created=self.created,
            finished=self.finished,
            deleting=self.deleting,
            exit_code=self.exit_code,
            last_words=self.last_words,
            report=received.report if received else None,
            reported=received.time if received else None,
        )

    def _phase(self) -> ReplicaPhase:
        if self.finished is None:
            return ReplicaPhase.RUNNING
        return ReplicaPhase.SUCCEEDED if self.exit_code == 0 else ReplicaPhase.FAILED


class ProcessTable:
    """All replicas that exist. `changed` is called whenever one starts or ends."""

    def __init__(self, now: Callable[[], datetime], changed: Callable[[], None]) -> None:
        self._now = now
        self._changed = changed
        self._replicas: dict[str, Replica] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def replicas(self) -> list[Replica]:
        return list(self._replicas.values())

    @property
    def running(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.finished is None]

    def named(self, name: str) -> Replica | None:
        return next((replica for replica in self.replicas if replica.identity.name == name), None)

    async def start(self, identity: Identity, launch: Launch, *, cwd: Path) -> Replica:
        """Starts the replica as a session of its own, its output going to its log.

        Raises ConfigurationError where the program cannot be started, StorageError where the log cannot be written.
        """
        try:
            with identity.log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *launch.argv,
                    env=launch.env,
                    cwd=cwd,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            if error.filename == str(identity.log):
                raise StorageError(f"{identity.log}: cannot be written: {error.strerror}") from None
            raise ConfigurationError(
                f"{identity.label}: {launch.argv[0]} cannot be started: {error.strerror}; check spec.trainer.command"
            ) from None
        replica = Replica(identity, process, created=self._now())
        self._replicas[identity.uid] = replica
        self._spawn(self._await_end(replica))
        self._changed()
        return replica

    def delete(self, uid: str, grace_seconds: float) -> None:
        """Asks a running replica to end, and ends it when the grace is over; takes one that has ended off the table.

        A replica asked to end stays on the table until it has been seen ended: `forget`.
        """
        replica = self._replicas.get(uid)
        if replica is None:
            return
        if replica.finished is not None:
            del self._replicas[uid]
            return
        if grace_seconds <= 0:
            self._spawn(self._kill(replica, after=0))
        elif replica.deleting is None:
            with suppress(ProcessLookupError):
                replica.process.send_signal(signal.SIGTERM)
            self._spawn(self._kill(replica, after=grace_seconds + REAP_SECONDS))
        replica.deleting = replica.deleting or self._now()

    def forget(self, replicas: Iterable[Replica]) -> None:
        """Takes these off the table: they have ended, and whoever wanted them deleted has seen it."""
        for replica in replicas:
            self._replicas.pop(replica.identity.uid, None)

    async def close(self) -> None:
        """Stops watching, once replicas that have just been ended are seen to have ended; nothing may run any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self.running:  # noqa: ASYNC110 - what is waited for is a list that shrinks
                    await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_end(self, replica: Replica) -> None:
        """As a container ends with its first process: whatever the replica left behind ends too, before anybody hears of it."""
        code = await replica.process.wait()
        await asyncio.to_thread(sweep, REPLICA_MARK, replica.identity.uid, grace_seconds=0.0)
        replica.exit_code = code if code >= 0 else SIGNAL_BASE - code
        replica.last_words = read_last_words(replica.identity.termination)
        replica.finished = self._now()
        self._changed()

    async def _kill(self, replica: Replica, *, after: float) -> None:
        await asyncio.sleep(after)
        if replica.finished is None:
            await asyncio.to_thread(sweep, REPLICA_MARK, replica.identity.uid, grace_seconds=0.0)


def read_last_words(path: Path) -> LastWords | None:
    """The last words in the file; None where there are none or they cannot be understood."""
    try:
        return LastWords.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
