"""The Python client's jobs on this machine. Each runs in a process of its own, in a run directory as `muster run` makes it.

`LocalBackend` and `LocalJob` implement the same `Backend` and `AsyncJob` as `cluster_backend.py`. They share no more, because a run is a
process and its files, and not an object of an API server.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muster.acceptance.presets import with_preset_written_out
from muster.api.constants import RUN_DIRECTORY_ANNOTATION
from muster.api.grace import seconds as grace_seconds
from muster.api.job import TrainingJob
from muster.api.status import Phase
from muster.client import errors
from muster.client.async_job import AsyncJob, Note, RankProcess
from muster.client.code import Code
from muster.client.job_input import data_of
from muster.client.log_lines import Selection
from muster.explain.explain import Explanation, explain
from muster.explain.snapshot import Snapshot
from muster.kubernetes.objects import Object
from muster.local.background import Request
from muster.local.errors import RunError
from muster.local.files import MOST_RUN_BYTES, content_of, open_regular, tail_of
from muster.local.follow import LogFollower
from muster.local.localize import checkpoint_folder
from muster.local.rundir import (
    STOP,
    Place,
    RunFolder,
    attempt_of,
    free_path,
    has_run,
    is_moved_aside,
    load_run,
    names_of_runs,
    pid_of_run,
    place_of,
    replica_logs,
)
from muster.local.sweep import REPLICA_MARK, RUN_MARK
from muster.tools.report.history import History, ReportError, read_history
from muster.tools.report.job import JobView
from muster.tools.report.recorded import read_recorded
from muster.tools.report.storage import Storage
from muster_contract.text import printable

POLL_SECONDS = 0.1
START_SECONDS = 300.0
END_SECONDS = 60.0
"""How long a run may take to end, beyond the grace period of its job."""
LONGEST = 2000  # bytes of what a run has printed
_ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class LocalBackend:
    """The runs in one folder, `runs` by default."""

    def __init__(self, folder: Path, *, detach: bool, presets: Path | None = None) -> None:
        """`presets` is a file with the presets that jobs name."""
        self._shown = folder
        self._folder = folder.absolute()
        self._detach = detach
        self._presets = presets
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    async def submit(self, job: TrainingJob, *, file: Path | None, code: Code | None) -> AsyncJob:
        name = job.metadata.name
        job = await asyncio.to_thread(with_preset_written_out, job, self._presets)
        if has_run(self.directory(name)) and (self.is_running(name) or self.read(name).status.attempts):
            raise errors.ConflictError(
                f"a run {name} exists in {self._folder}: resume() it, delete() it, or choose another name (client.get({name!r}))"
            )
        folder = code if code is None or isinstance(code, Path) else self._written(name, code)
        await self.start(name, job, _place_of(name, file=file, code=folder), resume=False)
        return LocalJob(self, name, job.metadata.namespace)

    async def get(self, name: str, *, namespace: str | None) -> AsyncJob:
        return LocalJob(self, name, self.read(name).metadata.namespace)

    async def jobs(self, *, all_namespaces: bool) -> list[AsyncJob]:
        return [LocalJob(self, name, self.read(name).metadata.namespace) for name in self.names()]

    async def close(self) -> None:
        """Lets the attached runs save and end, and waits for them."""
        attached = [name for name, process in self._processes.items() if process.stdin and not process.stdin.closed]
        for name in attached:
            self._release(self._processes[name])
        for name in attached:
            await self.wait_stopped(name)

    async def documents(self, *, all_namespaces: bool, whole: bool) -> list[Object]:
        """The runs that can be read."""
        found = []
        for name in self.names():
            with suppress(errors.ClientError):
                found.append(self.document(name))
        return found

    async def neglects(self, documents: Sequence[Object], *, now: datetime) -> list[str]:
        return []  # a run whose process has ended is shown as suspended

    def _written(self, name: str, files: Mapping[str, bytes]) -> Path:
        """A folder beside the run directory with these files, so that a run that is resumed has them."""
        folder = self.code_folder(name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in files.items():
                with os.fdopen(open_regular(folder / file, _ANEW), "wb") as written:
                    written.write(content)
        except OSError as error:
            raise errors.RefusedError(f"{error.filename or folder}: {error.strerror}") from error
        return folder

    def code_folder(self, name: str) -> Path:
        """Where the files of a run are whose code is no folder of the user."""
        return self._folder / f"{name}.code"

    def directory(self, name: str) -> Path:
        return self._folder / name

    def read(self, name: str) -> TrainingJob:
        """The job with its status now. Raises NoJobError."""
        try:
            job = load_run(self.directory(name)) if name not in ("", "..") and Path(name).name == name else None
        except RunError as error:
            raise errors.RefusedError(str(error)) from error
        if job is None:
            near = difflib.get_close_matches(name, self.names(), 3, 0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise errors.NoJobError(f"there is no run {name} in {self._folder}{hint}")
        return job

    def document(self, name: str) -> Object:
        """The run as an API server would have it. It has no namespace, and an annotation names its directory.

        A run whose process has ended counts as suspended, because it goes on from its last commit when it is resumed."""
        is_running = self.is_running(name)  # before the status, because a run that has ended has written its last one
        job = self.read(name)
        document = {**job.manifest(), "status": job.status.wire()}
        document["metadata"]["annotations"] = {**job.metadata.annotations, RUN_DIRECTORY_ANNOTATION: str(self._shown / name)}
        document["metadata"].pop("namespace", None)
        if not is_running and not job.status.phase.final:
            message = job.status.message if job.status.phase is Phase.SUSPENDED else "the process of the run has ended"
            document["spec"]["suspend"] = True
            document["status"] |= {"phase": Phase.SUSPENDED.value, "message": message}
        return document

    async def view(self, name: str, *, history: History | None) -> JobView:
        """What a page shows of the run. `history` comes from its events. Raises a ClientError."""
        from muster.client.views import local_view

        job = self.read(name)
        return await local_view(job, self.directory(name), is_running=self.is_running(name), history=history)

    def names(self) -> list[str]:
        """The runs of the folder, without those that were moved aside."""
        return names_of_runs(self._folder)

    def is_running(self, name: str) -> bool:
        process = self._processes.get(name)
        if process is not None:
            process.poll()  # else it stays a zombie
        return pid_of_run(self.directory(name)) is not None

    async def start(self, name: str, job: TrainingJob, place: Place, *, resume: bool) -> None:
        """Starts the process of the run, and returns once the run has begun. If it does not begin, raises RefusedError with its output."""
        directory = self.directory(name)
        output = directory.with_name(f"{name}.out")
        before = version_of(directory / "status.json")
        request = Request(data_of(job), place.job_file, str(directory), resume=resume, attached=not self._detach, ports=place.ports)
        process = await asyncio.to_thread(self._spawn, request, place.cwd, output)
        self._processes[name] = process
        deadline = time.monotonic() + START_SECONDS
        while not self._has_begun(name, before):
            if process.poll() is not None:
                if process.returncode == 0:
                    break
                raise errors.RefusedError(_tail(output) or f"the run of {name} ended with exit code {process.returncode}")
            if time.monotonic() > deadline:
                self._release(process)
                raise errors.ClientError(f"the run of {name} has not begun after {START_SECONDS:.0f} s: {_tail(output)}")
            await asyncio.sleep(POLL_SECONDS)

    def _has_begun(self, name: str, before: tuple[int, int] | None) -> bool:
        """Whether the status is another one than `before`, and has the conditions that the first decision sets."""
        if version_of(self.directory(name) / "status.json") in (None, before):
            return False
        with suppress(errors.ClientError):
            return bool(self.read(name).status.conditions)
        return False

    def _spawn(self, request: Request, cwd: str, output: Path) -> subprocess.Popen[bytes]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with os.fdopen(open_regular(output, _ANEW), "wb") as printed:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "muster.local.background"],
                    cwd=cwd,
                    env={key: value for key, value in os.environ.items() if key not in (RUN_MARK, REPLICA_MARK)},
                    stdin=subprocess.PIPE,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in the notebook must not reach the run
                )
        except OSError as error:
            raise errors.RefusedError(f"{error.filename or cwd}: {error.strerror}") from error
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the run has ended already, and its output shows the cause
            process.stdin.write(request.line())
            process.stdin.flush()
        if self._detach:
            self._release(process)
        return process

    @staticmethod
    def _release(process: subprocess.Popen[bytes]) -> None:
        """Closes this end of the run's standard input. An attached run then saves and ends."""
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()

    def stop(self, name: str) -> None:
        """Asks the run to save and end, if it runs."""
        pid = pid_of_run(self.directory(name))
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, STOP)

    async def wait_stopped(self, name: str) -> None:
        """Waits until the process of the run has ended. Raises ClientError if that takes too long."""
        if not self.is_running(name):
            return
        job = self.read(name)
        seconds = grace_seconds(job.spec, job.status) + END_SECONDS
        deadline = time.monotonic() + seconds
        while self.is_running(name):
            if time.monotonic() > deadline:
                raise errors.ClientError(f"{name} has not ended after {seconds:.0f} s: end the process {pid_of_run(self.directory(name))}")
            await asyncio.sleep(POLL_SECONDS)

    def place(self, name: str) -> Place:
        """Where the run was started. Here, if that cannot be read."""
        return place_of(self.directory(name)) or _place_of(name)


