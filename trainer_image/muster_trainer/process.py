"""One training process: `python -m muster_trainer.process`, started by the supervisor or by hand."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from muster_contract.codes import ExitCode
from muster_contract.environment import DEBUG, NAMES, RANK, ReplicaEnvironment
from muster_contract.errors import BadConfiguration, TrainerError, UserError
from muster_contract.events import Activity, Completed
from muster_contract.strategy import RoleRuntime, StrategyRuntime
from muster_contract.tasks import COLLECTIVES, REHEARSAL
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host.events import Events
from muster_trainer.host.framework import hook, named, set_quiet
from muster_trainer.host.large_variables import unpack_here
from muster_trainer.host.stopping import StopRequest
from muster_trainer.measure import collectives
from muster_trainer.measure.meeting import Meeting
from muster_trainer.measure.rehearsal import Rehearsal, remove_world_variables
from muster_trainer.tasks.module import Task, describe, load_task
from muster_trainer.training.evaluator import Evaluator
from muster_trainer.training.loop import Training
from muster_trainer.training.run import Run

_opened: list[tuple[TrainerSpec, Task]] = []
"""The task that `open_task` has opened in this process, if any."""


def main() -> NoReturn:
    """Runs the training that the environment describes, and exits with a code of the contract."""
    faulthandler.register(signal.SIGUSR1)  # prints the stacks of a process that hangs: supervisor/stacks.py
    events = Events.from_environment(os.environ, _rank(os.environ))
    try:
        _run(events)
    except TrainerError as error:
        _end(_failed(events, error))
    except SystemExit as error:  # raised by the user's code, because `_end` does not raise it
        message = f"the training code ended the process: {describe(error)}; remove that call, because Muster ends the process itself"
        _end(_failed(events, UserError(message), cause=error))
    except BaseException as error:  # noqa: BLE001 (the user's code can raise anything)
        _end(_failed(events, UserError(f"the training code failed: {describe(error)}"), cause=error))


def open_task(spec: TrainerSpec) -> bool:
    """Opens the task of a job before this process has a rank: imports the user's module, and opens its data set.

    Returns whether this process may train the task. False if the task may depend on the rank, or uses a device already. Raises
    TrainerError if the task cannot be opened.
    """
    _find_modules(spec)
    task = load_task(spec)
    _opened[:] = [(spec, task)]
    return task.survives and not hook(spec.strategy.framework, "unfit")


def _task_of(spec: TrainerSpec) -> Task:
    """The task of the job, which may be open already."""
    for of, task in _opened:
        if of == spec:
            return task
    return load_task(spec)


def _find_modules(spec: TrainerSpec) -> None:
    """Lets the user's module be found in the working directory, because Muster's own processes are started with -P."""
    if spec.module is not None and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _end(code: ExitCode) -> NoReturn:
    """Ends the process without running destructors of the framework, because they may hang or abort.

    For example, PyTorch's destructors hold the GIL while they join the threads of Gloo, and these threads may need the GIL.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the user's code may have closed or replaced it
            stream.flush()
    os._exit(code)


def _finish(events: Events, code: ExitCode) -> NoReturn:
    """Ends the process with the code of its work. The event shows the supervisor that no other code has ended it with 0."""
    if code == ExitCode.COMPLETED:
        events.emit(Completed())
    _end(code)


def _run(events: Events) -> NoReturn:
    unpack_here()
    env = ReplicaEnvironment.from_environment(os.environ)
    spec = env.trainer_spec
    framework = spec.strategy.framework
    stop = StopRequest(events.descriptor)
    events.phase(Activity.STARTING)
    _find_modules(spec)
    set_quiet(framework)
    role = spec.strategy.roles.get(env.role, RoleRuntime())
    if program := spec.program_of(env.role, env.index):
        _finish(events, named(program, framework)(spec, events, stop))
    if spec.task == COLLECTIVES:
        _finish(events, collectives.measure(spec, events, named(_library(spec.strategy), framework), meeting=_meeting(env)))
    if spec.task == REHEARSAL:
        _finish(events, _rehearse(spec, events, _meeting(env)))
    task = _task_of(spec)
    engine = named(role.evaluation or _engine(spec), framework)(task, spec)
    stop.listen()
    events.fingerprint(engine.fingerprint())
    if role.evaluation:
        code = Evaluator(spec, env, task, engine, events, stop).run()
    else:
        code = Training(Run(spec, env, task, engine, events, stop)).run()
    engine.close()
    _finish(events, code)


def _engine(spec: TrainerSpec) -> str:
    """The path of the engine of this job."""
    if spec.strategy.engine is None:
        raise BadConfiguration(f"spec.trainer.{spec.entry_point}: {spec.strategy.name} trains no tasks; write script or command")
    return spec.strategy.engine


def _library(strategy: StrategyRuntime) -> str:
    """The path of the library of the strategy's collectives."""
    if strategy.collectives is None:
        raise BadConfiguration(f"task {COLLECTIVES}: {strategy.name} has no collectives; use another strategy")
    return strategy.collectives


def _meeting(env: ReplicaEnvironment) -> Meeting:
    return Meeting(env, rank=int(os.environ.get(RANK) or 0))


def _rehearse(spec: TrainerSpec, events: Events, meeting: Meeting) -> ExitCode:
    """Measures the steps of another task. Each process runs them without the others."""
    framework = spec.strategy.framework
    rehearsal = Rehearsal.of(spec)
    with meeting:
        remove_world_variables(framework)
        task = load_task(rehearsal.spec)
        engine = named(_engine(rehearsal.spec), framework)(task, rehearsal.spec)
        events.fingerprint(engine.fingerprint())
        return rehearsal.measure(task, engine, events, meeting)


def _failed(events: Events, error: TrainerError, *, cause: BaseException | None = None) -> ExitCode:
    """Prints why the process ends. If the user's code raised `cause`, or the cause that `error` names, its traceback comes first."""
    cause = cause or error.__cause__
    if _debug():
        events.complain_of(error if error.__traceback__ else cause)
    elif isinstance(error, UserError):
        events.complain_of(cause)
    message = " ".join(str(error).split())[:2000]
    events.error(error.code, message, reason=error.reason)
    events.complain(f"{error.reason}: {message}")
    return error.code


def _rank(environment: Mapping[str, str]) -> int:
    """The rank from MUSTER_RANK; 0 if it is not set, as in a process that is started by hand."""
    text = environment.get(RANK) or environment.get(NAMES["index"]) or "0"
    return int(text) if text.isdecimal() else 0


def _debug() -> bool:
    return os.environ.get(DEBUG) == "1"


if __name__ == "__main__":
    main()
