"""Posts the reports of a replica to the operator, from a thread. An error here does not stop the training."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from muster_contract.environment import ReplicaEnvironment
from muster_contract.reports import (
    MAX_INTERVAL,
    MAX_REPLY,
    MAX_REPORT,
    Progress,
    Reply,
    Report,
    SnapshotServer,
    SnapshotSource,
    TerminationMessage,
)
from muster_contract.run_state import RunState, with_state
from muster_contract.wire import encode, parse

LEAST_GAP = 0.02  # the least seconds between two reports, unless the replica waits for its next world
GATHERED, LONGEST_GATHERED = 0.1, 2.0  # the part of the interval, and the most seconds, that gather changes of processes that run
FIRST_INTERVAL = 1.0  # the interval in seconds before the first reply, which sets it
TIMEOUT = 2.0  # seconds for one report
LONGEST_DELAY = 10  # the most seconds for which the operator may delay the reply to a replica that waits for its next world
OK = 200
TOO_MANY = 429
REFUSALS = (400, 413)


class _TooManyError(Exception):
    """The operator gets too many reports, and this one must be sent later."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"report again in {seconds:g} s")
        self.seconds = seconds


class _RefusedError(ValueError):
    """The operator refuses a report because of its content."""


class _InterruptedError(Exception):
    """There is a new report while the operator delays the reply."""


class Reporter:
    """Posts the newest report at the interval that replies set, and earlier if it has changed. A change of the step alone does not cause an
    earlier report. The operator may delay the reply to a replica that waits for its next world, so that the replica gets that world at
    once.

    Without a coordination channel, the reporter does nothing. From its thread it calls `say` when reports begin to fail, and `on_reply`
    when a reply differs from the previous one.
    """

    def __init__(self, replica: ReplicaEnvironment, say: Callable[[str], None], on_reply: Callable[[], None]) -> None:
        self._replica = replica
        self._say = say
        self._on_reply = on_reply
        self.reply: Reply | None = None
        """The newest reply. None if there is none, or while the operator cannot restart in place."""
        self.replied: float | None = None
        """The time of the newest reply, in monotonic seconds."""
        self.revisions: Mapping[str, str] = {}
        """The revisions of inputs in the newest reply."""
        self.snapshot_sources: Sequence[SnapshotSource] = ()
        """The replicas from which a spare copies snapshots, in the newest reply."""
        self.snapshot_server: SnapshotServer | None = None
        """Where this supervisor gives the snapshots of its replica."""
        self._update = threading.Condition()
        self._report: Report | None = None
        self._changed = False
        self._final = False
        self._sequence = 0
        self.interval = FIRST_INTERVAL
        """Seconds between two reports without a change."""
        self._failing = False
        self._refused = False
        self._delayed: socket.socket | None = None
        self._interrupted = False
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    @property
    def is_active(self) -> bool:
        """Whether there is a coordination channel."""
        return self._replica.coordinator is not None

    def update(self, report: Report) -> None:
        """Sets the report to post next. The first call starts the thread."""
        if self._replica.coordinator is None:
            return
        with self._update:
            self._changed = self._changed or self._report is None or _milestones(report) != _milestones(self._report)
            self._report = report
            self._update.notify()
            if self._changed:
                self._interrupt()
        if not self._thread.ident:
            self._thread.start()

    def finish(self, report: Report, *, seconds: float) -> None:
        """Posts the last report. Waits for at most `seconds`."""
        with self._update:
            self._final = True
        self.update(report)
        with self._update:
            self._interrupt()
        if self._thread.ident:
            self._thread.join(seconds)

    def _interrupt(self) -> None:
        """Ends a request whose reply the operator delays."""
        if self._delayed is None:
            return
        self._interrupted = True
        with suppress(OSError):
            socket.socket.shutdown(self._delayed, socket.SHUT_RDWR)  # not that of SSLSocket, because the thread still uses the TLS object
        self._delayed = None

    def _run(self) -> None:
        due = 0.0
        final = False
        while not final:
            with self._update:
                self._update.wait_for(lambda: self._changed or self._final, timeout=max(0.0, due - time.monotonic()))
                report, final = self._report, self._final
                self._changed = False
            assert report is not None
            pause = self._post(report)
            due = time.monotonic() + max(pause, self.interval)
            gathering = 0.0 if pause > LEAST_GAP else min(LONGEST_GATHERED, GATHERED * self.interval)
            with self._update:
                self._update.wait_for(partial(self._may_end, pause), timeout=0 if final else pause)
                self._update.wait_for(self._is_urgent, timeout=0 if final else gathering)

    def _may_end(self, pause: float) -> bool:
        """Whether a report may be posted before the pause is over. The next world waits for each report of a replica that waits for it."""
        is_awaited = self._changed and self._report is not None and self._report.waiting
        return self._final or (is_awaited and pause <= LEAST_GAP)

    def _is_urgent(self) -> bool:
        """Whether the report is about the end of processes. The other replicas wait for it."""
        report = self._report
        return self._final or (self._changed and report is not None and bool(report.waiting or report.termination or report.stacks))

    def _post(self, report: Report) -> float:
        """Posts a report. Returns the least seconds until the next one."""
        self._sequence += 1
        try:
            reply = self._exchanged(replace(report, sequence=self._sequence, snapshot_server=self.snapshot_server))
        except _TooManyError as error:
            return error.seconds
        except _InterruptedError:
            return 0.0
        except (OSError, HTTPException, ValueError) as error:
            if not self._failing:
                self._say(f"reports to {self._replica.coordinator} fail ({error}); the training goes on")
            self._failing = True
            return LEAST_GAP
        self._failing = False
        self.replied = time.monotonic()
        self.revisions, self.snapshot_sources = reply.revisions, reply.snapshot_sources
        self.interval = max(LEAST_GAP, reply.interval_seconds)
        newest = replace(reply, interval_seconds=0.0, snapshot_sources=()) if reply.grace_seconds is not None else None
        if newest != self.reply:
            self.reply = newest
            self._on_reply()
        return LEAST_GAP

    def _exchanged(self, report: Report) -> Reply:
        """Posts a report and returns the reply. If the operator refuses the report, posts it again with the essentials only, because the
        operator must get the end of a program even if the program's figures or messages are invalid."""
        try:
            return self._exchange(encoded(report), may_delay=report.waiting and self.reply is not None and not self._final)
        except _RefusedError as error:
            if not self._refused:
                self._say(f"a report is refused ({error}); such reports are sent without their figures and messages")
            self._refused = True
            return self._exchange(encoded(_essential(report)))

    @cached_property
    def _connection(self) -> HTTPConnection:
        """The connection to the operator, without a proxy, because a proxy must not see the token. It stays open, which makes a report ten
        times cheaper. It opens again by itself."""
        where = urlsplit(str(self._replica.coordinator))
        assert where.hostname is not None
        authority = self._replica.coordinator_authority
        if authority is None:
            return HTTPConnection(where.hostname, where.port, timeout=TIMEOUT)
        return HTTPSConnection(where.hostname, where.port, timeout=TIMEOUT, context=ssl.create_default_context(cadata=authority))

    def _exchange(self, body: bytes, *, may_delay: bool = False) -> Reply:
        was_open = self._connection.sock is not None
        try:
            return self._request(body, may_delay=may_delay)
        except (OSError, HTTPException, ValueError) as error:
            self._connection.close()
            if not was_open or isinstance(error, ValueError):
                raise
        return self._request(body, may_delay=may_delay)  # tries again, because another operator may have become the leader

    def _request(self, body: bytes, *, may_delay: bool) -> Reply:
        headers = {"Content-Type": "application/json"}
        if may_delay:
            headers["Prefer"] = f"wait={LONGEST_DELAY}"
        if self._replica.token_file is not None:
            token = self._replica.token_file.read_text().strip()  # read each time, because the kubelet renews the token in the file
            headers["Authorization"] = f"Bearer {token}"
        path = urlsplit(str(self._replica.coordinator)).path.rstrip("/")
        self._connection.request("POST", f"{path}/v1/report", body=body, headers=headers)
        with self._delayed_reply() if may_delay else nullcontext(), self._connection.getresponse() as response:
            content = response.read(MAX_REPLY)
            if response.status == TOO_MANY:
                raise _TooManyError(_retry_seconds(response.getheader("Retry-After")))
            if response.status != OK:
                kind = _RefusedError if response.status in REFUSALS else ValueError
                raise kind(f"{response.status} {response.reason}: {content[:200].decode(errors='replace')}")
            return parse(Reply, content, "the reply")

    @contextmanager
    def _delayed_reply(self) -> Iterator[None]:
        """Allows a delayed reply in the block. Raises _InterruptedError if a new report ends the wait."""
        connection = self._connection.sock
        assert connection is not None
        with self._update:
            self._interrupted = self._changed or self._final
            self._delayed = None if self._interrupted else connection
        connection.settimeout(LONGEST_DELAY + TIMEOUT)
        try:
            if self._interrupted:
                raise ConnectionAbortedError
            yield
        except (OSError, HTTPException, ValueError):
            if self._interrupted:
                self._connection.close()
                raise _InterruptedError from None
            raise
        finally:
            with self._update:
                self._delayed = None
            with suppress(OSError):  # the operator may have closed the connection after its reply
                connection.settimeout(TIMEOUT)


