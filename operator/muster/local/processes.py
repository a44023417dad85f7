"""The replicas of a run, as process groups of this machine. For the lifecycle core they are the same as pods."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from muster.api.spec import RoleName
from muster.channel.reports import Reports
from muster.lifecycle.observed import ReplicaPhase, ReplicaView
from muster.local.errors import ConfigurationError, StorageError
from muster.local.event_files import events_in
from muster.local.files import content_of, open_regular, tail_of
from muster.local.launch import Launch
from muster.local.sweep import REPLICA_MARK, continue_stopped, sweep
from muster_contract.codes import SIGNAL_BASE
from muster_contract.programs import why_not_started
from muster_contract.reports import MAX_TERMINATION_MESSAGE, Report, TerminationMessage
from muster_contract.run_state import RunState, apply
from muster_contract.wire import parse

MOST_LAST_EVENTS = 1 << 18  # bytes of the events of a killed supervisor that are read
REAP_SECONDS = 5.0  # added to the grace period, so that a supervisor can reap and write its termination message
CLOSE_SECONDS = 5.0  # the longest wait until replicas whose processes were ended have finished


@dataclass(frozen=True)
class Identity:
    """A replica of an attempt. `name` and `uid` are as a pod would have them; the replica writes to `folder`."""

    name: str
    uid: str
    role: RoleName
    index: int
    attempt: int
    folder: Path
    standby: bool = False

    @property
    def label(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def termination(self) -> Path:
        return self.folder / "termination.json"


@dataclass
class Replica:
    """A replica that was started. Once `finished` is set, none of its processes runs."""

    identity: Identity
    process: asyncio.subprocess.Process
    created: datetime
    finished: datetime | None = None
    deleting: datetime | None = None
    exit_code: int | None = None
    termination: TerminationMessage | None = None
    killed_because: str = ""
    last_events: tuple[int | None, RunState] = (None, RunState())
    """If the supervisor was killed: the last attempt and its state, as the events on disk show them. It may have reported less."""

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
            placed=self.created,
            finished=self.finished,
            released=self.finished,
            deleting=self.deleting,
            exit_code=self.exit_code,
            termination=self.termination,
            message=self.killed_because,
            report=self._completed(received.report) if received else None,
            reported=received.time if received else None,
        )

    def _completed(self, report: Report) -> Report:
        """The report, with the last step and commit of its attempt, which a supervisor that was killed has not reported."""
        attempt, state = self.last_events
        if report.waiting or report.attempt != attempt:
            return report
        return replace(report, progress=state.progress or report.progress, checkpoint=state.checkpoint or report.checkpoint)

    def _phase(self) -> ReplicaPhase:
        if self.finished is None:
            return ReplicaPhase.RUNNING
        return ReplicaPhase.SUCCEEDED if self.exit_code == 0 else ReplicaPhase.FAILED


class ProcessTable:
    """All replicas that exist. The table calls `changed` whenever one starts or ends."""

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
        """Starts the replica in its own session, with its output in its log.

        Raises ConfigurationError if the program cannot be started, and StorageError if the log cannot be written.
        """
        try:
            with os.fdopen(open_regular(identity.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as log:
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
            reason = why_not_started(launch.argv[0], error, path=launch.env.get("PATH"), folder=cwd)
            raise ConfigurationError(
                f"{identity.label}: {launch.argv[0]} cannot be started: {reason}; check spec.trainer.command"
            ) from None
        replica = Replica(identity, process, created=self._now())
        self._replicas[identity.uid] = replica
        self._spawn(self._await_end(replica))
        self._changed()
        return replica

    def delete(self, uid: str, grace_seconds: float) -> None:
        """Stops a running replica, and kills it after its grace period. Removes a replica that has ended from the table.

        Processes that SIGSTOP has stopped continue, so that they can save and end.

        A replica that is stopped stays in the table until `forget` removes it, so that the lifecycle core sees its end.
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
            self._spawn(asyncio.to_thread(continue_stopped, REPLICA_MARK, uid))
            self._spawn(self._kill(replica, after=grace_seconds + REAP_SECONDS))
        replica.deleting = replica.deleting or self._now()

    def kill(self, replica: Replica, reason: str) -> None:
        """Kills all processes of a running replica at once. `reason` is the message of its end."""
        replica.killed_because = reason
        self._spawn(self._kill(replica, after=0))

    def forget(self, replicas: Iterable[Replica]) -> None:
        """Removes replicas from the table. They were stopped and have ended, and the lifecycle core has seen that."""
        for replica in replicas:
            self._replicas.pop(replica.identity.uid, None)

    async def close(self) -> None:
        """Waits until the replicas have finished, and ends the tasks. Call it after all processes were ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self.running:  # noqa: ASYNC110 - it waits for a list to become empty
                    await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_end(self, replica: Replica) -> None:
        """Waits for the replica's first process, as a container does, and then kills the processes that it left."""
        code = await replica.process.wait()
        await asyncio.to_thread(sweep, REPLICA_MARK, replica.identity.uid, grace_seconds=0.0)
        replica.exit_code = code if code >= 0 else SIGNAL_BASE - code
        replica.termination = read_termination_message(replica.identity.termination)
        if replica.termination is None:
            replica.last_events = last_state(replica.identity.events)
        replica.finished = self._now()
        self._changed()

    async def _kill(self, replica: Replica, *, after: float) -> None:
        await asyncio.sleep(after)
        if replica.finished is None:
            await asyncio.to_thread(sweep, REPLICA_MARK, replica.identity.uid, grace_seconds=0.0)


def read_termination_message(path: Path) -> TerminationMessage | None:
    """The termination message in the file. None if there is none, or if the file cannot be read."""
    try:
        return parse(TerminationMessage, content_of(path, MAX_TERMINATION_MESSAGE))
    except (OSError, ValueError):
        return None


def last_state(path: Path) -> tuple[int | None, RunState]:
    """The last attempt in the file of events, and its state as far as the last events show it."""
    attempt, state = None, RunState()
    for event in events_in(tail_of(path, MOST_LAST_EVENTS)):
        if event.attempt != attempt:
            attempt, state = event.attempt, RunState()
        state = apply(state, event)
    return attempt, state
