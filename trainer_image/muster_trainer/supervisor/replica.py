"""The life of a replica, from its environment to its last words. Read `Replica.run` from top to bottom."""

from __future__ import annotations

import math
import os
import selectors
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from muster_trainer.contract import (
    RESCUE_SECONDS,
    ExitCode,
    ReplicaEnv,
    TrainerError,
    TrainerSpec,
    termination_log_of,
    trainer_spec_of,
)
from muster_trainer.supervisor import last_words, stacks
from muster_trainer.supervisor.environment import Launch, plan
from muster_trainer.supervisor.events import EventLog, EventReader
from muster_trainer.supervisor.image import prepared
from muster_trainer.supervisor.last_words import LastWords
from muster_trainer.supervisor.misfit import START_SECONDS
from muster_trainer.supervisor.observations import Observations
from muster_trainer.supervisor.outcome import STOPPED, End, Outcome, judge, meaning
from muster_trainer.supervisor.output import Output
from muster_trainer.supervisor.processes import Process, become_subreaper, reap, signal_descendants
from muster_trainer.supervisor.reporting import Reporter
from muster_trainer.supervisor.signals import SignalInbox, signal_name
from muster_trainer.supervisor.succession import Succession
from muster_trainer.supervisor.warm import Starter

SIBLING_GRACE = 3.0  # seconds from SIGTERM to SIGKILL for the siblings of a failed process
ECHO_SECONDS = 1.0  # how long after a `PeerLost` a sibling may take to show that it was the cause
DESCENDANT_GRACE = 1.0  # seconds from SIGTERM to SIGKILL for what the processes left behind
DESCENDANT_DEADLINE = 5.0  # seconds of SIGKILL in vain (a process stuck in the kernel) before it is left alone
TAIL_SECONDS = 0.2  # how long an ended process's output may take to arrive, before its end is judged for now
OUTPUT_SECONDS = 2.0
REPORT_SECONDS = 2.0
SHORTEST_HOLD, LONGEST_HOLD = 3.0, 10.0  # seconds that a world which hangs is left as it is, until every supervisor has heard of it
IDLE_SECONDS = 2.0
LONGEST_TURN = 1.0  # seconds; no wake-up is ever missed for longer
MOVES = frozenset({"step", "commit", "evaluation", "pace"})  # events of processes that get on


def supervise(environ: Mapping[str, str], inbox: SignalInbox) -> int:
    """Run the replica described by `environ`, one attempt after the other; give back the exit code. The last words are written before."""
    try:
        replica = ReplicaEnv.from_environment(environ)
        environ = prepared(environ)
    except TrainerError as error:
        words = LastWords.of_error(error, None)
        _tell(words, environ)
        return words.code
    reporter, starter = Reporter(replica, say, inbox.wake), Starter(inbox)
    standby = environ.get("MUSTER_STANDBY") == "1"
    while True:
        words, report = _nothing_yet(environ, replica, starter) if standby else _live(environ, inbox, reporter, starter)
        succession = Succession(reporter, inbox, words, report, standby=standby)
        world = succession.await_world()
        if world is None:
            words = succession.words
            break
        environ, standby = {**environ, **world}, False
    starter.close()
    _tell(words, environ)
    reporter.finish({**report, "lastWords": words.as_json()}, seconds=REPORT_SECONDS)
    return words.code


def _nothing_yet(environ: Mapping[str, str], replica: ReplicaEnv, starter: Starter) -> tuple[LastWords, Mapping[str, Any]]:
    """Of a replica that stands by until a world takes it in: then it is warm."""
    with suppress(TrainerError):  # told when its processes are to start
        starter.warm_up(environ, bundled=_is_bundled(trainer_spec_of(environ)))
    words = LastWords(code=ExitCode.PREEMPTED, message="stood by, and no world took it in", attempt=None)
    return words, {"attempt": replica.attempt, "processes": [], **Observations([]).as_report()}


def _is_bundled(spec: TrainerSpec) -> bool:
    return spec.task is not None or spec.module is not None


