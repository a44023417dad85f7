"""Records the events of a replica in an attempt, and writes them beside the checkpoints when the attempt has ended.

The history is for people who examine the job later, so it must not disturb the job. A thread writes it. The next attempt does not wait for
the write, and the end of the replica waits for a limited time. If a write fails, the job does not fail, and the log has the error.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from muster_contract.checkpoint_layout import HISTORY, Fence
from muster_contract.environment import ReplicaEnvironment
from muster_contract.errors import TrainerError
from muster_contract.events import EVENT_NAMES, Commit, Event, Load, Pace, PhaseEvent, Step, encode_event
from muster_contract.history import (
    EVENTS,
    LOG,
    LOG_LINE,
    LOG_LINES,
    MOST_EVENT_BYTES,
    RECORD,
    STORED_ATTEMPTS,
    ReplicaRecord,
)
from muster_contract.reports import TerminationMessage
from muster_contract.wire import LARGEST_INT, encode
from muster_trainer.supervisor import image
from muster_trainer.supervisor.event_reader import Line
from muster_trainer.supervisor.processes import die_with_parent

MOST_STEPS = 4096
MOST_OTHERS = 256
"""The most events of each other name."""
MOST_LOADS, FEWEST_LOADS = 4096, 16
"""The most samples of the load, of all replicas together. A replica may have FEWEST_LOADS in any case."""
LONGEST_EVENT = 4096  # bytes; an event with the layers of a large pipeline may be longer
FOLDER_SECONDS, STORE_SECONDS = 1.0, 10.0  # how long a replica waits for its history at its end, after the last report
UPLOAD_SECONDS = 120.0
EXCLUDED = frozenset({Pace.event, PhaseEvent.event})
"""Frequent events that no report shows."""


class Series:
    """At most `most` events of one name, and one of each rank and step. If there are more, it has the newest event, and those whose step is
    a multiple of `stride`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[tuple[int, int], bytes] = {}
        """By rank and step."""
        self._newest: bytes | None = None
        self._count = 0
        self.stride = 1

    def add(self, event: Event, line: bytes) -> None:
        """Adds an event. For an event without a step, its number takes the place of the step."""
        self._count += 1
        number = event.step if isinstance(event, Step | Commit) else self._count
        self._newest = line
        if number % self.stride == 0:
            self._lines.pop((event.rank, number), None)
            self._lines[event.rank, number] = line
        while len(self._lines) > self._most and self.stride < LARGEST_INT:
            self.stride *= 2
            self._lines = {key: line for key, line in self._lines.items() if key[1] % self.stride == 0}
        if len(self._lines) > self._most:  # a program may report step 0 of thousands of ranks
            del self._lines[next(iter(self._lines))]

    def lines(self) -> list[bytes]:
        lines = list(self._lines.values())
        if self._newest is not None and (not lines or lines[-1] is not self._newest):
            lines.append(self._newest)
        return lines


