"""Writes the last words of a replica: its termination message."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

from muster_contract.codes import reason_of
from muster_contract.errors import TrainerError
from muster_contract.events import Evaluation
from muster_contract.reports import MAX_LAST_WORDS, LastWords
from muster_contract.run_state import RunState
from muster_contract.wire import encode

LONGEST_PATH = 200  # characters, of up to 12 bytes each in JSON
MOST_METRICS = 1024  # bytes for the metrics of an evaluation


def last_words(code: int, message: str, attempt: int | None, state: RunState | None = None) -> LastWords:
    """The last words of an attempt that ended in `state`. Without a state, those of an attempt that did nothing."""
    words = LastWords(code=int(code), reason=reason_of(code), message=message[:MAX_LAST_WORDS], attempt=attempt)
    if state is None:
        return words
    commit = state.checkpoint
    return replace(
        words,
        step=state.progress.step if state.progress else None,
        loss=state.progress.loss if state.progress else None,
        commit=replace(commit, path=commit.path[:LONGEST_PATH]) if commit else None,
        resumed_step=state.resumed.step if state.resumed else None,
        evaluation=_shortened(state.evaluation) if state.evaluation else None,
    )


def last_words_of(error: TrainerError, attempt: int | None) -> LastWords:
    """The last words of an attempt that ended by `error` before any process ran."""
    return replace(last_words(error.code, str(error), attempt), reason=error.reason)


def _shortened(evaluation: Evaluation) -> Evaluation:
    """The evaluation with as many metrics as fit into MOST_METRICS bytes."""
    metrics: dict[str, float] = {}
    for name, value in sorted(evaluation.metrics.items()):
        if len(json.dumps({**metrics, name: value})) <= MOST_METRICS:
            metrics[name] = value
    return replace(evaluation, metrics=metrics)


def to_line(words: LastWords) -> bytes:
    """One line of ASCII of at most 4096 bytes, including the newline. If it would be longer, the message is shortened. If that is not
    enough, the evaluation, the loss and the commit are left out, in this order."""
    shorter = replace(words, evaluation=None), replace(words, evaluation=None, loss=None)
    least = replace(words, evaluation=None, loss=None, commit=None)
    words = next((each for each in (words, *shorter) if _fits(_cut(each, 0))), least)
    if _fits(words):
        return _line(words)
    too_long = bisect_left(range(len(words.message)), True, key=lambda length: not _fits(_cut(words, length)))
    return _line(_cut(words, too_long - 1))


def _cut(words: LastWords, length: int) -> LastWords:
    return replace(words, message=words.message[:length] + "…") if len(words.message) > length else words


def _fits(words: LastWords) -> bool:
    return len(_line(words)) <= MAX_LAST_WORDS


def _line(words: LastWords) -> bytes:
    return json.dumps(encode(words)).encode("ascii") + b"\n"


def write(words: LastWords, path: Path) -> str | None:
    """Writes the last words to the file that the kubelet or the local runner reads. Returns the message of an error, or None.

    It writes to the file itself, in one write. A rename cannot replace a termination log, because the file is a mount of its own.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, to_line(words))
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"the last words cannot be written to {path}: {error.strerror}"
    return None
