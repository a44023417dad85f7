"""Lines that the bundled trainer prints, and that `muster` reads from the log of a pod when it has no events of the job."""

from __future__ import annotations

import json
import re

from muster_contract.events import Event, decode_event, encode_event

_EPOCH = re.compile(r"(?:\[rank \d{1,9}\] )?epoch \d{1,9} of \d{1,9}: step (\d{1,15}), loss ([^\s,]{1,320})(?:,|$)")
"""The supervisor may have put the rank before the line."""
_MEASUREMENT = "measurement "


def epoch_line(epoch: int, epochs: int, *, step: int, loss: float) -> str:
    """The line after an epoch. More may follow after a comma."""
    return f"epoch {epoch} of {epochs}: step {step}, loss {loss:.4f}"


def read_epoch_line(line: str) -> tuple[int, float] | None:
    """The step and its loss in a line that begins with the result of `epoch_line`. None for other lines."""
    match = _EPOCH.match(line)
    try:
        return (int(match[1]), float(match[2])) if match else None
    except ValueError:
        return None


def measurement_line(measurement: Event) -> str:
    """The line with a measurement, as JSON."""
    return _MEASUREMENT + json.dumps(encode_event(measurement))


def read_measurement_line(line: str) -> Event | None:
    """The measurement in a line that ends with the result of `measurement_line`. None for other lines, also incomplete ones."""
    _, mark, text = line.partition(_MEASUREMENT + "{")
    try:
        return decode_event(json.loads("{" + text)) if mark else None
    except (ValueError, RecursionError):
        return None
