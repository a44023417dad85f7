"""The run directory: all that one run of one job leaves on disk, and what a later `muster run` may do with it.

```
job.yaml         the job as it was last run, with its uid and creation time
status.json      its status, written before anything is done that follows from it
processes.json   the replicas that run now, with their processes by rank
lock             held by the `muster run` that owns the directory; its pid is inside
attempts/<n>/<role>-<index>/   log.txt, events.jsonl, termination.json of a replica
checkpoints/, volumes/<claim>/, tensorboard/
```
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

import yaml
from pydantic import ValidationError

from muster.api.job import TrainingJob
from muster.api.spec import TrainingJobSpec
from muster.api.status import Phase, TrainingJobStatus
from muster.local.errors import ConfigurationError, FieldError, StorageError

FIXED_FIELDS = (
    "strategy",
    "trainer.task",
    "trainer.module",
    "trainer.script",
    "trainer.command",
    "trainer.config.seed",
    "batch.globalSize",
)
"""What makes the training another one: a run goes on only where these are as they were."""


@dataclass(frozen=True)
class RunDirectory:
    """A directory whose lock this process holds."""

    path: Path
    lock: IO[str]

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def volume(self, claim: str) -> Path:
        """The folder that stands for a PersistentVolumeClaim."""
        return self.path / "volumes" / claim

    def replica(self, attempt: int, label: str) -> Path:
        """The folder of a replica (`worker-0`) in an attempt."""
        return self.path / "attempts" / str(attempt) / label

    def log(self, attempt: int, label: str) -> Path | None:
        """Where a replica wrote in an attempt: into the folder of the attempt that it was started for, be that an earlier one."""
        logs = (self.replica(number, label) / "log.txt" for number in range(attempt, -1, -1))
        return next((log for log in logs if log.exists()), None)

    def prepare(self, replica: Path) -> None:
        """Makes the folder of a replica that is to start. Raises StorageError where that fails."""
        try:
            replica.mkdir(parents=True, exist_ok=True)
            (replica / "termination.json").unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{replica}: cannot be made: {error.strerror}") from None

    def mark(self, uid: str) -> str:
        """What every process of the run with this uid carries in MUSTER_RUN."""
        return mark_of(self.path, uid)

    def load(self) -> TrainingJob | None:
        """The run that the directory holds, None where it holds none yet. Raises ConfigurationError where it cannot be read."""
        job_file, status_file = self.path / "job.yaml", self.path / "status.json"
        if not job_file.exists():
            return None
        try:
            job = TrainingJob.model_validate(yaml.safe_load(job_file.read_text(encoding="utf-8")))
            if not status_file.exists():
                return job
            return job.with_status(TrainingJobStatus.model_validate_json(status_file.read_text(encoding="utf-8")))
        except (OSError, ValidationError, ValueError, yaml.YAMLError) as error:
            first = str(error).splitlines()[0]
            raise ConfigurationError(
                f"{self.path}: the run in it cannot be read ({first}); move it aside with --fresh, or name another with --run-dir"
            ) from None

    def write_job(self, job: TrainingJob) -> None:
        """Only what the user wrote, and who the run is: defaults are filled in when it is read."""
        written = job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
        self._write("job.yaml", yaml.safe_dump(written, sort_keys=False, allow_unicode=True))

    def write_status(self, status: TrainingJobStatus) -> None:
        self._write("status.json", json.dumps(status.wire(), indent=1))

    def write_processes(self, processes: Sequence[dict[str, Any]]) -> None:
        self._write("processes.json", json.dumps(processes, indent=1))

    def _write(self, name: str, text: str) -> None:
        """Replaces the file in one step; a reader, or a crash, sees the old or the new content and nothing between."""
        target, draft = self.path / name, self.path / f".{name}.new"
        try:
            with draft.open("w", encoding="utf-8") as file:
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


def mark_of(path: Path, uid: str) -> str:
    """The mark of the processes of a run: its uid and the identity of its directory on this machine.

    A copy of a directory holds the same uid. Without the identity, a run of the copy would end the processes of the original. A directory
    that is renamed keeps its identity.
    """
    found = path.stat()
    return f"{uid}/{found.st_dev:x}-{found.st_ino:x}"


def open_run_directory(path: Path) -> RunDirectory:
    """Makes the directory where needed and takes its lock.

    Raises ConfigurationError where another run has the lock, where the directory is not writable, or holds something else.
    """
    try:
        if path.is_dir() and not (path / "lock").exists() and any(path.iterdir()):
            raise ConfigurationError(f"{path}: holds files, but no run; name an empty or new directory with --run-dir")
        probe_writable(path)
        return RunDirectory(path, _locked(path))
    except OSError as error:
        raise ConfigurationError(f"{path}: the run directory cannot be written: {error.strerror}; name another with --run-dir") from None


def _locked(path: Path) -> IO[str]:
    lock = (path / "lock").open("a+", encoding="utf-8")
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
    """Makes the folder where needed, writes a few bytes into it and removes them. Raises OSError where that fails."""
    path.mkdir(parents=True, exist_ok=True)
    probe = path / f".probe-{os.getpid()}"
    try:
        with probe.open("w") as file:
            file.write("muster\n")
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)


def move_aside(directory: RunDirectory) -> tuple[RunDirectory, Path]:
    """Renames the directory to the first free of `<path>.1`, `<path>.2`, ...; gives a new empty one, locked, and where the old one is."""
    number = 1
    while (aside := directory.path.with_name(f"{directory.path.name}.{number}")).exists():
        number += 1
    directory.path.rename(aside)
    directory.release()
    return open_run_directory(directory.path), aside


def new_run(job: TrainingJob, now: datetime, *, replaces: TrainingJob | None = None) -> TrainingJob:
    """The job with the identity of a new run.

    A run that replaces another starts over, even in storage that both share, and is younger than it: the fence of an attempt
    counts creation in whole seconds.
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
    """The job as it is in its file now, with identity and status of the run that it continues.

    Raises FieldError for a field which may not change within a run.
    """
    for field in FIXED_FIELDS:
        now, before = _field(job.spec, field), _field(run.spec, field)
        if now != before:
            raise FieldError(
                f"spec.{field}: the run in progress has {_shown(before)}, the file has {_shown(now)}; "
                "a run keeps it to its end: change it back, or start over with --fresh"
            )
    spec = job.spec
    if spec.checkpoint.resume == "Auto" and run.spec.checkpoint.resume == "Never":
        spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"resume": "Never"})})
    metadata = run.metadata.model_copy(update={"generation": run.metadata.generation + (spec != run.spec)})
    return job.model_copy(update={"metadata": metadata, "spec": spec, "status": run.status})


def _field(spec: TrainingJobSpec, path: str) -> Any:
    value: Any = spec.wire()
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _shown(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def standing(run: TrainingJob) -> str:
    """How far the run in a directory is, in a few words."""
    status = run.status
    if status.phase is Phase.SUCCEEDED:
        return "finished"
    step = status.progress.step if status.progress else 0
    total = status.progress.total_steps if status.progress else None
    place = f"at step {step}" + (f" of {total}" if total else "")
    return f"failed {place}" if status.phase is Phase.FAILED else f"unfinished {place}"
