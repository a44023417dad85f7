"""The processes of a replica in one attempt, from their start to its termination message. Read `Replica.run` from top to bottom."""

from __future__ import annotations

import math
import os
import selectors
import time
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from muster_contract.codes import ExitCode, signal_name
from muster_contract.environment import RESCUE_SECONDS, ReplicaEnvironment
from muster_contract.events import (
    Activity,
    Commit,
    CommitReason,
    Completed,
    ErrorEvent,
    Evaluation,
    Event,
    HandlesStop,
    Pace,
    Registered,
    Save,
    Step,
    Waiting,
    encode_event,
)
from muster_contract.notices import Notice, NoticeReason
from muster_contract.reports import NodeNotice, ProcessReport, ProcessState, Report, Stack, TerminationMessage
from muster_contract.run_state import RunState, apply, with_notice
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host import node_notice
from muster_trainer.supervisor import stacks
from muster_trainer.supervisor.environment import Launch
from muster_trainer.supervisor.event_reader import EventLog, EventReader, Line
from muster_trainer.supervisor.history_writer import AttemptRecord, HistoryWriter
from muster_trainer.supervisor.listener import Connection, Listener
from muster_trainer.supervisor.load import LoadSampler
from muster_trainer.supervisor.outcome import STOPPED, End, Outcome, is_early, judge, meaning
from muster_trainer.supervisor.output import Output, say
from muster_trainer.supervisor.output_tail import peer_lost_pattern
from muster_trainer.supervisor.permanent_failure import START_SECONDS
from muster_trainer.supervisor.process_table import children, descendants
from muster_trainer.supervisor.processes import Process, become_subreaper, kill_all, reap
from muster_trainer.supervisor.reporting import Reporter, report_of
from muster_trainer.supervisor.signals import SignalInbox
from muster_trainer.supervisor.stop_requests import StopRequests
from muster_trainer.supervisor.survivors import Survivors, ends_of_survivors, order_to_leave, to_end
from muster_trainer.supervisor.termination import termination_of
from muster_trainer.supervisor.warm import Starter

SIBLING_GRACE = 3.0  # seconds from SIGTERM to SIGKILL for the siblings of a failed process that cannot save
LEAVE_SECONDS = 4.0  # how long processes that can wait for the next attempt may take to leave a broken world
ECHO_SECONDS = 1.0  # how long after a `PeerLost` a sibling may take to show that it was the cause
DESCENDANT_GRACE = 1.0  # seconds from SIGTERM to SIGKILL for the descendants of ended processes
DESCENDANT_DEADLINE = 5.0  # seconds after SIGKILL until a process that is stuck in the kernel is left alone
TAIL_SECONDS = 0.2  # how long the output of an ended process may take to arrive, before the supervisor judges the end
OUTPUT_SECONDS = 2.0
# Seconds before a world that hangs is ended, so that every supervisor can take the stacks of its processes.
SHORTEST_HOLD, LONGEST_HOLD = 3.0, 10.0
LOOK_SECONDS = 0.25  # once the replica has been idle for so long, each turn looks whether its processes are stopped
STOPPED_SECONDS = 3.0  # a process that has been stopped for so long is reported as stopped
PREPARE_SECONDS = 2.0  # of training before the next attempt is prepared, because the first steps need the processors
LONGEST_TURN = 0.25  # seconds; the longest wait for an event, because no event shows that a process is stopped
BEFORE_STEPS = (Activity.STARTING, Activity.RESTORING)  # activities of the bundled trainer in which no step is done
PROGRESSING = {each.event for each in (Step, Commit, Evaluation, Pace)}  # events of processes that make progress


@dataclass(frozen=True)
class Ended:
    """A process that ended at `time` (Unix seconds), `seconds` after its start. `requested`: whether the supervisor had asked it to
    end."""

    process: Process
    requested: bool
    time: float
    seconds: float