def report_of(replica: ReplicaEnvironment, state: RunState | None = None) -> Report:
    """A report of the replica. Without a `state`, the report says that its processes have done nothing yet."""
    report = Report(
        job=replica.job,
        job_uid=replica.job_uid,
        pod=replica.pod_name,
        pod_uid=replica.pod_uid,
        role=replica.role,
        index=replica.index,
        attempt=replica.attempt,
        in_place=True,
    )
    return with_state(report, state or RunState())


def encoded(report: Report) -> bytes:
    body = json.dumps(encode(report)).encode()
    if len(body) <= MAX_REPORT:
        return body
    return json.dumps(encode(replace(report, fingerprints=(), notices=(), stacks=()))).encode()


def _essential(report: Report) -> Report:
    """The report with only the replica and the end of its processes."""
    names = ("job", "job_uid", "pod", "pod_uid", "role", "index", "attempt", "sequence", "in_place", "waiting")
    essential = Report(**{name: getattr(report, name) for name in names})
    termination = report.termination
    if termination is None:
        return essential
    return replace(
        essential,
        termination=TerminationMessage(
            termination.code, attempt=termination.attempt, exit_code=termination.exit_code, signal=termination.signal
        ),
    )


def _retry_seconds(value: str | None) -> float:
    """The seconds of a Retry-After header."""
    return min(float(value), MAX_INTERVAL) if value is not None and value.isdecimal() else FIRST_INTERVAL


def _milestones(report: Report) -> Report:
    """The report without the fields whose changes are not posted at once: the pace of ranks, steps after the first one, and bytes of
    inputs. Otherwise each of a thousand replicas would post a report after every step."""
    progress = Progress() if report.progress else None
    inputs = tuple(replace(each, bytes=0) for each in report.inputs)
    report = replace(report, snapshot=None)
    return replace(report, ranks=(), idle_seconds=None, saved_seconds=0.0, progress=progress, inputs=inputs)
