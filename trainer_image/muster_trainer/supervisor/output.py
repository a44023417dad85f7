"""Copies the output of the processes to the supervisor's own streams, and stores the last lines of it.

A thread does this, because a write to stdout may block for ever if nothing reads it. Signals, events and reports must not block.
"""

from __future__ import annotations

import os
import select
import selectors
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from muster_trainer.supervisor.processes import Process

TAIL_LINES = 600  # enough for torchrun's report (about 100 lines for 8 workers) and the tracebacks of all workers before it
TAIL_LINE_BYTES = 4096
LONGEST_LINE = 65536
CHUNK = 65536


def say(message: str) -> None:
    """Writes a line of the supervisor to stderr."""
    with suppress(OSError):
        os.write(2, f"muster: {message}\n".encode(errors="replace"))


@dataclass
class Tail:
    """The last lines that a process, or all processes, printed on stdout and stderr. Other threads may read it."""

    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _open_streams: int = 2
    added: int = 0
    """How many lines were added."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, line: bytes, *, prefix: bytes = b"", at: int | None = None) -> None:
        """Adds a line: the last one, or that with the number `at`, if later ones of another stream have come first."""
        shown = (prefix + line.rstrip(b"\r\n").rpartition(b"\r")[2][:TAIL_LINE_BYTES]).decode(errors="replace")
        with self._changed:
            later = 0 if at is None else self.added - at
            self.added += 1
            if len(self._lines) == TAIL_LINES:
                self._lines.popleft()
            self._lines.insert(max(0, len(self._lines) - later), shown)

    def end_of_stream(self) -> None:
        with self._changed:
            self._open_streams -= 1
            self._changed.notify_all()

    def lines(self, seconds: float) -> list[str]:
        with self._changed:
            self._changed.wait_for(lambda: self._open_streams == 0, seconds)
            return list(self._lines)


class Output:
    """The stdout and stderr of all processes of the replica."""

    def __init__(self) -> None:
        self._tails: dict[int, Tail] = {}
        self._all = Tail()
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        """Locked for a look-up in the selector and the read after it. Such a read never waits, because no other thread reads the pipe."""
        self._released: list[_Stream] = []
        self._wake: tuple[int, int] | None = None
        """A pipe that ends the wait of the thread, as long as this runs."""
        self._thread = threading.Thread(target=self._pump, name="output", daemon=True)

    def follow(self, processes: list[Process]) -> None:
        """Begins to copy the output of these processes. Called once, when all are started."""
        self._wake = os.pipe()
        sinks = {1: _Sink(1), 2: _Sink(2)}
        for process in processes:
            tail = self._tails[process.rank] = Tail()
            prefix = b"[rank %d] " % process.rank if len(processes) > 1 else None
            for source, sink in ((process.stdout, sinks[1]), (process.stderr, sinks[2])):
                stream = _Stream(process, sink, (tail, self._all), prefix)
                if source in process.closed:  # by a survivor, in an earlier attempt
                    stream.end()
                else:
                    self._selector.register(source, selectors.EVENT_READ, stream)
        self._selector.register(self._wake[0], selectors.EVENT_READ)
        self._thread.start()

    def release(self, process: Process) -> None:
        """Stops the copying of the output of a process that still runs, because the next attempt takes it over."""
        with self._lock:
            for source in (process.stdout, process.stderr):
                with suppress(KeyError):  # it has closed the stream
                    self._released.append(self._selector.unregister(source).data)
            if self._wake:
                os.write(self._wake[1], b"\n")

    def tail(self, rank: int, *, seconds: float = 0.0) -> list[str]:
        """The last lines of a process. Waits at most `seconds` for it to close its streams."""
        return self._tails[rank].lines(seconds)

    def last_lines(self) -> list[str]:
        """The last lines of all processes, with the rank before each if there are several."""
        return self._all.lines(0)

    def finish(self, seconds: float) -> None:
        """Waits until all output has been copied, for at most `seconds`."""
        self._thread.join(seconds)

    def _pump(self) -> None:
        while len(self._selector.get_map()) > 1:
            for key, _ in self._selector.select():
                stream: _Stream | None = key.data
                chunk = self._read(key.fd, stream)
                if stream and chunk:
                    stream.feed(chunk)
                elif stream and chunk is not None:
                    stream.end()
            self._end_released()
        with self._lock:
            self._selector.close()
            for descriptor in self._wake or ():
                os.close(descriptor)
            self._wake = None
        self._end_released()

    def _read(self, descriptor: int, stream: _Stream | None) -> bytes | None:
        """The content that has arrived. Empty at the end of the stream, which is closed then. None if another attempt reads the stream."""
        with self._lock:
            if descriptor not in self._selector.get_map():
                return None
            chunk = os.read(descriptor, CHUNK)
            if not chunk:
                self._selector.unregister(descriptor)
                if stream is not None:
                    stream.process.close(descriptor)
            return chunk

    def _end_released(self) -> None:
        with self._lock:
            streams, self._released = self._released, []
        for stream in streams:
            stream.end()


class _Sink:
    """One of the supervisor's own streams. If it is closed, output is dropped, and training goes on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closed = False

    def write(self, data: bytes) -> None:
        while data and not self._closed:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                poll = select.poll()  # `select.select` takes no descriptor above 1023
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError:
                self._closed = True


class _Stream:
    """Copies one pipe to one sink. With a prefix it copies whole lines, otherwise each piece as it arrives."""

    def __init__(self, process: Process, sink: _Sink, tails: tuple[Tail, Tail], prefix: bytes | None) -> None:
        self.process = process
        self._sink = sink
        self._tail, self._all = tails
        self._prefix = prefix
        self._rest = b""
        self._rest_at = (0, 0)
        """The numbers of the unfinished line in both tails. It may be a prompt, before an error in the other stream."""

    def feed(self, chunk: bytes) -> None:
        if self._prefix is None:
            self._sink.write(chunk)
        *lines, rest = (self._rest + chunk).split(b"\n")
        if lines or not self._rest:
            self._rest_at = (self._tail.added + len(lines), self._all.added + len(lines))
        self._rest = rest
        while len(self._rest) > LONGEST_LINE:
            lines.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        self._pass_on(lines)

    def end(self) -> None:
        if self._rest:
            self._pass_on([self._rest], at=self._rest_at)
        self._tail.end_of_stream()

    def _pass_on(self, lines: list[bytes], *, at: tuple[int | None, int | None] = (None, None)) -> None:
        for line in lines:
            self._tail.add(line, at=at[0])
            self._all.add(line, prefix=self._prefix or b"", at=at[1])
        if self._prefix is not None and lines:
            self._sink.write(b"".join(self._prefix + line + b"\n" for line in lines))
