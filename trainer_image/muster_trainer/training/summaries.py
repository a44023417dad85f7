"""TensorBoard summaries. The writer of the `tensorboard` package writes them in the same way for all frameworks.

Each attempt writes its own file, which begins with a session-start event at its first step. TensorBoard then drops values of older
attempts from that step on, so that it shows a repeated step only once.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from muster_contract.notices import NoticeReason

_FLUSH_SECONDS = 5


def import_writer() -> None:
    """Imports the writer of summaries, which takes a second. Raises ImportError if `tensorboard` is not installed."""
    # tensorboard.compat imports TensorFlow if it is installed, unless this module exists.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    importlib.import_module("tensorboard.summary.writer.event_file_writer")


class Summaries:
    """Scalars by step. Without a directory it writes nothing. If writing fails, it calls `notice` once and writes nothing more."""

    def __init__(self, directory: Path | None, *, attempt: int, first_step: int, notice: Callable[[NoticeReason, str], None]) -> None:
        self._writer: Any = None
        self._directory, self._notice = directory, notice
        if directory is not None:
            with self._trying():
                self._open(directory, attempt, first_step)

    def _open(self, directory: Path, attempt: int, first_step: int) -> None:
        import_writer()
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(directory), flush_secs=_FLUSH_SECONDS, filename_suffix=f".{attempt:04d}")
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=first_step, session_log=start))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes `scalars` at `step`, the number of steps done."""
        if self._writer is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        with self._trying():
            values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        if self._writer is not None:
            with self._trying():
                self._writer.close()

    @contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except (ImportError, OSError) as error:
            self._writer = None
            message = f"no TensorBoard summaries are written to {self._directory}: {error}"
            self._notice(NoticeReason.SUMMARIES_FAILED, message)
