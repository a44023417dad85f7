"""The files of a run directory, and what a later `muster run` may do with it.

```
job.yaml         the job of the last run, with its uid and creation time
status.json      its status, which is written before the actions that follow from it
processes.json   the replicas that run now, with their processes by rank
client.json      where it was started: job file, working directory, ports
lock             locked by the `muster run` that uses the directory; it contains the pid
attempts/<n>/<role>-<index>/   log.txt, events.jsonl, termination.json of a replica
checkpoints/, volumes/<claim>/, tensorboard/
```
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

import psutil
from pydantic import ValidationError

from muster.admission.yaml_text import read_yaml, write_yaml
from muster.api.job import TrainingJob
from muster.api.spec import TrainingJobSpec
from muster.api.status import Phase, TrainingJobStatus
from muster.local.errors import ConfigurationError, FieldError, StorageError
from muster.local.files import MOST_RUN_BYTES, content_of, open_regular

FIXED_FIELDS = (
    "strategy",
    "trainer.task",
    "trainer.module",
    "trainer.script",
    "trainer.command",
    "trainer.config.seed",
    "batch.globalSize",
)
"""Fields that must not change within a run, because the training would not be the same."""
STOP = signal.SIGUSR1
"""Stops a run so that it saves. Unlike a second SIGTERM, a second signal of this kind does not end the run at once, and unlike SIGHUP,
`nohup` does not make a run ignore it."""
_LONGEST_PID = 32
_LONGEST_PLACE = 64 << 10


@dataclass(frozen=True)
class Place:
    """Where a run was started: its job file, its working directory, and the ports that the user allows. It is resumed there."""

    job_file: str
    cwd: str
    ports: str | None = None


@dataclass(frozen=True)
class RunFolder:
    """The paths in a run directory."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def volume(self, claim: str) -> Path:
        """The folder that a local run uses in place of a PersistentVolumeClaim."""
        return self.path / "volumes" / claim