class LocalJob(AsyncJob):
    """A run on this machine."""

    def __init__(self, backend: LocalBackend, name: str, namespace: str) -> None:
        super().__init__(name, namespace)
        self._backend = backend

    async def document(self) -> Object:
        return self._backend.document(self.name)

    async def get(self) -> TrainingJob:
        return self._backend.read(self.name)

    async def changes(self) -> AsyncGenerator[TrainingJob | None, None]:
        before: TrainingJob | None = None
        while True:
            is_running = self._backend.is_running(self.name)  # before the status, because a run that has ended has written its last one
            try:
                job = self._backend.read(self.name)
            except errors.NoJobError:
                yield None
                return
            if job != before:
                yield job
            if not is_running and not job.status.phase.final:
                step = job.status.progress.step if job.status.progress else 0
                raise errors.JobStoppedError(f"{self.name} was stopped at step {step}: resume it to continue")
            before = job
            await asyncio.sleep(POLL_SECONDS)

    async def processes(self) -> list[RankProcess]:
        directory = self._backend.directory(self.name)
        if not self._backend.is_running(self.name):
            return []
        try:
            replicas = json.loads(content_of(directory / "processes.json", MOST_RUN_BYTES))
            return [process for replica in replicas for process in _processes_of(replica)]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise errors.ClientError(f"{directory / 'processes.json'} cannot be read: {error}") from error

    async def _printed(self, selection: Selection, *, tail: int | None) -> list[str]:
        _refuse_rank(selection.rank)
        job = self._backend.read(self.name)
        printed = {log: list(_lines(LogFollower(), log)) for log in self._logs(selection.replica, attempt=selection.attempt)}
        if selection.attempt is not None:
            printed |= await asyncio.to_thread(self._recorded, job, selection, without=[log.parent.name for log in printed])
        if not printed:
            which = "such logs" if selection.attempt is None else f"logs of its own for attempt {selection.attempt}"
            raise errors.RefusedError(f"{self.name} has no {which}: see muster logs {self.name}")
        return [line for lines in printed.values() for line in (lines if tail is None else lines[max(0, len(lines) - tail) :])]

    def _recorded(self, job: TrainingJob, selection: Selection, *, without: Sequence[str]) -> dict[Path, list[str]]:
        """The last lines of the attempt, from the history that supervisors wrote at its end. A restart in a replica continues its log."""
        folder = checkpoint_folder(job, RunFolder(self._backend.directory(self.name)))
        found = {}
        with suppress(ReportError):
            name, created = job.spec.checkpoint.name or job.metadata.name, job.metadata.creation_timestamp
            recorded = read_recorded(folder, job.metadata.namespace, name, created=created) if folder else None
            for each in recorded.replicas if recorded else ():
                is_selected = each.record.attempt == selection.attempt and selection.replica in (None, each.label)
                if is_selected and each.label not in without:
                    found[Path(each.label)] = [f"[{each.label}] {line}" for line in each.log]
        return found

    async def follow(self, selection: Selection, *, note: Note) -> AsyncGenerator[str, None]:
        _refuse_rank(selection.rank)
        follower = LogFollower()
        while True:
            is_running = self._backend.is_running(self.name)
            for log in self._logs(selection.replica):
                for line in _lines(follower, log):
                    yield line
            if not is_running:
                return
            await asyncio.sleep(POLL_SECONDS)

    def _logs(self, replica: str | None, *, attempt: int | None = None) -> list[Path]:
        """The logs of the replica, or of all. With `attempt`, those that have this attempt alone."""
        logs = [log for log in replica_logs(self._backend.directory(self.name)) if replica in (None, log.parent.name)]
        if attempt is None:
            return logs
        newest = self._backend.read(self.name).status.attempt
        starts = {(log.parent.name, attempt_of(log)) for log in logs}
        return [log for log in logs if attempt_of(log) == attempt and (attempt == newest or (log.parent.name, attempt + 1) in starts)]

    async def explain(self) -> Explanation:
        return explain(Snapshot(now=datetime.now(UTC), job=await self.document()))

    async def _view(self, history: Storage | None) -> JobView:
        """A run directory has the whole history, so `history` has no effect."""
        recorded = None
        with suppress(ReportError):  # the run has no events yet
            recorded = await asyncio.to_thread(read_history, self._backend.directory(self.name))
        return await self._backend.view(self.name, history=recorded)

    async def suspend(self) -> None:
        _refuse_ended(self._backend.read(self.name))
        self._backend.stop(self.name)

    async def resume(self) -> None:
        job = self._backend.read(self.name)
        _refuse_ended(job)
        if self._backend.is_running(self.name):
            if job.status.phase is not Phase.SUSPENDED:
                return
            await self._backend.wait_stopped(self.name)
        await self._backend.start(self.name, job, self._backend.place(self.name), resume=True)

    async def restart(self) -> None:
        if self._backend.read(self.name).status.phase is Phase.SUCCEEDED:
            raise errors.RefusedError(f"{self.name} has succeeded: delete it, or submit it under another name")
        await self._stop_and_start(self._backend.read(self.name))

    async def scale(self, replicas: int, *, role: str = "worker") -> None:
        job = self._backend.read(self.name)
        roles = sorted({*job.spec.roles, "worker"})
        if role not in roles:
            raise errors.RefusedError(f"{self.name} has no role {role}: its roles are {', '.join(roles)}")
        _refuse_ended(job)
        data = data_of(job)
        data["spec"].setdefault("roles", {}).setdefault(role, {})["replicas"] = replicas
        await self._stop_and_start(TrainingJob.model_validate(data))

    async def _stop_and_start(self, job: TrainingJob) -> None:
        self._backend.stop(self.name)
        await self._backend.wait_stopped(self.name)
        await self._backend.start(self.name, job, self._backend.place(self.name), resume=True)

    async def delete(self) -> Path:
        self._backend.read(self.name)
        directory = self._backend.directory(self.name)
        if is_moved_aside(self.name):
            raise errors.RefusedError(f"{self.name} is deleted already: to free its space, remove the folder {directory}")
        self._backend.stop(self.name)
        await self._backend.wait_stopped(self.name)
        aside = directory.rename(free_path(directory))
        directory.with_name(f"{self.name}.out").unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self._backend.code_folder(self.name).rename(aside / "code")
        return aside


