"""Telling the coordinator how the replica is, from a thread of its own. Nothing that goes wrong here stops anything."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from muster_trainer.contract import ReplicaEnv
from muster_trainer.supervisor.orders import Orders, read_orders

LEAST_GAP = 0.02  # seconds between two reports: fifty a second at most
FIRST_INTERVAL = 1.0  # seconds, until a reply says another
LONGEST_INTERVAL = 600.0
TIMEOUT = 2.0  # seconds, for one report
LONGEST_REPLY = 1 << 18  # bytes; a TF_CONFIG takes up to 128 KiB, and more in JSON
LARGEST_REPORT = 128 * 1024  # bytes; the coordinator refuses a larger one
OK = 200
TOO_MANY = 429
REFUSALS = (400, 413)
_DISPENSABLE = ("fingerprints", "notices", "stacks")
_ESSENTIAL = ("job", "jobUid", "pod", "podUid", "role", "index", "attempt", "sequence", "inPlace", "waiting")
_ESSENTIAL_WORDS = ("code", "attempt", "exitCode", "signal")


class _TooManyError(Exception):
    """The coordinator has too much to do, and asks for patience."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"report again in {seconds:g} s")
        self.seconds = seconds


class _RefusedError(ValueError):
    """The coordinator does not take a report because of what is in it."""


