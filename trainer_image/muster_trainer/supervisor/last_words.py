"""What a replica says when it ends. Pure, but for `write`."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_trainer.contract import TrainerError, reason_of
from muster_trainer.supervisor.signals import signal_name

LONGEST = 4096  # bytes; Kubernetes keeps no more of a termination message
LONGEST_PATH = 200  # characters, of up to 12 bytes each in JSON
MOST_METRICS = 1024  # bytes for those of an evaluation


@dataclass(frozen=True)
class LastWords:
    """`code` is the meaning and the supervisor's exit code; `exit_code` and `signal` are what the first failing
    process, of rank `rank`, really ended with, at `ended_at` (Unix seconds). `commit` is (step, path) of the last commit of
    this attempt, `loss` that of `step`, and `evaluation` the newest one (step, metrics by name)."""

    code: int
    message: str
    attempt: int | None
    rank: int | None = None
    step: int | None = None
    commit: tuple[int, str] | None = None
    resumed_step: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    ended_at: float | None = None
    loss: str | None = None
    evaluation: tuple[int, Mapping[str, float]] | None = None

    @classmethod
    def of_error(cls, error: TrainerError, attempt: int | None) -> LastWords:
        """For an end before any process ran."""
        return cls(code=error.code, message=str(error), attempt=attempt)

    def as_json(self) -> dict[str, Any]:
        return {
            "code": int(self.code),
            "reason": reason_of(self.code),
            "message": self.message[:LONGEST],
            "rank": self.rank,
            "step": self.step,
            "commit": None if self.commit is None else _commit(*self.commit),
            "resumedStep": self.resumed_step,
            "attempt": self.attempt,
            "exitCode": self.exit_code,
            "signal": None if self.signal is None else signal_name(self.signal),
            "endedAt": self.ended_at,
            "loss": self.loss,
            "evaluation": None if self.evaluation is None else _evaluation(*self.evaluation),
        }


def _commit(step: int, path: str) -> dict[str, Any]:
    return {"step": step, "path": path[:LONGEST_PATH]}


def _evaluation(step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
    """As many metrics as there is room for."""
    kept: dict[str, float] = {}
    for name, value in sorted(metrics.items()):
        if len(json.dumps({**kept, name: value})) <= MOST_METRICS:
            kept[name] = value
    return {"step": step, "metrics": kept}


def encode(words: LastWords) -> bytes:
    """One line of ASCII, with its newline at most 4096 bytes; the message is cut as far as that needs."""
    document = words.as_json()
    line = _line(document, words.message)
    if len(line) <= LONGEST:
        return line
    too_long = bisect_left(range(len(words.message)), True, key=lambda kept: len(_line(document, words.message[:kept] + "…")) > LONGEST)
    return _line(document, words.message[: too_long - 1] + "…")


def _line(document: dict[str, Any], message: str) -> bytes:
    return json.dumps({**document, "message": message}).encode("ascii") + b"\n"


def write(words: LastWords, path: Path) -> str | None:
    """Put the last words where the kubelet, or the local backend, reads them; give back what went wrong, if anything.

    In one write to the file itself: a termination log is a mount of its own and cannot be replaced by a rename.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, encode(words))
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"the last words cannot be written to {path}: {error.strerror}"
    return None
