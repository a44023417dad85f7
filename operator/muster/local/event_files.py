"""Reads the events that supervisors write into a run directory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from muster.local.files import open_regular
from muster_contract.events import Event, decode_event

MOST_EVENT_TEXT = 1 << 30
"""The number of characters of a file of events that are read."""
MOST_INVALID = 10_000
"""The number of lines without an event after which the rest of a file is not read. A supervisor writes none but a last one, if it is
killed."""
_LONGEST_LINE = 8 << 20
_LINE = re.compile(rf"[^\n]{{1,{_LONGEST_LINE}}}")


def recorded_events(run: Path) -> Iterator[Event]:
    """The events of a run directory, in the order in which each replica wrote them. Omits lines without a valid event, and files of another
    kind."""
    for path in sorted(run.glob("attempts/*/*/events.jsonl")):
        with suppress(OSError), os.fdopen(open_regular(path), encoding="utf-8", errors="replace", newline="\n") as file:
            yield from _events(_lines(file))


def events_in(text: str) -> Iterator[Event]:
    """The events in the text of an `events.jsonl`. Omits lines without a valid event, and all that follows MOST_INVALID of them."""
    return _events(line[0] for line in _LINE.finditer(text))  # not splitlines: the list of a file of empty lines takes eight times its size


def _lines(file: TextIO) -> Iterator[str]:
    """The lines of a file, one at a time, because a file may be large. Nothing follows a line that is too long: no supervisor wrote it."""
    left = MOST_EVENT_TEXT
    while left > 0 and (line := file.readline(_LONGEST_LINE)):
        left -= len(line)
        yield line
        if len(line) == _LONGEST_LINE:
            return


def _events(lines: Iterable[str]) -> Iterator[Event]:
    invalid = 0
    for line in lines:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None  # the last line of a killed writer may be cut
        if isinstance(document, dict) and _is_recorded(document):
            yield decode_event(document)
        elif (invalid := invalid + 1) == MOST_INVALID:
            return


def _is_recorded(document: dict[str, object]) -> bool:
    """Whether a supervisor wrote the event: it has a name, and its time, replica and attempt are within their bounds."""
    origin = decode_event({**document, "event": ""})
    decoded = (origin.time, origin.role, origin.index, origin.attempt)
    return isinstance(document.get("event"), str) and decoded == tuple(map(document.get, ("time", "role", "index", "attempt")))