class AttemptRecord:
    """The events of a replica in one attempt, limited in number and size."""

    def __init__(self, replica: ReplicaEnvironment) -> None:
        self._replica = replica
        self._series: dict[str, Series] = {}
        self._began = time.time()

    def add(self, lines: Iterable[Line]) -> None:
        """Adds lines that the processes have sent."""
        for line in lines:
            name = line.document["event"]
            if name not in EVENT_NAMES or name in EXCLUDED:
                continue
            origin = {"role": self._replica.role, "index": self._replica.index, "attempt": self._replica.attempt}
            encoded = json.dumps({**encode_event(line.event), **origin}).encode() + b"\n"
            if len(encoded) <= LONGEST_EVENT:
                series = self._series.setdefault(name, Series(self._most(name)))
                series.add(line.event, encoded)

    def _most(self, name: str) -> int:
        """The most events of a name. Readers read a limited number of bytes of all replicas, so many replicas have fewer samples each."""
        replicas = (self._replica.world_size or 1) // self._replica.processes or 1
        most = {Step.event: MOST_STEPS, Load.event: max(FEWEST_LOADS, min(MOST_OTHERS, MOST_LOADS // replicas))}
        return most.get(name, MOST_OTHERS)

    def files(self, termination: TerminationMessage, output: Sequence[str]) -> dict[str, bytes]:
        """The content of each file by name. The record is the last file."""
        replica = self._replica
        steps = self._series.get(Step.event)
        record = ReplicaRecord(
            job=replica.job,
            job_uid=replica.job_uid,
            job_created=replica.job_created,
            strategy=replica.strategy,
            role=replica.role,
            index=replica.index,
            attempt=replica.attempt,
            began=self._began,
            ended=time.time(),
            every_step=steps is None or steps.stride == 1,
            termination=termination,
        )
        log = "".join(f"{line[:LOG_LINE]}\n" for line in output[-LOG_LINES:])
        return {
            EVENTS: self._events(),
            LOG: log.encode(errors="replace"),
            RECORD: json.dumps(encode(record)).encode(),
        }

    def _events(self) -> bytes:
        """The events of each name in their order. Short series come first, because steps may fill the remaining space."""
        data = bytearray()
        for series in sorted(self._series.values(), key=lambda series: len(series.lines())):
            for line in series.lines():
                if len(data) + len(line) <= MOST_EVENT_BYTES:
                    data += line
        return bytes(data)


_Write = Callable[[str, Fence, str, dict[str, bytes]], None]
"""A function that writes (history, fence, replica, files). Raises OSError and TrainerError."""


class HistoryWriter:
    """Writes the records of a replica, each in its own thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._threads: list[threading.Thread] = []
        self._uploads: set[int] = set()
        self._seconds = FOLDER_SECONDS

    @property
    def uploads(self) -> frozenset[int]:
        """The pids of the processes that write to an object store. They are not training processes."""
        return frozenset(self._uploads)

    def write(self, replica: ReplicaEnvironment, files: dict[str, bytes], environ: Mapping[str, str]) -> None:
        """Starts a thread that writes the files of an attempt. `environ` has the credentials of an object store."""
        directory = replica.checkpoint_dir
        if directory is None:
            return
        if "://" in directory:
            self._seconds = STORE_SECONDS
            write: _Write = partial(self._upload, dict(environ))
            history = f"{directory.rstrip('/')}/{HISTORY}"
        else:
            write, history = _write_files, str(Path(directory) / HISTORY)
        thread = threading.Thread(target=self._write, args=(write, replica, history, files), name="history", daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self, seconds: float | None = None) -> None:
        """Waits until all files are written. The default of `seconds`, the longest wait, depends on the storage."""
        deadline = time.monotonic() + (self._seconds if seconds is None else seconds)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._uploads:
            self._say(f"the history is not in its storage after {self._seconds:.0f} s, and may be incomplete")

    def _write(self, write: _Write, replica: ReplicaEnvironment, history: str, files: dict[str, bytes]) -> None:
        try:
            write(history, Fence(replica.job_created, replica.attempt), f"{replica.role}-{replica.index}", files)
        except (OSError, TrainerError) as error:
            reason = getattr(error, "strerror", None) or error
            self._say(f"the history of attempt {replica.attempt} cannot be written to {history}: {reason}")

    def _upload(self, environ: dict[str, str], history: str, fence: Fence, name: str, files: dict[str, bytes]) -> None:
        """Writes to an object store, in another process, because a supervisor has the standard library only."""
        upload = subprocess.Popen(
            [image.python_of(environ, field="image"), "-P", "-m", "muster_trainer.checkpoint.write_history", history, str(fence), name],
            env=image.with_library(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )
        self._uploads.add(upload.pid)
        text = json.dumps({each: content.decode(errors="replace") for each, content in files.items()})
        try:
            output, _ = upload.communicate(text.encode(), timeout=UPLOAD_SECONDS)
        except subprocess.TimeoutExpired as error:
            with suppress(ProcessLookupError):
                os.kill(upload.pid, signal.SIGKILL)
            raise OSError(errno.ETIMEDOUT, f"the storage has not answered in {UPLOAD_SECONDS:.0f} s") from error
        finally:
            self._uploads.discard(upload.pid)
        # The exit code is not used, because reap() may have collected the process.
        last = output.decode(errors="replace").strip().rpartition("\n")[2]
        if last != "written":
            raise OSError(errno.EIO, last[:LOG_LINE] or "the process that writes it was ended")


def _write_files(folder: str, fence: Fence, name: str, files: dict[str, bytes]) -> None:
    history = Path(folder)
    replica = history / str(fence) / name
    replica.mkdir(parents=True, exist_ok=True)
    for each, content in files.items():
        _write_file(replica / each, content)
    _remove_old(history, fence)


def _write_file(path: Path, content: bytes) -> None:
    """Replaces the file. A reader sees either the old or the new content."""
    draft = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()  # otherwise a full disk would stay full
        raise


def _remove_old(history: Path, fence: Fence) -> None:
    """Removes old attempts: of this attempt and those before it, the newest STORED_ATTEMPTS stay. Other replicas do the same."""
    attempts = sorted((each for each in os.listdir(history) if (older := Fence.parse(each)) and older <= fence), reverse=True)
    for name in attempts[STORED_ATTEMPTS:]:
        shutil.rmtree(history / name, ignore_errors=True)