@dataclass(frozen=True)
class RunDirectory(RunFolder):
    """A run directory that this process has locked."""

    lock: IO[str]

    @property
    def objects(self) -> Path:
        """The folder with the ConfigMaps and Secrets of the strategy."""
        return self.path / "objects"

    def write_object(self, name: str, entries: Callable[[], Mapping[str, str]], *, keep: bool) -> None:
        """Writes the entries of an object as files. With `keep`, an object that already exists stays as it is. Raises StorageError if that
        fails."""
        folder = self.objects / name
        if keep and folder.is_dir():
            return
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for key, text in entries().items():
                with os.fdopen(open_regular(folder / key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            raise StorageError(f"{error.filename or folder}: cannot be written: {error.strerror}") from None

    def replica(self, attempt: int, label: str) -> Path:
        """The folder of a replica (`worker-0`) in an attempt."""
        return self.path / "attempts" / str(attempt) / label

    def log(self, attempt: int, label: str) -> Path | None:
        """The log of a replica in an attempt. It is in the folder of the attempt that the replica was started for, which may be earlier."""
        logs = (self.replica(number, label) / "log.txt" for number in range(attempt, -1, -1))
        return next((log for log in logs if log.exists()), None)

    def prepare(self, replica: Path) -> None:
        """Makes the folder of a replica that is about to start. Raises StorageError if that fails."""
        try:
            replica.mkdir(parents=True, exist_ok=True)
            (replica / "termination.json").unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{replica}: cannot be created: {error.strerror}") from None

    def mark(self, uid: str) -> str:
        """The value of MUSTER_RUN in every process of the run with this uid."""
        return mark_of(self.path, uid)

    def load(self) -> TrainingJob | None:
        """The run in the directory; None if there is none yet. Raises ConfigurationError if it cannot be read."""
        return load_run(self.path)

    def write_job(self, job: TrainingJob) -> None:
        """Writes the fields that the user wrote and the identity of the run. Defaults are added when the file is read."""
        written = job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
        self._write("job.yaml", write_yaml(written))

    def write_status(self, status: TrainingJobStatus) -> None:
        self._write("status.json", json.dumps(status.wire(), indent=1))

    def write_place(self, place: Place) -> None:
        self._write("client.json", json.dumps(vars(place)))

    def write_processes(self, processes: Sequence[dict[str, Any]]) -> None:
        self._write("processes.json", json.dumps(processes, indent=1))

    def _write(self, name: str, text: str) -> None:
        """Replaces the file atomically. After a crash, it has either the old or the new content."""
        target, draft = self.path / name, self.path / f".{name}.new"
        try:
            draft.unlink(missing_ok=True)
            with draft.open("x", encoding="utf-8") as file:  # follows no link
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except OSError as error:
            raise StorageError(
                f"{target}: cannot be written: {error.strerror}; make room or name another directory with --run-dir"
            ) from None

    def release(self) -> None:
        self.lock.close()


def has_run(path: Path) -> bool:
    """Whether the directory has a run, readable or not."""
    return (path / "job.yaml").exists()


def is_moved_aside(name: str) -> bool:
    """Whether a directory with this name was moved aside (`free_path`), and so is no run any more. Names of jobs have no dot."""
    return "." in name


def names_of_runs(folder: Path) -> list[str]:
    """The names of the runs in a folder, without those that were moved aside. Empty if there is no folder."""
    try:
        return sorted(path.name for path in folder.iterdir() if not is_moved_aside(path.name) and has_run(path))
    except OSError:
        return []


def replica_logs(run: Path) -> list[Path]:
    """The logs of all replicas and attempts, by attempt and replica. A restart in the same replica continues its log."""
    return sorted(run.glob("attempts/*/*/log.txt"), key=lambda log: (attempt_of(log), log))


def attempt_of(log: Path) -> int:
    """The attempt that the replica of this log was started for."""
    number = log.parent.parent.name
    return int(number) if number.isdecimal() else 0


def load_run(path: Path) -> TrainingJob | None:
    """The run in the directory; None if there is none yet. Raises ConfigurationError if it cannot be read."""
    if not has_run(path):
        return None
    job_file, status_file = path / "job.yaml", path / "status.json"
    try:
        job = TrainingJob.model_validate(read_yaml(content_of(job_file, MOST_RUN_BYTES).decode()).data)
        if not status_file.exists():
            return job
        return job.with_status(TrainingJobStatus.from_wire(json.loads(content_of(status_file, MOST_RUN_BYTES))))
    except (OSError, ValidationError, ValueError, RecursionError) as error:
        first = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{path}: the run in it cannot be read ({first}); move it aside with --fresh, or name another with --run-dir"
        ) from None


def pid_of_run(path: Path) -> int | None:
    """The pid of the process that now runs the job of the directory: the one in its lock, if it has that file open. A copy of a directory
    has the pid of the original's process. Does not try the lock, because that would refuse a run that starts at the same time."""
    try:
        lock = path / "lock"
        pid, status = int(content_of(lock, _LONGEST_PID)), lock.stat()
        opened = (Path(each.path) for each in psutil.Process(pid).open_files())
        return pid if any(_is_file(each, status) for each in opened if each.name == lock.name) else None
    except (OSError, ValueError, psutil.Error):
        return None


def place_of(path: Path) -> Place | None:
    """Where the run of the directory was started. None if that cannot be read."""
    try:
        written: Any = json.loads(content_of(path / "client.json", _LONGEST_PLACE))
        ports = written.get("ports")
        return Place(str(written["job_file"]), str(written["cwd"]), None if ports is None else str(ports))
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def _is_file(path: Path, status: os.stat_result) -> bool:
    """Whether the path leads to the file with this status."""
    try:
        return os.path.samestat(path.stat(), status)
    except OSError:
        return False


def mark_of(path: Path, uid: str) -> str:
    """The mark of the processes of a run: its uid and the identity of its directory on this machine.

    A copy of a directory holds the same uid. Without the identity, a run of the copy would end the processes of the original. A directory
    that is renamed keeps its identity.
    """
    status = path.stat()
    return f"{uid}/{status.st_dev:x}-{status.st_ino:x}"


def open_run_directory(path: Path) -> RunDirectory:
    """Creates the directory if needed and locks it.

    Raises ConfigurationError if another run has the lock, the directory is not writable, or it has files but no run.
    """
    try:
        if path.is_dir() and not (path / "lock").exists() and any(path.iterdir()):
            raise ConfigurationError(f"{path}: has files but no run; name an empty or new directory with --run-dir")
        probe_writable(path)
        return RunDirectory(path, _locked(path))
    except OSError as error:
        raise ConfigurationError(f"{path}: the run directory cannot be written: {error.strerror}; name another with --run-dir") from None


def _locked(path: Path) -> IO[str]:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigurationError(f"{path / 'lock'}: is not a regular file; remove it, or name another directory with --run-dir")
    lock = os.fdopen(descriptor, "a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise ConfigurationError(
            f"{path}: `muster run` with pid {owner} is running this job; wait for it, stop it with Ctrl-C, or name another --run-dir"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def probe_writable(path: Path) -> None:
    """Creates the folder if needed, writes a small file to it and removes the file. Raises OSError if that fails."""
    path.mkdir(parents=True, exist_ok=True)
    probe = path / f".probe-{os.getpid()}"
    try:
        probe.unlink(missing_ok=True)
        with probe.open("x") as file:  # waits for no pipe
            file.write("muster\n")
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)


def move_aside(directory: RunDirectory) -> tuple[RunDirectory, Path]:
    """Renames the directory to the first free of `<path>.1`, `<path>.2`, ... Returns a new, locked directory and the old one's new path."""
    aside = free_path(directory.path)
    directory.path.rename(aside)
    directory.release()
    return open_run_directory(directory.path), aside


def free_path(path: Path) -> Path:
    """The first of `<path>.1`, `<path>.2`, ... that does not exist."""
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside


def new_run(job: TrainingJob, now: datetime, *, replaces: TrainingJob | None = None) -> TrainingJob:
    """The job with the identity of a new run.

    A run that replaces another starts over, even if both share storage. Its creation time is at least a second later, because the fence of
    an attempt has the creation time in whole seconds.
    """
    created = now.replace(microsecond=0)
    spec = job.spec
    if replaces is not None:
        if replaces.metadata.creation_timestamp is not None:
            created = max(created, replaces.metadata.creation_timestamp + timedelta(seconds=1))
        if spec.checkpoint.resume == "Auto":
            spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"resume": "Never"})})
    metadata = job.metadata.model_copy(update={"uid": str(uuid.uuid4()), "creation_timestamp": created, "generation": 1})
    return job.model_copy(update={"metadata": metadata, "spec": spec, "status": TrainingJobStatus()})


