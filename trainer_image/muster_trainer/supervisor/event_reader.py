"""Reads the events of a process and appends them to `events.jsonl`."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any

from muster_contract.environment import ReplicaEnvironment
from muster_contract.errors import BadConfiguration
from muster_contract.events import EVENT_NAMES, MAX_RANK, MAX_TIME, Event, decode_event
from muster_trainer.checkpoint.documents import shallow

LONGEST_LINE = 1 << 20
CHUNK = 65536
MOST_DRAINED = 8 << 20
"""The most bytes that `drain` reads, more than a pipe or a connection holds. A process that writes without end must not block the
supervisor."""
DEEPEST = 16  # levels of nesting in an event; readers of events.jsonl accept 200


@dataclass(frozen=True)
class Line:
    """A line of a process, with its time and rank, and the event in it."""

    document: dict[str, Any]
    event: Event


class EventReader:
    """Reads the events of one process from its pipe."""

    def __init__(self, descriptor: int, rank: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.rank = rank
        self._rest = b""
        self.open = True
        self.malformed = 0
        """The number of lines that are not JSON objects with a name."""
        self.uses_contract = False
        """Whether the process has sent an event of the contract. If so, its exit codes have the meaning of the contract."""

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> list[Line]:
        """The lines that have arrived. Sets `open` to False at the end of the pipe."""
        return self._split(self._take() or b"")

    def drain(self) -> list[Line]:
        """All lines that are in the pipe, even if another process holds its writing end. Lines that are written meanwhile may remain."""
        lines: list[Line] = []
        remaining = MOST_DRAINED
        while self.open and remaining > 0 and (chunk := self._take()) is not None:
            remaining -= len(chunk)
            lines += self._split(chunk)
        return lines

    def _take(self) -> bytes | None:
        """The content of the pipe; None if it is empty. The end of the pipe also ends a line."""
        try:
            chunk = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return None
        self.open = bool(chunk)
        return chunk or b"\n"

    def _split(self, chunk: bytes) -> list[Line]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
            self.malformed += 1
        return [parsed for line in lines if line.strip() and (parsed := self._parse(line)) is not None]

    def _parse(self, line: bytes) -> Line | None:
        try:
            document = json.loads(line, parse_constant=lambda _: None)
            if rb"\ud" in line.lower():  # half a surrogate pair cannot be encoded, and the operator refuses a report with one
                document = json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or not isinstance(document.get("event"), str) or not shallow(document, depth=DEEPEST):
            self.malformed += 1
            return None
        self.uses_contract = self.uses_contract or document["event"] in EVENT_NAMES
        if not _is_within(document.get("time"), MAX_TIME):
            document["time"] = time.time()
        if not isinstance(document.get("rank"), int) or not _is_within(document["rank"], MAX_RANK):
            document["rank"] = self.rank
        return Line(document, decode_event(document))


def _is_within(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


class EventLog:
    """The file `events.jsonl` of the replica. Readers see an event when `append` has returned."""

    def __init__(self, replica: ReplicaEnvironment) -> None:
        """Opens the file. Raises BadConfiguration if the state folder cannot be created or written."""
        self._origin = {"role": replica.role, "index": replica.index, "attempt": replica.attempt}
        self._torn = False
        path = replica.state_dir / "events.jsonl"
        try:
            replica.state_dir.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadConfiguration(f"MUSTER_STATE_DIR: {path} cannot be written ({error.strerror}); name a writable folder") from None

    def close(self) -> None:
        os.close(self._descriptor)

    def append(self, lines: list[Line]) -> str | None:
        """Appends the lines. Returns the message of an error or None. It does not raise, because a full disk must not end the training."""
        data = b"".join(json.dumps({**line.document, **self._origin}).encode() + b"\n" for line in lines)
        if self._torn:
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
                self._torn = bool(data)
        except OSError as error:
            return f"events are being lost: {error.strerror}"
        return None