@dataclass
class Ending:
    """The times at which the remaining processes get SIGTERM and SIGKILL, in monotonic seconds."""

    term_at: float = math.inf
    kill_at: float = math.inf
    termed: bool = False
    killed: bool = False

    def by(self, term_at: float, kill_at: float) -> None:
        """Sets both times, unless they are earlier already."""
        self.term_at = min(self.term_at, term_at)
        self.kill_at = min(self.kill_at, kill_at)

    def wait(self, now: float) -> float:
        """Seconds until there is something to do."""
        due = [math.inf if self.termed else self.term_at, math.inf if self.killed else self.kill_at]
        return max(0.0, min(LONGEST_TURN, *(at - now for at in due)))


class Replica:
    """The processes of one replica in one attempt, and what they report."""

    def __init__(
        self,
        replica: ReplicaEnvironment,
        spec: TrainerSpec,
        launches: list[Launch],
        *,
        inbox: SignalInbox,
        log: EventLog,
        reporter: Reporter,
        starter: Starter,
        listener: Listener | None,
        history: HistoryWriter,
        survivors: Survivors,
    ) -> None:
        self._replica = replica
        self._spec = spec
        self._peer_lost = peer_lost_pattern(spec.strategy.framework.peer_lost)
        self._launches = launches
        self._inbox = inbox
        self._log = log
        self._record_of_attempt = AttemptRecord(replica)
        self._reporter = reporter
        self._starter = starter
        self._listener = listener
        self._history = history
        self._survivors = survivors
        self._load = LoadSampler(replica, launches)
        # What a program of the role starts may have any rank of the world.
        runs_program = not spec.is_bundled and spec.program_of(replica.role, replica.index) is not None
        self._state = RunState(first_rank=None if runs_program else launches[0].rank)
        self._forks_script = spec.script is not None and not runs_program
        """Whether the processes of the next attempt may be forked with the imports of the user's script."""
        self._commit_reasons: set[CommitReason] = set()
        """The reasons of commits since the stop request, and Stop and Final of earlier commits."""
        self._completed: set[int] = set()
        """The ranks that have done all of their work."""
        self._processes: list[Process] = []
        self._readers: list[EventReader] = []
        self._output = Output()
        self._ends: list[Ended] = []
        self._ending = Ending()
        self._stop_requests = StopRequests()
        self._stops_handled = 0
        self._stacks: tuple[Stack, ...] = ()
        self._notice_of_node: NodeNotice | None = None
        self._earliest_end = 0.0
        self._is_broken = False
        self._training_since: float | None = None
        self._has_prepared = self._has_registered = self._handles_stops = False
        self._started = self._moved = time.monotonic()
        self._selector = selectors.DefaultSelector()

    def run(self) -> TerminationMessage:
        """Starts the processes, waits for their end, and leaves nothing behind. Returns the termination message."""
        become_subreaper()
        try:
            self._start()
            while any(process.running and not process.waiting for process in self._processes):
                ended = self._turn(self._ending.wait(time.monotonic()))
                self._handle_stop_requests()
                self._handle_reply()
                self._handle_ends(ended)
                self._handle_losses()
                self._carry_out_ending()
                self._prepare_next()
            self._release_survivors()
        finally:
            self._load.close()
            self._clear_descendants()
        self._drain_events()
        self._output.finish(OUTPUT_SECONDS)
        self._close()
        return self._termination_message()

    def report(self) -> Report:
        """The report as of now, without a termination message."""
        now = time.monotonic()
        idle = round(now - self._moved, 3)
        unwatched = self._listener is not None and self._listener.posts.is_only_source
        processes = tuple(
            ProcessReport(
                rank=process.rank,
                pid=process.pid,
                state=state_of(process, idle=idle, now=now),
                exit_code=process.exit_code,
                signal=None if process.killed_by is None else signal_name(process.killed_by),
            )
            for process in self._processes
        )
        report = replace(report_of(self._replica, self._state), processes=processes, stacks=self._stacks)
        return report if unwatched else replace(report, idle_seconds=idle)

    def history(self, termination: TerminationMessage) -> dict[str, bytes]:
        """The files with what the replica did in this attempt."""
        return self._record_of_attempt.files(termination, self._output.last_lines())

    def _start(self) -> None:
        self._selector.register(self._inbox, selectors.EVENT_READ)
        if self._listener:
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._publish()
        survivors = self._survivors.hand_over(self._launches)
        new = self._starter.start([each for each in self._launches if each.rank not in survivors], bundled=self._spec.is_bundled)
        for process in chain(survivors.values(), new):  # if one cannot be started, the earlier ones are ended
            self._processes.append(process)
            reader = EventReader(process.events, process.rank)
            self._readers.append(reader)
            self._selector.register(reader, selectors.EVENT_READ)
        self._output.follow(self._processes)
        self._load.start()
        self._publish()

    def _prepare_next(self) -> None:
        """Has processes prepared for the next attempt, once this one has trained for a while. A program of the user must have registered
        its state, or save at stops while a node of the job goes, because the job moves soon."""
        trains = self._state.phase == Activity.TRAINING or (self._handles_stops and self._moved > self._started)
        if not trains or self._ending.term_at < math.inf:
            return
        now = time.monotonic()
        self._training_since = self._training_since or now
        if self._has_prepared or now < self._training_since + PREPARE_SECONDS:
            return
        first = self._launches[0]
        moves = self._handles_stops and self._notice_of_node is not None and self._notice_of_node.goes
        if self._spec.is_bundled or ((self._has_registered or moves) and self._starter.warm_up_beside(first.env, Path(first.argv[1]))):
            self._has_prepared = True
            self._starter.prepare(len(self._launches))
            for module, error in self._starter.missing.items():
                self._notice(NoticeReason.NOTICE, f"spec.trainer.preload: {module} cannot be imported beforehand: {error}")

    def _turn(self, seconds: float) -> list[Ended]:
        """Waits for an event for at most `seconds`, and records it. Returns the processes that have ended."""
        for key, _ in self._selector.select(seconds):
            if isinstance(key.fileobj, EventReader):
                self._record(key.fileobj.read(), key.fileobj)
                if not key.fileobj.open:
                    self._remove_reader(key.fileobj)
            elif isinstance(key.fileobj, Listener):
                self._accept()
            else:
                self._inbox.drain()
        self._close_overdue()
        self._record_load()
        requested = self._ending.termed or self._ending.killed
        lived = time.monotonic() - self._started
        ended = [Ended(process, requested, time.time(), lived) for process in reap(self._processes)]
        self._ends += ended
        if ended:
            self._drain_events()  # the meaning of an end depends on the events before it
        self._publish()
        return ended

    def _accept(self) -> None:
        for connection in self._listener.accept() if self._listener else ():
            self._selector.register(connection, selectors.EVENT_READ)

    def _close_overdue(self) -> None:
        for connection in list(self._listener.connections) if self._listener else ():
            if connection.is_overdue:
                self._remove_reader(connection)

    def _remove_reader(self, reader: EventReader) -> None:
        self._selector.unregister(reader)
        if self._listener and isinstance(reader, Connection):
            self._listener.remove(reader)

    def _record(self, lines: list[Line], reader: EventReader) -> None:
        for line in lines:
            self._state = apply(self._state, line.event)
            if line.document["event"] in PROGRESSING:
                self._moved = time.monotonic()
                if self._listener and not (isinstance(reader, Connection) and reader.is_post):
                    self._listener.posts.superseded = True
            if isinstance(line.event, Waiting) and self._spec.is_bundled:
                self._process_of(reader.rank).waiting = True
            if isinstance(line.event, HandlesStop):
                self._stop_requests.add_handler(line.event.pid)
                self._handles_stops = self._forks_script
            if isinstance(line.event, Registered) and self._forks_script:
                self._has_registered = True
            if isinstance(line.event, Completed):
                self._completed.add(reader.rank)
            self._commit_reasons |= commit_reasons(line.event, stop_requested=self._stops_handled > 0)
        self._keep(lines)
        if reader.malformed:
            message = f"rank {reader.rank} wrote lines to MUSTER_EVENTS_FD that are not events; they are ignored"
            self._notice(NoticeReason.EVENTS_MALFORMED, message)

    def _record_load(self) -> None:
        load = self._load.sample()
        if load is not None:
            self._keep([Line(encode_event(load), load)])

    def _keep(self, lines: list[Line]) -> None:
        """Adds events to the history and to the file of events."""
        self._record_of_attempt.add(lines)
        if lines and (problem := self._log.append(lines)):
            self._notice(NoticeReason.EVENTS_LOST, problem)

    def _process_of(self, rank: int) -> Process:
        return next(process for process in self._processes if process.rank == rank)

    def _release_survivors(self) -> None:
        """Passes the processes that wait for the next attempt to `Survivors`. In this attempt, they count as ended."""
        launches = {launch.rank: launch for launch in self._launches}
        for process in self._processes:
            if process.running and process.waiting:
                self._output.release(process)
                self._survivors.add(process, launches[process.rank])

    def _close(self) -> None:
        """Closes what only this attempt has used. `Output` closes the streams of the processes."""
        for process in self._processes:
            if process not in self._survivors:
                process.close(process.events, process.orders)
        self._selector.close()
        self._log.close()

    def _break_world(self) -> float:
        """Orders processes that can save or wait for the next attempt to leave a world that has lost a member. Returns the seconds in
        which they may report that they wait."""
        if self._state.rescues:
            self._order_to_leave()
        return LEAVE_SECONDS if self._state.waits else 0.0

    def _order_to_leave(self) -> None:
        """Orders the processes to leave the world. This ends a collective that waits for a peer on a lost node, which closes no
        connection."""
        if not self._is_broken:
            self._is_broken = True
            for process in self._processes:
                if process.running and not process.waiting:
                    order_to_leave(process, self._replica.attempt)

    def _notice(self, reason: NoticeReason, message: str) -> None:
        before, self._state = self._state, with_notice(self._state, Notice(message, reason))
        if self._state is not before:
            say(message)

    def _publish(self) -> None:
        self._reporter.update(self.report())

    def _handle_stop_requests(self) -> None:
        """The first request to stop gives the processes their grace period. A second one ends it."""
        if self._inbox.stops == self._stops_handled:
            return
        now = time.monotonic()
        if self._stops_handled == 0:
            self._ending.by(now, now + self._spec.grace_seconds)
        self._stops_handled = self._inbox.stops
        if self._stops_handled > 1:
            self._ending.by(now, now)

    def _handle_reply(self) -> None:
        """Ends the processes when a newer attempt counts or none follows. They may save within the grace period."""
        reply = self._reporter.reply
        if reply is not None and reply.notice != self._notice_of_node:
            self._pass_on(reply.notice)
        if reply is None or not (reply.end or reply.attempt > self._replica.attempt):
            return
        if reply.dump and not self._earliest_end:
            self._dump()
        begin = max(time.monotonic(), self._earliest_end)
        to_save_together, to_save_alone = reply.grace_seconds or 0.0, self._rescue_seconds
        if not (reply.end or reply.dump or to_save_together):
            begin += self._break_world()
        if to_save_alone and not (to_save_together or self._ending.termed):
            self._order_to_leave()
        self._ending.by(begin, begin + max(to_save_together, to_save_alone))

    def _pass_on(self, notice: NodeNotice | None) -> None:
        """Tells the processes that a node of the job goes, or that its notice is withdrawn."""
        self._notice_of_node = notice
        try:
            node_notice.write(self._replica.state_dir, notice)
        except OSError as error:
            say(f"{self._replica.state_dir} cannot be written ({error.strerror}); the processes do not learn that a node goes")
        if notice is not None:
            say(f"node {notice.node} {'goes' if notice.goes else 'takes no new pods'} ({notice.signal})")

    @property
    def _rescue_seconds(self) -> float:
        """How long the processes may take to save after the loss of a peer."""
        return RESCUE_SECONDS if self._state.rescues else 0.0

    def _dump(self) -> None:
        """Reports the stacks of the processes, and delays their end. If a process ends, its peers end too, and their supervisors may not
        have taken their stacks yet."""
        say(f"attempt {self._replica.attempt} hangs: these are the stacks of its processes")
        self._stacks = stacks.take(
            self._processes, self._output, attempt=self._replica.attempt, modules=self._spec.strategy.framework.modules
        )
        self._earliest_end = time.monotonic() + min(max(SHORTEST_HOLD, 1.5 * self._reporter.interval), LONGEST_HOLD)

    def _handle_ends(self, ended: list[Ended]) -> None:
        """Ends the siblings of a process that has failed, or whose world was asked to stop."""
        now = time.monotonic()
        grace = max(SIBLING_GRACE, self._rescue_seconds)
        for end in ended:
            code = ExitCode.COMPLETED if end.requested else meaning(self._end(end, seconds=TAIL_SECONDS))
            if code in STOPPED:
                self._ending.by(now, now + self._spec.grace_seconds)
            elif code == ExitCode.PEER_LOST:
                later = now + max(ECHO_SECONDS, self._break_world())
                self._ending.by(later, later + grace)
            elif code != ExitCode.COMPLETED:
                later = now + self._break_world()
                self._ending.by(later, later + grace)

    def _handle_losses(self) -> None:
        """Ends the siblings of a process that has lost a peer, and waits for the next attempt."""
        if not self._is_broken and any(process.running and process.waiting for process in self._processes):
            later = time.monotonic() + max(ECHO_SECONDS, self._break_world())
            self._ending.by(later, later + max(SIBLING_GRACE, self._rescue_seconds))

    def _carry_out_ending(self) -> None:
        now = time.monotonic()
        ending = self._ending
        if now >= ending.term_at and not ending.killed:
            if not ending.termed:
                ending.termed = True
                self._drain_events()  # a program may have reported just now that it handles the request
            for process in to_end(self._processes, self._reporter.reply, stopped=self._stops_handled > 0):
                if process.running:
                    self._stop_requests.send(process.pid, now)
        if now >= ending.kill_at and not ending.killed:
            ending.killed = True
            for process in to_end(self._processes, self._reporter.reply, stopped=self._stops_handled > 0):
                process.kill_group()

    def _clear_descendants(self) -> None:
        """Ends the remaining descendants. After a request to stop, they get the rest of the grace period: if the process was a shell,
        SIGTERM has ended it, and its training may still save. SIGTERM goes to orphans only, because a process whose parent runs may be a
        data loader that this parent needs for its save."""
        now = time.monotonic()
        term_until = max(now + DESCENDANT_GRACE, self._ending.kill_at if self._stops_handled == 1 else 0.0)
        kill_until = term_until + DESCENDANT_DEADLINE
        self._turn(0)
        while (remaining := self._descendants()) and now < kill_until:
            if self._inbox.stops > max(1, self._stops_handled):
                term_until = 0.0
            if now < term_until:
                for pid in set(children(os.getpid())).intersection(remaining):
                    self._stop_requests.send(pid, now)
            else:
                kill_all(remaining)
            self._turn(0.05)
            now = time.monotonic()
        if remaining:
            self._notice(NoticeReason.PROCESSES_REMAIN, f"{len(remaining)} processes cannot be ended, not even by SIGKILL")

    def _descendants(self) -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid not in self._spare]

    @property
    def _spare(self) -> frozenset[int]:
        """The pids of descendants that go on after the attempt."""
        return self._history.uploads | self._survivors.pids | self._starter.spare | self._load.pids

    def _drain_events(self) -> None:
        self._accept()
        for reader in [*self._readers, *(self._listener.connections if self._listener else ())]:
            self._record(reader.drain(), reader)

    def _end(self, ended: Ended, *, seconds: float = 0.0) -> End:
        process = ended.process
        return End(
            rank=process.rank,
            exit_code=process.exit_code,
            signal=process.killed_by,
            requested=ended.requested,
            tail=self._output.tail(process.rank, seconds=seconds),
            error=self._error_of(process),
            is_early=self._spec.is_bundled and is_early(process.exit_code, completed=process.rank in self._completed),
            starting=self._is_starting(ended),
            uses_contract=self._spec.is_bundled or any(reader.uses_contract for reader in self._readers if reader.rank == process.rank),
            peer_lost=self._peer_lost,
        )

    def _error_of(self, process: Process) -> ErrorEvent | None:
        """The `error` event of a process. A launcher such as torchrun has none: then it is the first one of its workers."""
        errors = self._state.errors
        return errors.get(process.rank) or (None if self._spec.is_bundled else next(iter(errors.values()), None))

    def _is_starting(self, ended: Ended) -> bool:
        """Whether the user's own program had reported no step and no commit when it ended. False in later attempts, because the program may
        have run before, perhaps on another node."""
        no_progress = self._moved == self._started
        return self._replica.attempt == 0 and no_progress and ended.seconds < START_SECONDS and not self._spec.is_bundled

    def _termination_message(self) -> TerminationMessage:
        ends = [self._end(ended) for ended in self._ends] + ends_of_survivors(self._processes, self._state.errors, self._peer_lost)
        outcome = judge(
            ends,
            # The world stops because another replica was asked to. The bundled trainer also shows that by its exit code.
            stop_requested=self._stops_handled > 0 or self._state.phase == Activity.STOPPING,
            overdue=self._ending.killed,
            own_program=not self._spec.is_bundled,
            commits=frozenset(self._commit_reasons),
            saved=self._state.is_saved or (self._spec.is_bundled and self._state.phase in BEFORE_STEPS),
        )
        if self._was_ended_with_job(outcome):
            outcome = self._outcome_with_job()
        termination = termination_of(outcome.code, outcome.message, self._replica.attempt, self._state)
        culprit = outcome.culprit
        if culprit is None:
            return termination
        return replace(
            termination,
            reason=outcome.reason,
            rank=culprit.failed_rank,
            exit_code=culprit.exit_code,
            signal=None if culprit.signal is None else signal_name(culprit.signal),
            ended_at=next((ended.time for ended in self._ends if ended.process.rank == culprit.rank), None),
        )

    def _was_ended_with_job(self, outcome: Outcome) -> bool:
        """Whether processes that had not failed were ended because the job, or its last attempt, is over."""
        reply = self._reporter.reply
        requested = self._stops_handled == 0 and any(ended.requested for ended in self._ends)
        return reply is not None and reply.end and requested and outcome.code in (ExitCode.COMPLETED, *STOPPED)

    def _outcome_with_job(self) -> Outcome:
        """The outcome of a replica whose processes were ended. If the job has failed, the replica has not completed."""
        reply = self._reporter.reply
        if reply is not None and reply.succeeded:
            return Outcome(ExitCode.COMPLETED, "ended because the job has succeeded", None)
        return Outcome(ExitCode.PEER_LOST, f"ended because attempt {self._replica.attempt} is over", None)


def commit_reasons(event: Event, *, stop_requested: bool) -> set[CommitReason]:
    """The reason of a commit event, if it shows that the program has saved because it ends."""
    return (
        {event.reason} if isinstance(event, Save) and (stop_requested or event.reason in (CommitReason.STOP, CommitReason.FINAL)) else set()
    )


def state_of(process: Process, *, idle: float, now: float) -> ProcessState:
    """The state for the report. A process counts as stopped if it was stopped for `STOPPED_SECONDS`."""
    if not process.running:
        return ProcessState.EXITED
    if idle < LOOK_SECONDS or not stacks.is_stopped(process.pid):
        process.stopped_since = None
        return ProcessState.RUNNING
    process.stopped_since = now if process.stopped_since is None else process.stopped_since
    return ProcessState.STOPPED if now >= process.stopped_since + STOPPED_SECONDS else ProcessState.RUNNING
