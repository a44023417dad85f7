"""Writes the termination message of a replica."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

from muster_contract.codes import reason_of
from muster_contract.errors import TrainerError
from muster_contract.events import Evaluation
from muster_contract.reports import MAX_TERMINATION_MESSAGE, TerminationMessage
from muster_contract.run_state import RunState
from muster_contract.wire import encode

LONGEST_PATH = 200  # characters, of up to 12 bytes each in JSON
MOST_METRICS = 1024  # bytes for the metrics of an evaluation


def termination_of(code: int, message: str, attempt: int | None, state: RunState | None = None) -> TerminationMessage:
    """The termination message of an attempt that ended in `state`. Without a state, that of an attempt that did nothing."""
    termination = TerminationMessage(code=int(code), reason=reason_of(code), message=message[:MAX_TERMINATION_MESSAGE], attempt=attempt)
    if state is None:
        return termination
    commit = state.checkpoint
    return replace(
        termination,
        step=state.progress.step if state.progress else None,
        loss=state.progress.loss if state.progress else None,
        commit=replace(commit, path=commit.path[:LONGEST_PATH]) if commit else None,
        resumed_step=state.resumed.step if state.resumed else None,
        evaluation=_shortened(state.evaluation) if state.evaluation else None,
    )


def termination_of_error(error: TrainerError, attempt: int | None) -> TerminationMessage:
    """The termination message of an attempt that ended by `error` before any process ran."""
    return replace(termination_of(error.code, str(error), attempt), reason=error.reason)


def _shortened(evaluation: Evaluation) -> Evaluation:
    """The evaluation with as many metrics as fit into MOST_METRICS bytes."""
    metrics: dict[str, float] = {}
    for name, value in sorted(evaluation.metrics.items()):
        if len(json.dumps({**metrics, name: value})) <= MOST_METRICS:
            metrics[name] = value
    return replace(evaluation, metrics=metrics)


def to_line(termination: TerminationMessage) -> bytes:
    """One line of ASCII of at most 4096 bytes, including the newline. If it would be longer, the message is shortened. If that is not
    enough, the evaluation, the loss and the commit are left out, in this order."""
    shorter = replace(termination, evaluation=None), replace(termination, evaluation=None, loss=None)
    least = replace(termination, evaluation=None, loss=None, commit=None)
    termination = next((each for each in (termination, *shorter) if _fits(_cut(each, 0))), least)
    if _fits(termination):
        return _line(termination)
    too_long = bisect_left(range(len(termination.message)), True, key=lambda length: not _fits(_cut(termination, length)))
    return _line(_cut(termination, too_long - 1))


def _cut(termination: TerminationMessage, length: int) -> TerminationMessage:
    return replace(termination, message=termination.message[:length] + "…") if len(termination.message) > length else termination


def _fits(termination: TerminationMessage) -> bool:
    return len(_line(termination)) <= MAX_TERMINATION_MESSAGE


def _line(termination: TerminationMessage) -> bytes:
    return json.dumps(encode(termination)).encode("ascii") + b"\n"


def write(termination: TerminationMessage, path: Path) -> str | None:
    """Writes the termination message to the file that the kubelet or the local runner reads. Returns the message of an error, or None.

    It writes to the file itself, in one write. A rename cannot replace a termination log, because the file is a mount of its own.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, to_line(termination))
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"the termination message cannot be written to {path}: {error.strerror}"
    return None