def _live(environ: Mapping[str, str], inbox: SignalInbox, reporter: Reporter, starter: Starter) -> tuple[LastWords, Mapping[str, Any]]:
    """One attempt: how it ended, and what there is to report of it."""
    replica = ReplicaEnv.from_environment(environ)
    try:
        spec = trainer_spec_of(environ)
        launches = plan(environ, replica, spec)
        life = Replica(replica, spec, launches, inbox=inbox, log=EventLog(replica), reporter=reporter, starter=starter)
        return life.run(), life.report()
    except TrainerError as error:
        nothing = {"attempt": replica.attempt, "processes": [], **Observations([]).as_report()}
        return LastWords.of_error(error, replica.attempt), nothing


def say(message: str) -> None:
    """A line of the supervisor's own on stderr."""
    try:
        os.write(2, f"muster: {message}\n".encode(errors="replace"))
    except OSError:
        return


def _tell(words: LastWords, environ: Mapping[str, str]) -> None:
    if words.code != ExitCode.COMPLETED:
        say(words.message)
    if problem := last_words.write(words, termination_log_of(environ)):
        say(problem)


@dataclass(frozen=True)
class Ended:
    """A process that has ended at `time` (Unix seconds), `seconds` after its start; `asked` says that it had been asked to before."""

    process: Process
    asked: bool
    time: float
    seconds: float


@dataclass
class Ending:
    """When the processes that still run are asked to end and when they are killed; monotonic seconds."""

    term_at: float = math.inf
    kill_at: float = math.inf
    termed: bool = False
    killed: bool = False

    def by(self, term_at: float, kill_at: float) -> None:
        """Bring both forward; nothing that was decided before is put off."""
        self.term_at = min(self.term_at, term_at)
        self.kill_at = min(self.kill_at, kill_at)

    def wait(self, now: float) -> float:
        """Seconds until there is something to do."""
        due = [math.inf if self.termed else self.term_at, math.inf if self.killed else self.kill_at]
        return max(0.0, min(LONGEST_TURN, *(at - now for at in due)))


