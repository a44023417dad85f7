"""Reads what supervisors left of a job beside its checkpoints (muster_contract.history).

The training code of the job can write there. So files are read within bounds, links are not followed, and what does not fit is left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from muster.api.status import AttemptRecord, Phase, Progress, Reason, TrainingJobStatus
from muster.report.history import History, ReportError, events_in, history_of
from muster_contract.checkpoint_layout import HISTORY, Fence
from muster_contract.codes import ExitCode
from muster_contract.events import Event
from muster_contract.history import (
    ATTEMPTS_KEPT,
    EVENTS,
    LOG,
    LOG_LINES,
    MOST_EVENT_BYTES,
    MOST_LOG_BYTES,
    MOST_RECORD_BYTES,
    RECORD,
    ReplicaRecord,
)
from muster_contract.text import printable
from muster_contract.wire import WireError, parse

MOST_REPLICAS = 1024
"""Replicas of an attempt that are read."""
MOST_ENTRIES = 10_000
"""Names of a folder that are looked at."""


@dataclass(frozen=True)
class Left:
    """What one replica left of one attempt."""

    record: ReplicaRecord
    events: tuple[Event, ...]
    log: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.record.role}-{self.record.index}"


@dataclass(frozen=True)
class Recorded:
    """What the replicas of one job left, by attempt and replica. There is at least one."""

    replicas: tuple[Left, ...]

    @property
    def last(self) -> list[Left]:
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
        words = [each.record.last_words for each in self.last]
        failed = next((each for each in words if each is not None and each.code != ExitCode.COMPLETED), None)
        if failed is not None:
            return f"Ended ({failed.reason or failed.code})"
        return Phase.SUCCEEDED.value if all(words) else "Ended"

    def status(self) -> TrainingJobStatus:
        """What of a status can be told from the records."""
        attempts: dict[int, list[ReplicaRecord]] = {}
        for each in self.replicas:
            attempts.setdefault(each.record.attempt, []).append(each.record)
        newest = [each.record.last_words for each in self.last if each.record.last_words is not None]
        step = max((words.step for words in newest if words.step is not None), default=None)
        loss = next((words.loss for words in newest if words.step == step and words.loss), None)
        return TrainingJobStatus(
            phase=Phase.SUCCEEDED if self.state == Phase.SUCCEEDED.value else Phase.FAILED,
            attempt=max(attempts),
            progress=None if step is None else Progress(step=step, loss=loss and loss[:32]),
            attempts=tuple(_attempt(number, attempts[number]) for number in sorted(attempts)[-ATTEMPTS_KEPT:]),
        )


def read_recorded(folder: Path, *, created: datetime | None = None) -> Recorded:
    """What is left of the job whose checkpoint folder this is: of the one that was created then, or of the newest of its name.

    Raises ReportError if there is nothing.
    """
    history = folder / HISTORY
    fences = sorted(fence for name in _names(history) if (fence := Fence.parse(name)) is not None)
    wanted = created.replace(microsecond=0) if created is not None else fences[-1].created if fences else None
    own = [fence for fence in fences if fence.created == wanted][-ATTEMPTS_KEPT:]
    replicas = tuple(left for fence in own for left in _replicas(history / str(fence), fence))
    if not replicas:
        raise ReportError(f"{history}: has no history of the job; supervisors write it when an attempt has ended")
    return Recorded(replicas)


def _attempt(number: int, records: Sequence[ReplicaRecord]) -> AttemptRecord:
    first = min(
        (record for record in records if record.last_words is not None and record.last_words.code != ExitCode.COMPLETED),
        key=lambda record: (record.last_words.ended_at if record.last_words else None) or record.ended,
        default=None,
    )
    words = first.last_words if first is not None else None
    return AttemptRecord(
        attempt=number,
        start_time=_moment(min(record.began for record in records)),
        end_time=_moment(max(record.ended for record in records)),
        reason=Reason(words.reason) if words is not None and words.reason in set(Reason) else None,
        settled=True,
        replica=f"{first.role}-{first.index}" if first is not None else None,
        message=words.message if words is not None else "",
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(seconds, 4e9), UTC)


def _replicas(folder: Path, fence: Fence) -> Iterator[Left]:
    for name in _names(folder)[:MOST_REPLICAS]:
        try:
            record = parse(ReplicaRecord, _content(folder / name / RECORD, MOST_RECORD_BYTES), RECORD)
        except (OSError, ValueError, WireError):
            continue
        if (record.job_created, record.attempt) != (fence.created, fence.attempt) or name != f"{record.role}-{record.index}":
            continue
        events = events_in(_text(folder / name / EVENTS, MOST_EVENT_BYTES))
        own = (event for event in events if (event.role, event.index, event.attempt) == (record.role, record.index, record.attempt))
        log = _text(folder / name / LOG, MOST_LOG_BYTES).splitlines()[-LOG_LINES:]
        yield Left(record, tuple(own), tuple(printable(line, keep="\t") for line in log))


def _names(folder: Path) -> list[str]:
    """The names in a folder, sorted. Empty if there is no such folder, or if it is a link."""
    names: list[str] = []
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
                if len(names) == MOST_ENTRIES:
                    break
    except OSError:
        return []
    return sorted(names)


def _text(path: Path, limit: int) -> str:
    try:
        return _content(path, limit).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _content(path: Path, limit: int) -> bytes:
    """The content of a regular file. Raises ValueError for one of another kind, or one that is longer than `limit` bytes."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{path.name} is longer than {limit} bytes")
    return content
