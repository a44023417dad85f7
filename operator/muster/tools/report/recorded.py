"""Reads the history of a job that supervisors wrote beside its checkpoints (muster_contract.history).

The training code of the job can write to the same folder. So files are read within bounds, links are not followed, and other content is
omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from muster.api.status import AttemptRecord, Phase, Progress, Reason, TrainingJobStatus
from muster.local.event_files import events_in
from muster.tools.report.history import History, ReportError, history_of
from muster.tools.report.storage import Folder, Storage, storage_of
from muster_contract.checkpoint_layout import HISTORY, Fence
from muster_contract.codes import ExitCode
from muster_contract.events import Event
from muster_contract.history import (
    EVENTS,
    LOG,
    LOG_LINES,
    MOST_EVENT_BYTES,
    MOST_LOG_BYTES,
    MOST_RECORD_BYTES,
    RECORD,
    STORED_ATTEMPTS,
    ReplicaRecord,
)
from muster_contract.text import printable
from muster_contract.wire import WireError, parse

MOST_REPLICAS = 1024
"""The number of replicas of an attempt that are read."""
MOST_BYTES = 16 << 20
"""The number of bytes of events and logs of a job that are read. The newest attempts come first."""
MOST_BRIEFLY = 4


@dataclass(frozen=True)
class ReplicaFiles:
    """The files of one replica from one attempt."""

    record: ReplicaRecord
    events: tuple[Event, ...]
    log: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.record.role}-{self.record.index}"


@dataclass(frozen=True)
class Recorded:
    """The files of all replicas of one job, by attempt and replica. There is at least one replica."""

    replicas: tuple[ReplicaFiles, ...]

    @property
    def last(self) -> list[ReplicaFiles]:
        """The replicas of the newest attempt."""
        newest = max(each.record.attempt for each in self.replicas)
        return [each for each in self.replicas if each.record.attempt == newest]

    @property
    def created(self) -> datetime:
        return self.replicas[0].record.job_created

    @property
    def history(self) -> History:
        return history_of(event for each in self.replicas for event in each.events)

    @property
    def has_every_step(self) -> bool:
        return all(each.record.every_step for each in self.replicas)

    @property
    def state(self) -> str:
        """How the last attempt ended, in a few words."""
        termination = [each.record.termination for each in self.last]
        failed = next((each for each in termination if each is not None and each.code != ExitCode.COMPLETED), None)
        if failed is not None and failed.code == ExitCode.PREEMPTED:
            return "Stopped"  # by whoever deleted the job, or by an eviction: the replicas cannot tell
        if failed is not None:
            return f"Ended ({failed.reason or failed.code})"
        return Phase.SUCCEEDED.value if all(termination) else "Ended"

    def status(self) -> TrainingJobStatus:
        """The part of a status that follows from the records."""
        attempts: dict[int, list[ReplicaRecord]] = {}
        for each in self.replicas:
            attempts.setdefault(each.record.attempt, []).append(each.record)
        newest = [each.record.termination for each in self.last if each.record.termination is not None]
        step = max((termination.step for termination in newest if termination.step is not None), default=None)
        loss = next((termination.loss for termination in newest if termination.step == step and termination.loss), None)
        return TrainingJobStatus(
            phase=Phase.SUCCEEDED if self.state == Phase.SUCCEEDED.value else Phase.FAILED,
            attempt=max(attempts),
            progress=None if step is None else Progress(step=step, loss=loss and loss[:32]),
            attempts=tuple(_attempt(number, attempts[number]) for number in sorted(attempts)[-STORED_ATTEMPTS:]),
        )


def read_recorded(root: Path | Storage, namespace: str, name: str, *, created: datetime | None = None, brief: bool = False) -> Recorded:
    """The history of a job, in the folder with this name in the checkpoint storage `root`: of the job that was created then, or else of the
    newest one. With `brief`, it has only how some replicas of the newest attempt ended.

    Raises ReportError if there is nothing.
    """
    replicas: list[ReplicaFiles] = []
    storage = storage_of(root)
    problem = ""
    try:
        with storage.folder(namespace, name, HISTORY) as history:
            fences = sorted(fence for each in history.names() if (fence := Fence.parse(each)) is not None)
            creation = created.replace(microsecond=0) if created is not None else fences[-1].created if fences else None
            most = 1 if brief else STORED_ATTEMPTS
            own = [fence for fence in fences if fence.created == creation][-most:]
            reading = _Reading(MOST_BRIEFLY if brief else MOST_REPLICAS, 0 if brief else MOST_BYTES)
            for fence in reversed(own):  # if there is too much, the oldest is omitted
                replicas[:0] = reading.attempt(history, fence)
    except FileNotFoundError:
        pass  # what could be read is shown
    except OSError as error:
        problem = f": {error.strerror or error}"
    if not replicas:
        where = f"{storage}/{namespace}/{name}"
        raise ReportError(f"{where}: has no history of the job{problem or '; supervisors write it when an attempt has ended'}")
    return Recorded(tuple(replicas))


def _attempt(number: int, records: Sequence[ReplicaRecord]) -> AttemptRecord:
    first = min(
        (record for record in records if record.termination is not None and record.termination.code != ExitCode.COMPLETED),
        key=lambda record: (record.termination.ended_at if record.termination else None) or record.ended,
        default=None,
    )
    termination = first.termination if first is not None else None
    return AttemptRecord(
        attempt=number,
        start_time=_moment(min(record.began for record in records)),
        end_time=_moment(max(record.ended for record in records)),
        reason=Reason(termination.reason) if termination is not None and termination.reason in set(Reason) else None,
        settled=True,
        replica=f"{first.role}-{first.index}" if first is not None else None,
        message=termination.message if termination is not None else "",
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(seconds, 4e9), UTC)


class _Reading:
    """Reads at most so many replicas of each attempt. `left` is how many bytes of events and logs may still be read."""

    def __init__(self, most: int, remaining_bytes: int) -> None:
        self._most = most
        self._remaining_bytes = remaining_bytes

    def attempt(self, history: Folder, fence: Fence) -> list[ReplicaFiles]:
        """The replicas of one attempt. Raises OSError."""
        replicas = []
        with history.folder(str(fence)) as attempt:
            for name in attempt.names()[: self._most]:
                with suppress(OSError), attempt.folder(name) as folder:
                    replica = self._replica(folder, fence, name)
                    if replica is not None:
                        replicas.append(replica)
        return replicas

    def _replica(self, folder: Folder, fence: Fence, name: str) -> ReplicaFiles | None:
        try:
            record = parse(ReplicaRecord, folder.content(RECORD, MOST_RECORD_BYTES), RECORD)
        except (OSError, ValueError, WireError):
            return None
        if (record.job_created, record.attempt) != (fence.created, fence.attempt) or name != f"{record.role}-{record.index}":
            return None
        events = events_in(self._text(folder, EVENTS, MOST_EVENT_BYTES))
        own = (event for event in events if (event.role, event.index, event.attempt) == (record.role, record.index, record.attempt))
        log = self._text(folder, LOG, MOST_LOG_BYTES).splitlines()[-LOG_LINES:]
        return ReplicaFiles(record, tuple(own), tuple(printable(line, keep="\t") for line in log))

    def _text(self, folder: Folder, name: str, limit: int) -> str:
        """The content of a file. Empty if the file is too large, or of another kind."""
        try:
            content = folder.content(name, min(limit, self._remaining_bytes))
        except (OSError, ValueError):
            return ""
        self._remaining_bytes -= len(content)
        return content.decode(errors="replace")
