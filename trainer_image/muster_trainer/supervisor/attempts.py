"""Runs a replica: one attempt after another, from its environment to its termination message. Read `supervise` from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace

from muster_contract.codes import ExitCode
from muster_contract.environment import ReplicaEnvironment, path_in
from muster_contract.errors import TrainerError
from muster_contract.reports import Report, TerminationMessage
from muster_trainer.program import uses
from muster_trainer.supervisor.environment import Launch, plan, script_of, unpacked, with_world
from muster_trainer.supervisor.event_reader import EventLog
from muster_trainer.supervisor.history_writer import HistoryWriter
from muster_trainer.supervisor.image import prepared, with_library
from muster_trainer.supervisor.listener import Listener
from muster_trainer.supervisor.memories import Memories
from muster_trainer.supervisor.output import say
from muster_trainer.supervisor.replica import Replica
from muster_trainer.supervisor.reporting import Reporter, report_of
from muster_trainer.supervisor.signals import SignalInbox
from muster_trainer.supervisor.snapshot_copier import SnapshotCopier
from muster_trainer.supervisor.status_posts import status_variables
from muster_trainer.supervisor.succession import Succession
from muster_trainer.supervisor.survivors import Survivors
from muster_trainer.supervisor.termination import termination_of, termination_of_error, write
from muster_trainer.supervisor.trackers import mlflow_run, tracker_variables
from muster_trainer.supervisor.warm import Starter

REPORT_SECONDS = 2.0
LIBRARY = "muster_training"


def supervise(environ: Mapping[str, str], inbox: SignalInbox) -> int:
    """Runs the replica that `environ` describes, one attempt after another. Writes the termination message, and returns the exit code."""
    try:
        replica = ReplicaEnvironment.from_environment(environ)
        environ = prepared(environ)
    except TrainerError as error:
        termination = termination_of_error(error, None)
        _write(termination, environ)
        return termination.code
    reporter, starter, history = Reporter(replica, say, inbox.wake), Starter(inbox), HistoryWriter(say)
    memories, survivors = Memories(say), Survivors()
    standby = replica.standby
    while True:
        termination, report = (
            _stand_by(environ, replica, starter)
            if standby
            else _live(environ, inbox, reporter, starter=starter, history=history, memories=memories, survivors=survivors)
        )
        succession = Succession(reporter, inbox, termination, report, standby=standby)
        with _copying(replica, memories, reporter) if standby else nullcontext():
            world = succession.await_world()
        if world is None:
            termination = succession.termination
            break
        environ, standby = with_world(environ, world), False
    survivors.end()
    starter.close()
    _write(termination, environ)
    reporter.finish(replace(report, termination=termination), seconds=REPORT_SECONDS)
    history.finish()
    return termination.code


def _stand_by(environ: Mapping[str, str], replica: ReplicaEnvironment, starter: Starter) -> tuple[TerminationMessage, Report]:
    """Imports the framework and opens the task, so that the replica can join a world sooner. Of a script that uses `muster_training`, it
    imports what the script begins with."""
    with suppress(TrainerError):  # it is raised again when the processes start
        spec = replica.trainer_spec
        if spec.is_bundled:
            starter.warm_up(environ, bundled=True)
            starter.prepare(replica.processes, opens_task=True)
        elif (script := script_of(with_library(unpacked(environ)), replica, spec)) and uses(script[1], LIBRARY):
            starter.warm_up_program(*script)
    return termination_of(ExitCode.PREEMPTED, "this stand-by replica has joined no world", None), report_of(replica)


@contextmanager
def _copying(replica: ReplicaEnvironment, memories: Memories, reporter: Reporter) -> Iterator[None]:
    """Copies the snapshots of the world into the memory of this spare, in the block."""
    try:
        spec = replica.trainer_spec.snapshots
    except TrainerError:  # it is raised again when the processes start
        spec = None
    if spec is None or not spec.spares or not memories.reserve(replica.processes, spec):
        yield
        return
    arenas = [arena for position in range(replica.processes) if (arena := memories.arena(position)) is not None]
    copier = SnapshotCopier(arenas, lambda: reporter.snapshot_sources, job=replica.job_uid, spare=replica.index, say=say)
    copier.start()
    try:
        yield
    finally:
        copier.stop()


def _live(
    environ: Mapping[str, str],
    inbox: SignalInbox,
    reporter: Reporter,
    *,
    starter: Starter,
    history: HistoryWriter,
    memories: Memories,
    survivors: Survivors,
) -> tuple[TerminationMessage, Report]:
    """Runs one attempt. Returns its termination message and its last report."""
    replica = ReplicaEnvironment.from_environment(environ)
    try:
        spec, environ = replica.trainer_spec, unpacked(environ)
        listener = None if spec.is_bundled else _listener(replica)
        with closing(listener) if listener else nullcontext():
            if listener:
                environ = {**with_library(environ), **listener.variables, **_status_variables(environ, replica, listener)}
            launches = memories.with_memory(plan(environ, replica, spec), spec.snapshots)
            if spec.snapshots and spec.snapshots.spares:
                reporter.snapshot_server = memories.serve(loopback=replica.coordinator_authority is None)
            if not spec.is_bundled:
                launches = _with_trackers(launches, replica)
            life = Replica(
                replica,
                spec,
                launches,
                inbox=inbox,
                log=EventLog(replica),
                reporter=reporter,
                starter=starter,
                listener=listener,
                history=history,
                survivors=survivors,
            )
            termination = life.run()
            history.write(replica, life.history(termination), environ)
            return termination, life.report()
    except TrainerError as error:
        return termination_of_error(error, replica.attempt), report_of(replica)


def _with_trackers(launches: list[Launch], replica: ReplicaEnvironment) -> list[Launch]:
    """Adds the variables of experiment trackers to the processes. Variables that the user has set do not change."""
    run_variables = mlflow_run(replica, launches[0].env, say)
    tracked = [replace(launch, env={**tracker_variables(replica, launch.rank, launch.env), **launch.env}) for launch in launches]
    return [replace(tracked[0], env={**tracked[0].env, **run_variables}), *tracked[1:]]


def _listener(replica: ReplicaEnvironment) -> Listener | None:
    """The listener for events of the user's programs, which a program of the role may start. None if there is no port for it; the programs
    run all the same."""
    try:
        return Listener(replica.index if replica.first_rank is None else replica.first_rank)
    except OSError as error:
        say(f"nothing can listen on the loopback interface ({error}); programs that use muster_training report nothing")
        return None


def _status_variables(environ: Mapping[str, str], replica: ReplicaEnvironment, listener: Listener) -> dict[str, str]:
    """The variables by which the user's programs can post their status. Empty if the token cannot be written."""
    try:
        return status_variables(environ, url=listener.status_url, token=listener.token, folder=replica.state_dir)
    except OSError as error:
        say(f"{replica.state_dir} cannot be written ({error.strerror}); programs cannot post their status")
        return {}


def _write(termination: TerminationMessage, environ: Mapping[str, str]) -> None:
    if termination.code != ExitCode.COMPLETED:
        say(termination.message)
    if problem := write(termination, path_in(environ, "termination_log")):
        say(problem)