def continued(job: TrainingJob, run: TrainingJob) -> TrainingJob:
    """The job as it is in its file now, with the identity and the status of the run that it continues.

    Raises FieldError if a field has changed that must not change within a run.
    """
    for field in FIXED_FIELDS:
        now, before = _field(job.spec, field), _field(run.spec, field)
        if now != before:
            raise FieldError(
                f"spec.{_written(job.spec, field)}: the run in progress has {_shown(before)}, the file has {_shown(now)}; "
                "it cannot change within a run; change it back, or start over with --fresh"
            )
    spec = job.spec
    if spec.checkpoint.resume == "Auto" and run.spec.checkpoint.resume == "Never":
        spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"resume": "Never"})})
    metadata = run.metadata.model_copy(update={"generation": run.metadata.generation + (spec != run.spec)})
    return job.model_copy(update={"metadata": metadata, "spec": spec, "status": run.status})


def _field(spec: TrainingJobSpec, path: str) -> Any:
    value: Any = spec.wire() | {"trainer": spec.trainer.wire() | {"config": spec.trainer.all_settings}}
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _written(spec: TrainingJobSpec, path: str) -> str:
    """The field in which the job has what is at this path, because the settings that all tasks share have fields of their own."""
    *_, name = path.split(".")
    return path.replace(".config.", ".settings.") if name in spec.trainer.settings.wire() else path


def _shown(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def progress_phrase(run: TrainingJob) -> str:
    """The progress of the run in a directory, in a few words."""
    status = run.status
    if status.phase is Phase.SUCCEEDED:
        return "has finished"
    step = status.progress.step if status.progress else 0
    total = status.progress.total_steps if status.progress else None
    steps = f"step {step}" + (f" of {total}" if total else "")
    return f"failed at {steps}" if status.phase is Phase.FAILED else f"is at {steps}"