class Replica:
    """The processes of one replica in one attempt, and what is known of them."""

    def __init__(
        self,
        replica: ReplicaEnv,
        spec: TrainerSpec,
        launches: list[Launch],
        *,
        inbox: SignalInbox,
        log: EventLog,
        reporter: Reporter,
        starter: Starter,
    ) -> None:
        self._replica = replica
        self._spec = spec
        self._launches = launches
        self._inbox = inbox
        self._log = log
        self._reporter = reporter
        self._starter = starter
        self._observed = Observations([launch.rank for launch in launches])
        self._processes: list[Process] = []
        self._readers: list[EventReader] = []
        self._output = Output()
        self._ends: list[Ended] = []
        self._ending = Ending()
        self._stops_seen = 0
        self._stacks: list[dict[str, Any]] = []
        self._held_until = 0.0
        self._started = self._moved = time.monotonic()
        self._selector = selectors.DefaultSelector()

    def run(self) -> LastWords:
        """Start the processes, see them to their end, leave nothing behind, and say how it went."""
        become_subreaper()
        try:
            self._start()
            while any(process.running for process in self._processes):
                ended = self._turn(self._ending.wait(time.monotonic()))
                self._heed_stops()
                self._heed_orders()
                self._heed_ends(ended)
                self._carry_out_ending()
        finally:
            self._clear_descendants()
        self._drain_events()
        self._output.finish(OUTPUT_SECONDS)
        return self._last_words()

    def report(self) -> dict[str, Any]:
        """The replica's part of a report, all but the last words."""
        idle = round(time.monotonic() - self._moved, 3)
        processes = [
            {
                "rank": process.rank,
                "pid": process.pid,
                "state": _state(process, idle),
                "exitCode": process.exit_code,
                "signal": None if process.killed_by is None else signal_name(process.killed_by),
            }
            for process in self._processes
        ]
        seen = self._observed.as_report()
        return {"attempt": self._replica.attempt, "processes": processes, "idleSeconds": idle, "stacks": self._stacks, **seen}

    def _start(self) -> None:
        self._selector.register(self._inbox, selectors.EVENT_READ)
        self._publish()
        for process in self._starter.start(self._launches, bundled=_is_bundled(self._spec)):
            self._processes.append(process)
            reader = EventReader(process.events, process.rank)
            self._readers.append(reader)
            self._selector.register(reader, selectors.EVENT_READ)
        self._output.follow(self._processes)
        self._publish()

    def _turn(self, seconds: float) -> list[Ended]:
        """Wait for something to happen, no longer than `seconds`; take in events, and give back who has ended."""
        for key, _ in self._selector.select(seconds):
            if isinstance(key.fileobj, EventReader):
                self._record(key.fileobj.read(), key.fileobj)
                if not key.fileobj.open:
                    self._selector.unregister(key.fileobj)
            else:
                self._inbox.drain()
        asked = self._ending.termed or self._ending.killed
        lived = time.monotonic() - self._started
        ended = [Ended(process, asked, time.time(), lived) for process in reap(self._processes)]
        self._ends += ended
        if ended:
            self._drain_events()  # what an end means depends on what the process has sent before
        self._publish()
        return ended

    def _record(self, events: list[dict[str, Any]], reader: EventReader) -> None:
        for event in events:
            self._observed.apply(event, stop_asked=self._stops_seen > 0)
            if event["event"] in MOVES:
                self._moved = time.monotonic()
        if events and (problem := self._log.append(events)):
            self._notice(problem)
        if reader.malformed:
            self._notice(f"rank {reader.rank} wrote to MUSTER_EVENTS_FD what is no event; such lines are ignored")

    def _notice(self, message: str) -> None:
        if message not in self._observed.notices:
            say(message)
            self._observed.notice(message)

    def _publish(self) -> None:
        self._reporter.update({**self.report(), "lastWords": None})

    def _heed_stops(self) -> None:
        """The first request to stop gives the processes their grace; a second one ends it."""
        if self._inbox.stops == self._stops_seen:
            return
        now = time.monotonic()
        if self._stops_seen == 0:
            self._ending.by(now, now + self._spec.grace_seconds)
        self._stops_seen = self._inbox.stops
        if self._stops_seen > 1:
            self._ending.by(now, now)

    def _heed_orders(self) -> None:
        """A newer attempt counts, or none follows: these processes have no more to do than to save, where there is time for that."""
        orders = self._reporter.orders
        if orders is not None and (orders.end or orders.attempt > self._replica.attempt):
            if orders.dump and not self._held_until:
                self._dump()
            now = max(time.monotonic(), self._held_until)
            rescue = RESCUE_SECONDS if self._observed.rescues and not orders.dump else 0.0
            self._ending.by(now, now + max(orders.grace, rescue))

    def _dump(self) -> None:
        """Tells where the processes stand, and has them stay there for a while: one that ends takes its peers along, with what they had
        to tell to supervisors that have not heard yet."""
        say(f"attempt {self._replica.attempt} hangs: these are the stacks of its processes")
        self._stacks = stacks.take(self._processes, self._output, attempt=self._replica.attempt)
        self._held_until = time.monotonic() + min(max(SHORTEST_HOLD, 1.5 * self._reporter.interval), LONGEST_HOLD)

    def _heed_ends(self, ended: list[Ended]) -> None:
        """Once a process has failed, or the world was asked to stop, its siblings have no more to do."""
        now = time.monotonic()
        for end in ended:
            code = ExitCode.COMPLETED if end.asked else meaning(self._end(end, seconds=TAIL_SECONDS))
            if code in STOPPED:
                self._ending.by(now, now + self._spec.grace_seconds)
            elif code == ExitCode.PEER_LOST:
                self._ending.by(now + ECHO_SECONDS, now + ECHO_SECONDS + SIBLING_GRACE)
            elif code != ExitCode.COMPLETED:
                self._ending.by(now, now + SIBLING_GRACE)

    def _carry_out_ending(self) -> None:
        now = time.monotonic()
        ending = self._ending
        if now >= ending.term_at and not ending.termed:
            ending.termed = True
            for process in self._processes:
                process.send(signal.SIGTERM)
        if now >= ending.kill_at and not ending.killed:
            ending.killed = True
            for process in self._processes:
                process.kill_group()

    def _clear_descendants(self) -> None:
        """End what the processes left behind; among it may be the real training of a shell that died of SIGTERM, so
        after a request to stop it has what is left of the grace."""
        now = time.monotonic()
        term_until = max(now + DESCENDANT_GRACE, self._ending.kill_at if self._stops_seen == 1 else 0.0)
        kill_until = term_until + DESCENDANT_DEADLINE
        self._turn(0)
        left = signal_descendants(signal.SIGTERM, spare=self._starter.spare)
        while left and time.monotonic() < kill_until:
            self._turn(0.05)
            if self._inbox.stops > max(1, self._stops_seen):
                term_until = 0.0
            kill = time.monotonic() >= term_until
            left = signal_descendants(signal.SIGKILL if kill else 0, spare=self._starter.spare)
        if left:
            self._notice(f"{left} processes cannot be ended, not even by SIGKILL")

    def _drain_events(self) -> None:
        for reader in self._readers:
            self._record(reader.drain(), reader)

    def _end(self, ended: Ended, *, seconds: float = 0.0) -> End:
        process = ended.process
        return End(
            rank=process.rank,
            exit_code=process.exit_code,
            signal=process.killed_by,
            asked=ended.asked,
            tail=self._output.tail(process.rank, seconds=seconds),
            error=self._observed.errors.get(process.rank),
            starting=self._is_starting(ended),
            speaks=_is_bundled(self._spec) or any(reader.speaks for reader in self._readers if reader.rank == process.rank),
        )

    def _is_starting(self, ended: Ended) -> bool:
        """Whether the user's own program had reported no step and no commit when it ended. Later attempts do not count: it may have run
        before, perhaps on another node."""
        silent = self._moved == self._started
        return self._replica.attempt == 0 and silent and ended.seconds < START_SECONDS and not _is_bundled(self._spec)

    def _last_words(self) -> LastWords:
        ends = [self._end(ended) for ended in self._ends]
        outcome = judge(
            ends,
            stop_asked=self._stops_seen > 0,
            overdue=self._ending.killed,
            own_program=self._spec.script is not None or self._spec.command is not None,
            commits=frozenset(self._observed.commit_reasons),
            saved=self._observed.saved,
        )
        if self._is_dismissed(outcome):
            outcome = self._dismissal()
        culprit = outcome.culprit
        return LastWords(
            code=outcome.code,
            message=outcome.message,
            attempt=self._replica.attempt,
            rank=culprit.rank if culprit else None,
            step=self._observed.step,
            commit=self._observed.commit,
            resumed_step=self._observed.resumed_step,
            loss=self._observed.loss,
            evaluation=self._observed.evaluated,
            exit_code=culprit.exit_code if culprit else None,
            signal=culprit.signal if culprit else None,
            ended_at=next((ended.time for ended in self._ends if culprit and ended.process.rank == culprit.rank), None),
        )

    def _is_dismissed(self, outcome: Outcome) -> bool:
        """Whether processes that had not failed were ended because the job, or its last attempt, is over."""
        orders = self._reporter.orders
        asked = self._stops_seen == 0 and any(ended.asked for ended in self._ends)
        return orders is not None and orders.end and asked and outcome.code in (ExitCode.COMPLETED, *STOPPED)

    def _dismissal(self) -> Outcome:
        """What its end means: a replica of a job that has failed, such as one that saved when it was asked to, has not completed."""
        orders = self._reporter.orders
        if orders is not None and orders.succeeded:
            return Outcome(ExitCode.COMPLETED, "ended because the job has succeeded", None)
        return Outcome(ExitCode.PEER_LOST, f"ended because attempt {self._replica.attempt} is over", None)


def _state(process: Process, idle: float) -> str:
    """As the report has it: whether one is stopped is asked where nothing has been done for a while."""
    if not process.running:
        return "Exited"
    return "Stopped" if idle > IDLE_SECONDS and stacks.is_stopped(process.pid) else "Running"
