"""One training process: `python -m muster_trainer.process`, started by the supervisor or by hand."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from muster_trainer import collectives
from muster_trainer.contract import (
    BadConfiguration,
    ExitCode,
    ReplicaEnv,
    TrainerError,
    TrainerSpec,
    UserError,
    trainer_spec_of,
)
from muster_trainer.evaluator import Evaluator
from muster_trainer.events import Events
from muster_trainer.loop import Training
from muster_trainer.meeting import Meeting
from muster_trainer.rehearsal import Rehearsal, part_from_the_world
from muster_trainer.stopping import StopRequest
from muster_trainer.tasks.module import describe, load_task

STRATEGIES: Mapping[str, str] = {
    "DDP": "pytorch.ddp:Ddp",
    "FSDP": "pytorch.fsdp:Fsdp",
    "TensorParallel": "pytorch.tensor_parallel:TensorParallel",
    "Pipeline": "pytorch.pipedream:pipeline",
    "RPC": "pytorch.rpc:RpcEngine",
    "OneDevice": "tensorflow.synchronous:OneDevice",
    "Mirrored": "tensorflow.synchronous:Mirrored",
    "CentralStorage": "tensorflow.synchronous:CentralStorage",
    "MultiWorkerMirrored": "tensorflow.synchronous:MultiWorkerMirrored",
    "ParameterServer": "tensorflow.parameter_server:ParameterServer",
    "TPU": "tensorflow.synchronous:Tpu",
}
"""Where each strategy's Engine is made; imported when it is used, for an image has one framework only."""
FITTING: Mapping[str, str] = {
    name: f"tensorflow.fit:{name}" for name, path in STRATEGIES.items() if path.startswith("tensorflow.") and name != "TPU"
}
"""The same for `options.loop: Fit`."""
EVALUATOR = "evaluator"
EVALUATION = "tensorflow.evaluation:Evaluation"
"""The role that evaluates, and its Engine; PyTorch's strategies have no such role."""

COLLECTIVES = "collectives"
LIBRARIES: Mapping[str, str] = dict.fromkeys(("DDP", "FSDP", "TensorParallel", "Pipeline"), "pytorch.collectives:Collectives") | {
    "MultiWorkerMirrored": "tensorflow.collectives:Collectives",
    "Mirrored": "tensorflow.collectives:BetweenDevices",
}
"""What the task `collectives` measures, by strategy."""
REHEARSAL = "rehearsal"


def main() -> NoReturn:
    """Runs the training that the environment describes, and ends with a code of the contract."""
    faulthandler.register(signal.SIGUSR1)  # to tell where it hangs: supervisor/stacks.py
    events = Events.from_environment(os.environ, _rank(os.environ))
    try:
        _run(events)
    except TrainerError as error:
        _end(_failed(events, error))
    except SystemExit as error:  # of the user's: only `_end` ends this process well
        message = f"the training code ended the process: {describe(error)}; it is Muster that ends it, when all is done"
        _end(_failed(events, UserError(message)))
    except Exception as error:  # noqa: BLE001 (whatever the user's code raises ends in one line)
        _end(_failed(events, UserError(f"the training code failed: {describe(error)}")))


def _end(code: ExitCode) -> NoReturn:
    """Ends the process while everything of the framework is still referenced, be it by a traceback.

    Its destructors may hang or abort: torch's joins the threads of Gloo with the GIL in hand, which these may be waiting for.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(events: Events) -> NoReturn:
    env = ReplicaEnv.from_environment(os.environ)
    spec = trainer_spec_of(os.environ)
    stop = StopRequest(events.descriptor)
    events.emit("phase", phase="Starting")
    if spec.module is not None and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # Muster's own processes are started with -P; the user's module may be there
    quiet()
    if serve := _server(env):
        _end(_made(serve, env)(spec, events, stop))
    if spec.task == COLLECTIVES:
        _end(collectives.measure(spec, events, _made(_library(env), env), environment=os.environ))
    if spec.task == REHEARSAL:
        _end(_rehearse(spec, env, events))
    evaluates = env.role == EVALUATOR
    path = EVALUATION if evaluates else _strategy(spec, env)
    task = load_task(spec, env.framework)
    engine = _made(path, env)(task, spec)
    stop.listen()
    events.fingerprint(engine.fingerprint())
    life = Evaluator if evaluates else Training
    code = life(spec=spec, env=env, task=task, engine=engine, events=events, stop=stop).run()
    engine.close()
    _end(code)


def _strategy(spec: TrainerSpec, env: ReplicaEnv) -> str:
    """Where the Engine of this job is made."""
    if spec.options.get("loop", "Custom") == "Custom":
        return STRATEGIES[env.strategy]
    if env.strategy not in FITTING:
        raise BadConfiguration(
            f"spec.options.loop: Keras fits with {', '.join(FITTING)}, and not with {env.strategy}; write Custom, or leave it out"
        )
    return FITTING[env.strategy]


def _library(env: ReplicaEnv) -> str:
    """What does the collectives of this job's strategy."""
    if env.strategy not in LIBRARIES:
        raise BadConfiguration(f"task {COLLECTIVES}: {env.strategy} has no collectives; write one of {', '.join(LIBRARIES)}")
    return LIBRARIES[env.strategy]


def _rehearse(spec: TrainerSpec, env: ReplicaEnv, events: Events) -> ExitCode:
    """The steps of another task, each process for itself."""
    rehearsal = Rehearsal.of(spec)
    with Meeting(os.environ) as meeting:
        part_from_the_world()
        task = load_task(rehearsal.spec, env.framework)
        engine = _made(STRATEGIES[env.strategy], env)(task, rehearsal.spec)
        events.fingerprint(engine.fingerprint())
        return rehearsal.measure(task, engine, events, meeting)


def _server(env: ReplicaEnv) -> str | None:
    """What a process runs that only answers the one which drives the training."""
    if env.strategy == "ParameterServer" and env.role in ("worker", "ps"):
        return "tensorflow.server:serve"
    return "tensorflow.server:serve_host" if env.strategy == "TPU" and env.index > 0 else None


def _made(path: str, env: ReplicaEnv) -> Callable[..., Any]:
    """What `module:name` below this package names."""
    module, _, name = path.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(f"muster_trainer.{module}"), name)
    except ModuleNotFoundError as error:
        raise BadConfiguration(
            f"strategy {env.strategy} needs {env.framework}: {error}; use the trainer image of that framework"
        ) from error
    return found


def _failed(events: Events, error: TrainerError) -> ExitCode:
    if _debug():
        traceback.print_exc()
    message = " ".join(str(error).split())[:2000]
    events.emit("error", code=int(error.code), reason=error.reason, message=message, step=events.step)
    events.complain(f"{error.reason}: {message}")
    return error.code


def _rank(environment: Mapping[str, str]) -> int:
    """RANK for PyTorch; TensorFlow runs one process a replica, whose rank is its index."""
    text = environment.get("RANK") or environment.get("MUSTER_INDEX") or "0"
    return int(text) if text.isdecimal() else 0


def _debug() -> bool:
    return os.environ.get("MUSTER_DEBUG") == "1"


def quiet() -> None:
    """To be called before a framework is imported. TensorFlow and gRPC log to stderr from C++, and read these when they are imported."""
    if not _debug():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


if __name__ == "__main__":
    main()
