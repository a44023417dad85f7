"""Between two attempts: the processes of one have ended, and the replica waits to be told what follows."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster_trainer.contract import ExitCode
from muster_trainer.supervisor.last_words import LastWords
from muster_trainer.supervisor.observations import Observations
from muster_trainer.supervisor.processes import oom_kills
from muster_trainer.supervisor.reporting import Reporter
from muster_trainer.supervisor.signals import SignalInbox

SILENCE = 300.0  # seconds without an answer after which the replica ends: a coordinator may be away, be restarted or be replaced
FIRST_ANSWER = 10.0  # seconds for the first one, without which nobody may know how to go on in place
TURN = 1.0

_FINAL = frozenset({ExitCode.COMPLETED, ExitCode.BAD_CONFIGURATION})
_STOPPED = frozenset({ExitCode.COMPLETED, ExitCode.PREEMPTED, ExitCode.PREEMPTED_NOT_SAVED})


class Succession:
    """`words` are those of the attempt that has ended, and `report` what it last had to say. `standby`: there was none yet."""

    def __init__(
        self, reporter: Reporter, inbox: SignalInbox, words: LastWords, report: Mapping[str, Any], *, standby: bool = False
    ) -> None:
        self._reporter = reporter
        self._inbox = inbox
        self._words = words
        self._report = report
        self._attempt: int = report["attempt"]
        self._superseded = standby or (reporter.orders is not None and reporter.orders.attempt > self._attempt)

    @property
    def words(self) -> LastWords:
        """The replica's own, if it ends now. In an attempt that it has come to it has done nothing, and where its processes were ended for
        the sake of one they have completed nothing; but what they saved when they were asked to is saved."""
        if not self._superseded or self._words.code not in _STOPPED:
            return self._words
        if self._attempt > self._report["attempt"]:
            return LastWords(ExitCode.PREEMPTED_NOT_SAVED, f"ended before attempt {self._attempt} began", self._attempt)
        if self._words.code == ExitCode.COMPLETED:
            return replace(self._words, code=ExitCode.PREEMPTED_NOT_SAVED, message="ended for the sake of a later attempt")
        return self._words

    def await_world(self) -> Mapping[str, str] | None:
        """The environment of the next attempt's processes; None where there is none: the replica is to end."""
        if not self._waits():
            return None
        self._say(self._attempt)
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox, selectors.EVENT_READ)
            while self._hopes(began):
                orders = self._reporter.orders
                if orders is not None and orders.attempt > self._attempt:
                    self._attempt = orders.attempt
                    self._say(self._attempt)
                elif orders is not None and orders.world is not None and orders.attempt == self._attempt > self._report["attempt"]:
                    return orders.world
                selector.select(TURN)
                self._inbox.drain()
        return None

    def _waits(self) -> bool:
        if self._inbox.stops or not self._reporter.follows:
            return False
        if self._words.signal == signal.SIGKILL and oom_kills():  # the end of the container tells this better than we could
            return False
        return self._superseded or self._words.code not in _FINAL

    def _hopes(self, began: float) -> bool:
        """Whether there still is something to wait for."""
        orders, answered, now = self._reporter.orders, self._reporter.answered, time.monotonic()
        if self._inbox.stops or (orders is not None and orders.end):
            return False
        if answered is None:
            return now < began + FIRST_ANSWER
        return orders is not None and now < answered + SILENCE

    def _say(self, attempt: int) -> None:
        """That nothing of an older attempt is left here; and, as long as nobody else has told, how the one before ended."""
        told = None if self._superseded and self._words.code in _STOPPED else self._words.as_json()
        nothing = {"processes": [], "stacks": self._report.get("stacks", []), **Observations([]).as_report()}
        report = self._report if attempt == self._report["attempt"] else nothing
        self._reporter.update({**report, "attempt": attempt, "waiting": True, "lastWords": told})