def _processes_of(replica: dict[str, Any]) -> Iterator[RankProcess]:
    """The processes of one entry of `processes.json`."""
    label, attempt, supervisor = str(replica["replica"]), int(replica["attempt"]), str(replica["pid"])
    if not replica["processes"]:
        yield RankProcess(label, None, None, "Starting", attempt, supervisor, "localhost")
    for each in replica["processes"]:
        yield RankProcess(label, int(each["rank"]), int(each["pid"]), str(each["state"]), attempt, supervisor, "localhost")


def _refuse_ended(job: TrainingJob) -> None:
    if job.status.phase.final:
        raise errors.RefusedError(errors.ended(job.metadata.name, job.status.phase.value))


def _place_of(name: str, *, file: Path | None = None, code: Path | None = None) -> Place:
    """A job without a file counts as one in the folder `code`, or else in the working directory."""
    job_file = (code or Path.cwd()) / name if file is None or code else file
    return Place(str(job_file.absolute()), str(Path.cwd()))


def _refuse_rank(rank: int | None) -> None:
    if rank is not None:
        raise errors.RefusedError("rank: the logs of a local run are those of its replicas: use replica, such as worker-0")


def _lines(follower: LogFollower, log: Path) -> Iterator[str]:
    while lines := follower.read(log.parent.name, log):
        yield from (printable(line, keep="\t") for line in lines)


def version_of(file: Path) -> tuple[int, int] | None:
    """A value that changes when the file is replaced."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _tail(output: Path) -> str:
    return printable(tail_of(output, LONGEST).strip(), keep="\n")