class Reporter:
    """Posts the newest state when it has changed and at the interval that the coordinator asks for. Steps alone wait for the interval.

    Without a coordinator it does nothing. `say` is called, from the thread, when reports begin to fail; `heard` when a reply has
    other `orders` than the one before.
    """

    def __init__(self, replica: ReplicaEnv, say: Callable[[str], None], heard: Callable[[], None]) -> None:
        self._replica = replica
        self._say = say
        self._heard = heard
        self.orders: Orders | None = None
        self.answered: float | None = None
        """When the last reply came, in monotonic seconds."""
        self._news = threading.Condition()
        self._state: Mapping[str, Any] | None = None
        self._changed = False
        self._final = False
        self._sequence = 0
        self.interval = FIRST_INTERVAL
        """Seconds between two reports that have no news."""
        self._failing = False
        self._refused = False
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    @property
    def follows(self) -> bool:
        """Whether anybody is there who may give orders."""
        return self._replica.coordinator is not None

    def update(self, state: Mapping[str, Any]) -> None:
        """Give the state to report next; it must not be changed afterwards. The first call starts the thread."""
        if self._replica.coordinator is None:
            return
        with self._news:
            self._changed = self._changed or _news(state) != _news(self._state)
            self._state = state
            self._news.notify()
        if not self._thread.ident:
            self._thread.start()

    def finish(self, state: Mapping[str, Any], *, seconds: float) -> None:
        """Report `state` as the last one, and wait for that no longer than `seconds`."""
        with self._news:
            self._final = True
        self.update(state)
        if self._thread.ident:
            self._thread.join(seconds)

    def _run(self) -> None:
        due = 0.0
        final = False
        while not final:
            with self._news:
                self._news.wait_for(lambda: self._changed or self._final, timeout=max(0.0, due - time.monotonic()))
                state, final = self._state, self._final
                self._changed = False
            assert state is not None
            pause = self._post(state)
            due = time.monotonic() + max(pause, self.interval)
            with self._news:
                self._news.wait_for(lambda: self._final, timeout=0 if final else pause)

    def _post(self, state: Mapping[str, Any]) -> float:
        """Posts a report. The seconds until the next one at the earliest."""
        self._sequence += 1
        replica = self._replica
        report = {
            "job": replica.job,
            "jobUid": replica.job_uid,
            "pod": replica.pod_name,
            "podUid": replica.pod_uid,
            "role": replica.role,
            "index": replica.index,
            "attempt": replica.attempt,
            "sequence": self._sequence,
            "inPlace": True,
            **state,
        }
        try:
            reply = self._exchanged(report)
        except _TooManyError as error:
            return error.seconds
        except (OSError, HTTPException, ValueError) as error:
            if not self._failing:
                self._say(f"reports to {replica.coordinator} fail ({error}); the training goes on")
            self._failing = True
            return LEAST_GAP
        self._failing = False
        self.answered = time.monotonic()
        if (orders := read_orders(reply)) != self.orders:
            self.orders = orders
            self._heard()
        interval = reply.get("intervalSeconds") if isinstance(reply, dict) else None
        if isinstance(interval, int | float) and 0 < interval <= LONGEST_INTERVAL:
            self.interval = max(LEAST_GAP, float(interval))
        return LEAST_GAP

    def _exchanged(self, report: Mapping[str, Any]) -> object:
        """The reply to a report. One that is refused is sent again with the essentials alone: what a program says must not keep the
        coordinator from knowing that it has ended."""
        try:
            return self._exchange(_encoded(report))
        except _RefusedError as error:
            if not self._refused:
                self._say(f"a report is refused ({error}); such reports are sent without their figures and messages")
            self._refused = True
            return self._exchange(_encoded(_essential(report)))

    @cached_property
    def _connection(self) -> HTTPConnection:
        """To the coordinator itself: a proxy meant for the outside world must not see the token. Where it is kept open, as the
        coordinator wishes, a report costs a tenth of what it costs else; it opens by itself when it is not."""
        where = urlsplit(str(self._replica.coordinator))
        assert where.hostname is not None
        authority = self._replica.coordinator_authority
        if authority is None:
            return HTTPConnection(where.hostname, where.port, timeout=TIMEOUT)
        return HTTPSConnection(where.hostname, where.port, timeout=TIMEOUT, context=ssl.create_default_context(cadata=authority))

    def _exchange(self, body: bytes) -> object:
        kept = self._connection.sock is not None
        try:
            return self._ask(body)
        except (OSError, HTTPException, ValueError) as error:
            self._connection.close()
            if not kept or isinstance(error, ValueError):
                raise
        return self._ask(body)  # who is at the other end of a kept connection may have gone, and another taken its place

    def _ask(self, body: bytes) -> object:
        headers = {"Content-Type": "application/json"}
        if self._replica.token_file is not None:
            token = self._replica.token_file.read_text().strip()  # read each time: tokens are renewed in place
            headers["Authorization"] = f"Bearer {token}"
        path = urlsplit(str(self._replica.coordinator)).path.rstrip("/")
        self._connection.request("POST", f"{path}/v1/report", body=body, headers=headers)
        with self._connection.getresponse() as reply:
            content = reply.read(LONGEST_REPLY)
            if reply.status == TOO_MANY:
                raise _TooManyError(_retry_seconds(reply.getheader("Retry-After")))
            if reply.status != OK:
                kind = _RefusedError if reply.status in REFUSALS else ValueError
                raise kind(f"{reply.status} {reply.reason}: {content[:200].decode(errors='replace')}")
            return json.loads(content)


def _encoded(report: Mapping[str, Any]) -> bytes:
    body = json.dumps(report).encode()
    if len(body) <= LARGEST_REPORT:
        return body
    return json.dumps({name: value for name, value in report.items() if name not in _DISPENSABLE}).encode()


def _essential(report: Mapping[str, Any]) -> dict[str, Any]:
    """Who reports, and how its processes have ended."""
    essential = {name: report[name] for name in _ESSENTIAL if name in report}
    words = report.get("lastWords")
    if words:
        essential["lastWords"] = {name: words[name] for name in _ESSENTIAL_WORDS if name in words}
    return essential


def _retry_seconds(value: str | None) -> float:
    """What a header Retry-After asks for, if it is a number of seconds."""
    return min(float(value), LONGEST_INTERVAL) if value is not None and value.isdecimal() else FIRST_INTERVAL


def _news(state: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What is reported at once. How ranks get on is not, and steps are not after the first one: each of a thousand replicas would report
    with every step."""
    if not state:
        return state
    changing = ("ranks", "idleSeconds", "savedSeconds", "progress")
    return {"stepped": state.get("progress") is not None, **{name: value for name, value in state.items() if name not in changing}}
