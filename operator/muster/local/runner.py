"""Runs a job on this machine. In a loop, it observes the replicas, calls the lifecycle core, writes the status, carries out the actions
and waits.

The status is written before the actions that follow from it. If `muster run` is killed, the next one can therefore continue from the
directory. Everything runs in one asyncio loop. Start reading at `Runner.run`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muster.api.grace import seconds as grace_seconds
from muster.api.job import TrainingJob
from muster.api.status import FailureClass, Phase, TrainingJobStatus
from muster.channel.replies import reply_to
from muster.channel.reports import Reports
from muster.kubernetes.backoff import Delays
from muster.lifecycle.actions import Action, CreateReplica, DeleteReplica
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import Observed
from muster.lifecycle.policy import Policy
from muster.lifecycle.tracing import Tracing
from muster.local import gpus, loopback, messages
from muster.local.channel import LocalChannel
from muster.local.display import Display
from muster.local.errors import ConfigurationError, StorageError
from muster.local.follow import LogFollower
from muster.local.guard import Guard
from muster.local.inputs import Fetcher
from muster.local.launch import Host, Launch, launch_of
from muster.local.localize import code_folder, localized, working_directory
from muster.local.outcome import exit_code, last_failure, stop_code
from muster.local.ports import LoopbackAddresses, PortRange, ReservedPorts, addresses_for
from muster.local.processes import Identity, ProcessTable, Replica
from muster.local.rundir import STOP, RunDirectory
from muster.local.silence import SECONDS as SILENT_SECONDS
from muster.local.silence import Silence
from muster.local.sweep import RUN_MARK, sweep
from muster.render.environment import Coordinator, inputs_of
from muster.render.images import default_images
from muster.render.manifests import plans_of, render_replica, world_plan
from muster.strategies.base import WorldPlan
from muster.strategies.registry import strategy_of
from muster_contract.codes import ExitCode
from muster_contract.environment import variables
from muster_contract.inputs import input_variables
from muster_contract.reports import Reply, Report

POLICY = Policy(
    settle_seconds=10,
    progress_seconds=0,
    repeats_without_steps=True,
    delays={
        FailureClass.PREEMPTION: Delays(0.5, 10, free=2),
        FailureClass.INFRASTRUCTURE: Delays(0.5, 10, free=1),
        FailureClass.APPLICATION: Delays(1, 30),
    },
)
REPORT_SECONDS = 0.005  # from the first report to the next decision, which then covers all reports in between
TICK_SECONDS = 0.25  # between two reads of the logs that are shown, and between two looks for silent supervisors
BROKEN_GRACE = 5.0  # grace period in seconds of the replicas of a broken world, because none can save
SAME_REQUEST_SECONDS = 0.5  # a second signal within this time belongs to the same Ctrl-C
LONGEST_GRACE = 10.0  # grace period in seconds of processes that remain when `muster run` ends


@dataclass(frozen=True)
class Settings:
    """The working directory of the processes and the options of the command.

    `job_file` is the path as the user wrote it. `resume_command` is the command that continues the run.
    """

    cwd: Path
    job_file: Path
    resume_command: str
    ports: PortRange | None = None
    show_logs: bool = False


class Runner:
    """Runs one job in one run directory, from its start or resumption to its end."""

    def __init__(
        self, job: TrainingJob, directory: RunDirectory, *, settings: Settings, display: Display, tracing: Tracing | None = None
    ) -> None:
        self._job = job
        self._directory = directory
        self._settings = settings
        self._display = display
        self._tracing = tracing
        self._host = Host(
            os.environ,
            sys.executable,
            os.cpu_count() or 1,
            code_folder(job.spec.trainer, settings.job_file),
            defaults={**loopback.interfaces(), **(tracing.variables(job) if tracing else {})},
        )
        self._gpus = gpus.visible(os.environ)
        self._cwd = working_directory(job.spec.trainer, cwd=settings.cwd, job_file=settings.job_file)
        self._runnable = localized(job, directory, cwd=self._cwd, job_file=settings.job_file)
        self._mark = directory.mark(job.metadata.uid)
        self._changed = asyncio.Event()
        self._reports = Reports()
        self._table = ProcessTable(_now, self._changed.set)
        self._channel = LocalChannel(self._reports, reply_to=self._reply_to, wake=self._schedule_reports)
        self._service = False
        self._addresses: tuple[tuple[int, WorldPlan], LoopbackAddresses, ReservedPorts] | None = None
        self._stopping: list[Replica] | None = None  # the replicas that ran when the user stopped the run
        self._killed = asyncio.Event()
        self._report_timer: asyncio.TimerHandle | None = None
        self._written_processes: list[dict[str, Any]] = []
        self._ignored: set[str] = set()  # sentences that were already shown
        self._follower = LogFollower()
        self._inputs = directory.path.absolute() / "inputs"
        self._fetcher = Fetcher(
            self._inputs,
            directory.path / "inputs.log",
            self._mark,
            show=lambda status: display.show(self._job.with_status(status)),
            say=display.line,
        )

    async def run(self) -> ExitCode:
        """Runs the job to its end, and returns the exit code. It leaves no process behind, even after an error."""
        grace = min(LONGEST_GRACE, grace_seconds(self._job.spec, self._job.status))
        async with Guard(self._mark, grace), self._channel:
            tasks = [asyncio.create_task(work) for work in (self._show_logs(), self._kill_silent())]
            try:
                with stop_signals(self._stop, self._kill):
                    await self._fetch_inputs()
                    return await self._until_ended()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.to_thread(sweep, RUN_MARK, self._mark, grace_seconds=0.0 if self._killed.is_set() else grace)
                await self._table.close()
                self._release_ports()
                self._display.close()
                with suppress(StorageError):  # the error that ended the run is more important
                    self._write_processes()

    async def _fetch_inputs(self) -> None:
        """Fetches the inputs before the world starts. A request to stop ends the fetch, and then the run."""
        if not self._job.spec.inputs:
            return
        status = await self._fetcher.fetch(self._job)
        self._directory.write_status(status)
        self._job = self._job.with_status(status)

    async def _until_ended(self) -> ExitCode:
        while True:
            self._changed.clear()
            ended = [replica for replica in self._table.replicas if replica.deleting and replica.finished]
            observed = self._observed()
            decision = decide(self._desired(), observed, _now(), policy=POLICY)
            self._write_status(decision.status, observed)
            await self._carry_out(decision.actions)
            self._show_new_output()
            self._table.forget(ended)
            self._write_processes()
            if self._killed.is_set():
                return self._stopped([None])
            if (code := self._ended()) is not None:
                return code
            if not ended:
                await self._wait(decision.wake)

    def _desired(self) -> TrainingJob:
        """The job with its status. It is suspended once the user has stopped the run."""
        spec = self._runnable.spec.model_copy(update={"suspend": self._stopping is not None})
        return self._runnable.model_copy(update={"spec": spec, "status": self._job.status})

    def _observed(self) -> Observed:
        return Observed(replicas=tuple(replica.view(self._reports) for replica in self._table.replicas), live=True, service=self._service)

    def _write_status(self, status: TrainingJobStatus, observed: Observed) -> None:
        """Writes the status and shows it. Raises StorageError if it cannot be written, so that no action follows."""
        before = self._job.status
        if status != before:
            self._directory.write_status(status)
            if self._tracing is not None:
                self._tracing.record(self._job, status, observed)
            self._job = self._job.with_status(status)
            self._channel.job_changed()
        for line in messages.change_lines(before, status):
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
                self._service = True  # a local run needs no service, no live observation and no deletion of the job

    @property
    def _grace(self) -> float:
        """Grace period of a replica in seconds: the job's if the user stops the run, and a shorter one if the world is broken."""
        seconds = grace_seconds(self._job.spec, self._job.status)
        return seconds if self._stopping is not None else min(BROKEN_GRACE, seconds)

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
        folder = self._directory.replica(action.attempt, f"{action.role}-{action.index}").absolute()
        identity = Identity(name, str(uuid.uuid4()), action.role, action.index, action.attempt, folder, action.standby)
        await self._table.start(identity, self._launch(pod, identity), cwd=self._cwd)

    def _launch(self, pod: dict[str, Any], identity: Identity) -> Launch:
        self._directory.prepare(identity.folder)
        token = identity.folder / "token"
        self._channel.write_token(token, identity.uid)
        local = {
            **variables(
                pod_name=identity.name,
                pod_uid=identity.uid,
                state_dir=identity.folder,
                termination_log=identity.termination,
                token_file=token,
                tensorboard_dir=self._directory.tensorboard.absolute(),
                objects=self._objects(),
            ),
            RUN_MARK: self._mark,
            **loopback.LAUNCHER,
            **input_variables((each.name for each in inputs_of(self._job.spec, identity.role)), str(self._inputs)),
        }
        size = self._job.status.world.size if self._job.status.world else 1
        share = gpus.share(self._gpus, world_plan(self._current()), identity.role, identity.index, environ=os.environ)
        launch = launch_of(pod, self._host, local=local, processes=size, gpus=share)
        for sentence in launch.ignored:
            if (text := f"{identity.role}: {sentence}") not in self._ignored:
                self._ignored.add(text)
                self._display.line(text)
        return launch

    def _objects(self) -> Path | None:
        """Writes the ConfigMaps and Secrets of the strategy as files. Returns their folder; None if there are none."""
        job, attempt = self._current(), self._job.status.attempt
        strategy = strategy_of(job.spec.strategy)
        if strategy.objects is None:
            return None
        for extra in strategy.objects(job.spec, plans_of(job).whole, self._addresses_of(attempt)):
            self._directory.write_object(extra.name, extra.data, keep=extra.kind == "Secret")
        return self._directory.objects.absolute()

    def _reply_to(self, uid: str, report: Report) -> Reply:
        addresses = self._addresses_of(self._job.status.attempt)
        return reply_to(self._current(), uid, report, addresses, server_of=self._reports.snapshot_server_of)

    def _current(self) -> TrainingJob:
        return self._runnable.model_copy(update={"status": self._job.status})

    def _addresses_of(self, attempt: int) -> LoopbackAddresses:
        """The addresses of the attempt's world. Each attempt gets new ports if the strategy needs them and the range has enough. So does a
        world in which a spare has taken a place before the attempt started."""
        last, strategy = self._addresses, strategy_of(self._runnable.spec.strategy)
        plan = world_plan(self._current())
        if last is not None and (last[0] == (attempt, plan) or not strategy.moves):
            return last[1]
        try:
            addresses, ports = addresses_for(plan, self._settings.ports)
        except ConfigurationError:
            if last is None:
                raise
            addresses, ports = last[1], last[2]
        else:
            self._release_ports()
            ports.start_sharing()
        self._addresses = ((attempt, plan), addresses, ports)
        return addresses

    def _release_ports(self) -> None:
        if self._addresses is not None:
            self._addresses[2].release()

    def _ended(self) -> ExitCode | None:
        """The exit code if the run is over, and then shows the last lines."""
        status = self._job.status
        is_over = status.phase.final or (self._stopping is not None and status.phase is Phase.SUSPENDED)
        if not is_over or (self._table.running and any(replica.deleting for replica in self._table.running)):
            return None
        self._show_new_output()
        if not status.phase.final:
            return self._stopped([self._code_when_stopped(replica) for replica in self._stopping or ()])
        self._display.close()
        code = exit_code(status)
        lines = (
            messages.success(self._job, self._directory.path)
            if code is ExitCode.COMPLETED
            else messages.failure(self._job, str(self._settings.job_file), self._failed_log())
        )
        for line in lines:
            self._display.line(line)
        return code

    def _stopped(self, codes: list[int | None]) -> ExitCode:
        """Shows the last lines of a run that the user stopped, and returns its exit code."""
        self._display.close()
        code = stop_code(codes, self._job.status)
        for line in messages.stopped(self._job, code, self._settings.resume_command):
            self._display.line(line)
        return code

    def _code_when_stopped(self, replica: Replica) -> int | None:
        """The exit code of a replica that the user stopped. A supervisor that SIGTERM ended had not started any process yet."""
        is_unstarted = self._job.spec.trainer.supervised and replica.process.returncode == -signal.SIGTERM
        return ExitCode.PREEMPTED if is_unstarted else replica.exit_code

    def _failed_log(self) -> Path | None:
        """The log of the replica that failed first."""
        record = last_failure(self._job.status)
        return self._directory.log(record.attempt, record.replica) if record and record.replica else None

    async def _wait(self, wake: datetime | None) -> None:
        """Waits until something happens, or until the time of the next decision."""
        seconds = None if wake is None else max(0.0, (wake - _now()).total_seconds())
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

    def _schedule_reports(self) -> None:
        """Schedules a decision after a report, together with other reports that arrive at the same time."""
        if self._report_timer is None:
            self._report_timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._take_reports)

    def _take_reports(self) -> None:
        self._report_timer = None
        self._changed.set()

    def _stop(self) -> None:
        """Handles the first request to stop. The world may save."""
        if self._stopping is None:
            self._stopping = self._table.running
            self._fetcher.stop()
            self._display.line("stopping: the replicas save and end; press Ctrl-C again to end them at once")
            self._changed.set()

    def _kill(self) -> None:
        """Handles the second Ctrl-C. The run ends at once."""
        self._killed.set()
        self._fetcher.stop()
        self._changed.set()

    def _write_processes(self) -> None:
        """Updates processes.json. A user or a test may read it to end one process of the run."""
        entries = [self._process_entry(replica) for replica in self._table.running]
        if entries != self._written_processes:
            self._directory.write_processes(entries)
            self._written_processes = entries

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

    async def _kill_silent(self) -> None:
        """Kills replicas whose supervisors do not report any more, so that they are replaced like any other that was killed."""
        silence, last = Silence(), time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            supervised = self._table.running if self._job.spec.trainer.supervised else []
            received = {replica.identity.uid: self._reports.of(replica.identity.uid) for replica in supervised}
            silent = silence.look({uid: each.time for uid, each in received.items() if each}, now - last)
            last = now
            for replica in supervised:
                if replica.identity.uid in silent and not replica.killed_because:
                    self._table.kill(replica, f"its supervisor did not report for {SILENT_SECONDS:g} s, so Muster killed the replica")

    def _show_new_output(self) -> None:
        for replica in self._table.replicas if self._settings.show_logs else ():
            for line in self._follower.read(replica.identity.label, replica.identity.log):
                self._display.line(line)


@contextmanager
def stop_signals(stop: Callable[[], None], kill: Callable[[], None]) -> Iterator[None]:
    """Handles signals. The first SIGINT or SIGTERM calls `stop`, a later one `kill`. SIGHUP, when the terminal is closed, and STOP, from
    another command, call `stop`.

    One Ctrl-C arrives twice below a wrapper such as `timeout`, which passes on what the terminal has sent to both. A signal that this
    process ignores since its start stays ignored, as `nohup` and shells want it.
    """
    loop = asyncio.get_running_loop()
    first: float | None = None

    def interrupt() -> None:
        nonlocal first
        if first is None:
            first = loop.time()
            stop()
        elif loop.time() >= first + SAME_REQUEST_SECONDS:
            kill()

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: interrupt, signal.SIGHUP: stop}
    handled = {number: handler for number, handler in handlers.items() if signal.getsignal(number) is not signal.SIG_IGN}
    handled[STOP] = stop
    for number, handler in handled.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        signal.signal(STOP, signal.SIG_IGN)  # the run ends already


def _now() -> datetime:
    return datetime.now(UTC)
