"""Runs a job on this machine: looks, lets the lifecycle core decide, writes the status down, does what was decided, waits.

The status is written before anything follows from it, so a `muster run` that is killed leaves a directory from which the
next one goes on. Everything here happens in one asyncio loop; `Runner.run` reads from top to bottom.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muster.api.grace import seconds as grace_seconds
from muster.api.job import TrainingJob
from muster.api.reports import Reply, Report
from muster.api.status import FailureClass, Phase, TrainingJobStatus
from muster.control.orders import orders
from muster.control.reports import Reports
from muster.lifecycle.actions import Action, CreateReplica, DeleteReplica
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import Observed
from muster.lifecycle.policy import Delays, Policy
from muster.local import loopback, news
from muster.local.addresses import LoopbackAddresses, addresses_for
from muster.local.channel import LocalChannel
from muster.local.display import Display
from muster.local.errors import ConfigurationError, StorageError
from muster.local.follow import LogFollower
from muster.local.guarding import Guard
from muster.local.launch import Host, Launch, launch_of
from muster.local.localize import code_folder, localized, working_directory
from muster.local.outcome import ExitCode, exit_code, last_failure, stop_code
from muster.local.ports import HeldPorts, PortRange
from muster.local.processes import Identity, ProcessTable, Replica
from muster.local.rundir import RunDirectory
from muster.local.sweep import RUN_MARK, sweep
from muster.render.environment import Coordinator
from muster.render.images import default_images
from muster.render.manifests import render_replica, world_plan
from muster.strategies.base import Framework
from muster.strategies.registry import strategy_of

POLICY = Policy(
    settle_seconds=10,
    stopped_seconds=10,
    progress_seconds=0,
    delays={
        FailureClass.PREEMPTION: Delays(0.5, 10, free=2),
        FailureClass.INFRASTRUCTURE: Delays(0.5, 10, free=1),
        FailureClass.APPLICATION: Delays(1, 30),
    },
)
REPORT_SECONDS = 0.02  # how long reports are gathered before they are looked at
TICK_SECONDS = 0.25  # between two refreshes of logs that are shown
BROKEN_GRACE = 5.0  # seconds for what is left of a broken world: nobody can save in it
LONGEST_GRACE = 10.0  # seconds to save for what is left when `muster run` ends without having stopped it


@dataclass(frozen=True)
class Settings:
    """How to run: where the processes run and what the user asked for.

    `job_file` is as the user named it; `again` is the command that continues the run.
    """

    cwd: Path
    job_file: Path
    again: str
    ports: PortRange | None = None
    show_logs: bool = False


class Runner:
    """One job in one run directory, from start or resumption to its end."""

    def __init__(self, job: TrainingJob, directory: RunDirectory, *, settings: Settings, display: Display) -> None:
        self._job = job
        self._directory = directory
        self._settings = settings
        self._display = display
        self._torch = strategy_of(job.spec.strategy).framework is Framework.PYTORCH
        self._host = Host(
            os.environ,
            sys.executable,
            os.cpu_count() or 1,
            code_folder(job.spec.trainer, settings.job_file),
            defaults=loopback.interfaces() if self._torch else {},
            site=loopback.SITE if self._torch else None,
        )
        self._cwd = working_directory(job.spec.trainer, cwd=settings.cwd, job_file=settings.job_file)
        self._runnable = localized(job, directory, cwd=self._cwd, job_file=settings.job_file)
        self._mark = directory.mark(job.metadata.uid)
        self._news = asyncio.Event()
        self._reports = Reports()
        self._table = ProcessTable(_now, self._news.set)
        self._channel = LocalChannel(self._reports, orders_of=self._orders_of, wake=self._gather)
        self._service = False
        self._addresses: tuple[int, LoopbackAddresses, HeldPorts] | None = None
        self._asked: list[Replica] | None = None
        self._killed = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._noted: list[dict[str, Any]] = []
        self._said: set[str] = set()
        self._follower = LogFollower()

    async def run(self) -> ExitCode:
        """The whole run. Whatever happens, no process of it is left."""
        grace = min(LONGEST_GRACE, grace_seconds(self._job.spec, self._job.status))
        async with Guard(self._mark, grace), self._channel:
            shown = asyncio.create_task(self._show_logs())
            try:
                with _signals(self._stop, self._kill):
                    return await self._until_ended()
            finally:
                shown.cancel()
                await asyncio.to_thread(sweep, RUN_MARK, self._mark, grace_seconds=0.0 if self._killed.is_set() else grace)
                await self._table.close()
                self._release_ports()
                self._display.close()
                with suppress(StorageError):  # what the run ended with says more
                    self._note_processes()

    async def _until_ended(self) -> ExitCode:
        while True:
            self._news.clear()
            seen = [replica for replica in self._table.replicas if replica.deleting and replica.finished]
            decision = decide(self._wished(), self._observed(), _now(), policy=POLICY)
            self._adopt(decision.status)
            await self._carry_out(decision.actions)
            self._show_new_output()
            self._table.forget(seen)
            self._note_processes()
            if self._killed.is_set():
                return self._stopped([None])
            if (code := self._ended()) is not None:
                return code
            if not seen:
                await self._wait(decision.wake)

    def _wished(self) -> TrainingJob:
        """The job with its status, suspended once the user has asked to stop."""
        stopping = self._asked is not None
        spec = self._runnable.spec.model_copy(update={"suspend": stopping})
        return self._runnable.model_copy(update={"spec": spec, "status": self._job.status})

    def _observed(self) -> Observed:
        return Observed(replicas=tuple(replica.view(self._reports) for replica in self._table.replicas), live=True, service=self._service)

    def _adopt(self, status: TrainingJobStatus) -> None:
        """Writes the status down, and shows it. Raises StorageError where it cannot be written: then nothing is done."""
        before = self._job.status
        if status != before:
            self._directory.write_status(status)
            self._job = self._job.with_status(status)
        for line in news.news(before, status):
            self._display.line(line)
        self._display.show(self._job)

    async def _carry_out(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, CreateReplica):
                if not self._killed.is_set():
                    await self._create(action)
            elif isinstance(action, DeleteReplica):
                self._table.delete(action.uid, self._grace if action.grace_seconds is None else action.grace_seconds)
            else:
                self._service = True  # no service, no other look and no deletion of the job is needed here

    @property
    def _grace(self) -> float:
        """Seconds that a replica gets to save: the job's grace period when all are asked to stop, less where the world is broken."""
        whole = grace_seconds(self._job.spec, self._job.status)
        return whole if self._asked is not None else min(BROKEN_GRACE, whole)

    async def _create(self, action: CreateReplica) -> None:
        addresses = self._addresses_of(action.attempt)
        pod = render_replica(
            self._current(),
            action.role,
            index=action.index,
            attempt=action.attempt,
            addresses=addresses,
            images=default_images(),
            coordinator=Coordinator(self._channel.url),
            standby=action.standby,
        )
        name = pod["metadata"]["name"]
        if self._table.named(name) is not None:
            return
        folder = self._directory.replica(action.attempt, f"{action.role.value}-{action.index}").absolute()
        identity = Identity(name, str(uuid.uuid4()), action.role, action.index, action.attempt, folder, action.standby)
        await self._table.start(identity, self._launch(pod, identity), cwd=self._cwd)

    def _launch(self, pod: dict[str, Any], identity: Identity) -> Launch:
        self._directory.prepare(identity.folder)
        token = identity.folder / "token"
        self._channel.write_token(token, identity.uid)
        local = {
            "MUSTER_POD_NAME": identity.name,
            "MUSTER_POD_UID": identity.uid,
            "MUSTER_STATE_DIR": str(identity.folder),
            "MUSTER_TERMINATION_LOG": str(identity.termination),
            "MUSTER_TOKEN_FILE": str(token),
            "MUSTER_TENSORBOARD_DIR": str(self._directory.tensorboard.absolute()),
            RUN_MARK: self._mark,
            **(loopback.LAUNCHER if self._torch else {}),
        }
        size = self._job.status.world.size if self._job.status.world else 1
        launch = launch_of(pod, self._host, local=local, processes=size)
        for sentence in launch.ignored:
            if (text := f"{identity.role.value}: {sentence}") not in self._said:
                self._said.add(text)
                self._display.line(text)
        return launch

    def _orders_of(self, uid: str, report: Report) -> Reply:
        return orders(self._current(), uid, report, self._addresses_of(self._job.status.attempt))

    def _current(self) -> TrainingJob:
        return self._runnable.model_copy(update={"status": self._job.status})

    def _addresses_of(self, attempt: int) -> LoopbackAddresses:
        """The addresses of the attempt's world: new ports for each, or the old ones where a range has no others or the world stays."""
        known, strategy = self._addresses, strategy_of(self._runnable.spec.strategy)
        if known is not None and (known[0] == attempt or not strategy.moves):
            return known[1]
        plan = world_plan(self._current())
        try:
            addresses, held = addresses_for(plan, self._settings.ports)
        except ConfigurationError:
            if known is None:
                raise
            addresses, held = known[1], known[2]
        else:
            self._release_ports()
            held.start_sharing()
        self._addresses = (attempt, addresses, held)
        return addresses

    def _release_ports(self) -> None:
        if self._addresses is not None:
            self._addresses[2].release()

    def _ended(self) -> ExitCode | None:
        """The exit code once the run is over, and the closing lines."""
        status = self._job.status
        over = status.phase.final or (self._asked is not None and status.phase is Phase.SUSPENDED)
        if not over or (self._table.running and any(replica.deleting for replica in self._table.running)):
            return None
        self._show_new_output()
        if not status.phase.final:
            return self._stopped([replica.exit_code for replica in self._asked or ()])
        self._display.close()
        code = exit_code(status)
        lines = (
            news.success(self._job, self._directory.path)
            if code is ExitCode.SUCCEEDED
            else news.failure(self._job, str(self._settings.job_file), self._culprit())
        )
        for line in lines:
            self._display.line(line)
        return code

    def _stopped(self, codes: list[int | None]) -> ExitCode:
        """The exit code of a run that was asked to stop, and the closing lines."""
        self._display.close()
        code = stop_code(codes, self._job.status)
        for line in news.stopped(self._job, code, self._settings.again):
            self._display.line(line)
        return code

    def _culprit(self) -> Path | None:
        """The log of the replica that failed first."""
        record = last_failure(self._job.status)
        return self._directory.log(record.attempt, record.replica) if record and record.replica else None

    async def _wait(self, wake: datetime | None) -> None:
        """Until something happens, or the time that the core wants to look again."""
        seconds = None if wake is None else max(0.0, (wake - _now()).total_seconds())
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return

    def _gather(self) -> None:
        """A report came: look at it soon, together with those that come at the same time."""
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self._news.set()

    def _stop(self) -> None:
        """The first request to stop: let the world save."""
        if self._asked is None:
            self._asked = self._table.running
            self._display.line("stopping: the replicas save and end; once more Ctrl-C ends them at once")
            self._news.set()

    def _kill(self) -> None:
        """A second Ctrl-C: nothing is waited for."""
        self._killed.set()
        self._news.set()

    def _note_processes(self) -> None:
        """Keeps processes.json true, for a person or a test that wants to end one process of the run."""
        entries = [self._process_entry(replica) for replica in self._table.running]
        if entries != self._noted:
            self._directory.write_processes(entries)
            self._noted = entries

    def _process_entry(self, replica: Replica) -> dict[str, Any]:
        received = self._reports.of(replica.identity.uid)
        ranks = received.report.processes if received else []
        return {
            "replica": replica.identity.label,
            "attempt": max(replica.identity.attempt, received.report.attempt if received else 0),
            "pid": replica.process.pid,
            "log": str(replica.identity.log),
            "processes": [{"rank": each.rank, "pid": each.pid, "state": each.state} for each in ranks],
        }

    async def _show_logs(self) -> None:
        while True:
            self._show_new_output()
            await asyncio.sleep(TICK_SECONDS)

    def _show_new_output(self) -> None:
        for replica in self._table.replicas if self._settings.show_logs else ():
            for line in self._follower.read(replica.identity.label, replica.identity.log):
                self._display.line(line)


@contextmanager
def _signals(stop: Callable[[], None], kill: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM ask to stop and, the second time, to end at once. A terminal that is closed (SIGHUP) only asks."""
    asked = False

    def interrupt() -> None:
        nonlocal asked
        (kill if asked else stop)()
        asked = True

    loop = asyncio.get_running_loop()
    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: interrupt, signal.SIGHUP: stop}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def _now() -> datetime:
    return datetime.now(UTC)
