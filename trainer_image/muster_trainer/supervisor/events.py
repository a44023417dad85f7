"""Reading what a process says about itself, and keeping it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from muster_trainer.checkpoint.documents import shallow
from muster_trainer.contract import BadConfiguration, ReplicaEnv

Event = dict[str, Any]

LONGEST_LINE = 1 << 20
CHUNK = 65536
DEEPEST = 16  # levels of an event: the coordinator takes 200 in all
LARGEST_WHOLE = 2**53  # what JSON readers in general keep exact
LARGEST_NUMBER = 1e300
CONTRACT = frozenset({"fingerprint", "phase", "resumed", "step", "commit", "evaluation", "pace", "measurement", "notice", "error"})
"""The events of the contract. A process that has sent one of them speaks the contract: its exit codes have the contract's meaning."""
LARGEST_RANK = 2**31 - 1
LONGEST_TIME = 1e9  # seconds
LATEST = 1e11  # Unix seconds


class EventReader:
    """The events of one process, from the reading end of its pipe."""

    def __init__(self, descriptor: int, rank: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.rank = rank
        self._rest = b""
        self.open = True
        self.malformed = 0
        self.speaks = False
        """Whether an event of the contract has arrived."""

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> list[Event]:
        """The events that have arrived; at the end of the pipe `open` turns False. `malformed` counts other lines."""
        return self._split(self._take() or b"")

    def drain(self) -> list[Event]:
        """All that is still in the pipe, whether or not some process holds its other end."""
        events: list[Event] = []
        while self.open and (chunk := self._take()) is not None:
            events += self._split(chunk)
        return events

    def _take(self) -> bytes | None:
        """What is in the pipe, None where nothing is; its end counts as the end of a line."""
        try:
            chunk = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return None
        self.open = bool(chunk)
        return chunk or b"\n"

    def _split(self, chunk: bytes) -> list[Event]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
            self.malformed += 1
        return [event for line in lines if line.strip() and (event := self._parse(line)) is not None]

    def _parse(self, line: bytes) -> Event | None:
        try:
            event = json.loads(line, parse_constant=lambda _: None)
            if rb"\ud" in line.lower():  # half of a surrogate pair is no text: the coordinator would refuse every report that holds it
                event = json.loads(json.dumps(event, ensure_ascii=False).encode(errors="replace"))
        except (ValueError, RecursionError):
            event = None
        if not shallow(event, depth=DEEPEST):
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            self.malformed += 1
            return None
        self.speaks = self.speaks or event["event"] in CONTRACT
        if not 0 <= (number(event.get("time")) or -1) <= LATEST:
            event["time"] = time.time()
        if not 0 <= (-1 if (rank := whole(event.get("rank"))) is None else rank) <= LARGEST_RANK:
            event["rank"] = self.rank
        return event


def whole(value: object) -> int | None:
    """A whole number from outside that is safe to hand on, else None."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_WHOLE:
        return value
    return None


def number(value: object) -> float | None:
    """A finite number from outside as a float, else None."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER:
        return float(value)
    return None


def duration(value: object) -> float | None:
    """A number of seconds from outside, else None."""
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds <= LONGEST_TIME else None


class EventLog:
    """`events.jsonl` of the replica. A reader sees a line as soon as `append` returns."""

    def __init__(self, replica: ReplicaEnv) -> None:
        """Raises BadConfiguration where the state folder cannot be made or written."""
        self._origin = {"role": replica.role, "index": replica.index, "attempt": replica.attempt}
        self._torn = False
        path = replica.state_dir / "events.jsonl"
        try:
            replica.state_dir.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadConfiguration(
                f"MUSTER_STATE_DIR: {replica.state_dir} cannot be written ({error.strerror}); name a writable folder"
            ) from None

    def append(self, events: list[Event]) -> str | None:
        """Write `events`; give back what went wrong, if anything did. A full disk must not end the training."""
        data = b"".join(json.dumps({**event, **self._origin}).encode() + b"\n" for event in events)
        if self._torn:
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
                self._torn = bool(data)
        except OSError as error:
            return f"events are being lost: {error.strerror}"
        return None
