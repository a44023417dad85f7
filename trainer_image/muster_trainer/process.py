"""One training process: `python -m muster_trainer.process`, started by the supervisor or by hand."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from platform import python_version
from typing import NoReturn

from muster_trainer.contract import (
    BadConfiguration,
    ExitCode,
    ReplicaEnv,
    TrainerError,
    TrainerSpec,
    UserError,
    trainer_spec_of,
)
from muster_trainer.engine import Engine
from muster_trainer.events import Events
from muster_trainer.loop import Training
from muster_trainer.stopping import StopRequest
from muster_trainer.tasks.module import Task, describe, load_task


def _ddp(task: Task, spec: TrainerSpec) -> Engine:
    from muster_trainer.pytorch.ddp import Ddp

    return Ddp(task, spec)


def _fsdp(task: Task, spec: TrainerSpec) -> Engine:
    from muster_trainer.pytorch.fsdp import Fsdp

    return Fsdp(task, spec)


def _tensor_parallel(task: Task, spec: TrainerSpec) -> Engine:
    from muster_trainer.pytorch.tensor_parallel import TensorParallel

    return TensorParallel(task, spec)


def _pipeline(task: Task, spec: TrainerSpec) -> Engine:
    from muster_trainer.pytorch.pipeline import Pipeline

    return Pipeline(task, spec)


def _rpc(task: Task, spec: TrainerSpec) -> Engine:
    from muster_trainer.pytorch.rpc import RpcEngine

    return RpcEngine(task, spec)


def _multi_worker_mirrored(task: Task, spec: TrainerSpec) -> Engine:
    from muster_trainer.tensorflow.synchronous import Synchronous
    from muster_trainer.tensorflow.world import join

    return Synchronous(task, spec, join)


def _one_machine(name: str) -> Callable[[Task, TrainerSpec], Engine]:
    def engine(task: Task, spec: TrainerSpec) -> Engine:
        from muster_trainer.tensorflow import machine
        from muster_trainer.tensorflow.synchronous import Synchronous

        return Synchronous(task, spec, machine.STRATEGIES[name])

    return engine


STRATEGIES: Mapping[str, Callable[[Task, TrainerSpec], Engine]] = {
    "DDP": _ddp,
    "FSDP": _fsdp,
    "TensorParallel": _tensor_parallel,
    "Pipeline": _pipeline,
    "RPC": _rpc,
    "OneDevice": _one_machine("OneDevice"),
    "Mirrored": _one_machine("Mirrored"),
    "CentralStorage": _one_machine("CentralStorage"),
    "MultiWorkerMirrored": _multi_worker_mirrored,
}


def main() -> NoReturn:
    """Runs the training that the environment describes, and ends with a code of the contract."""
    events = Events.from_environment(os.environ, _rank(os.environ))
    try:
        _run(events)
    except TrainerError as error:
        _end(_failed(events, error))
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
    if env.strategy not in STRATEGIES:
        raise BadConfiguration(
            f"strategy {env.strategy}: the bundled trainer runs {', '.join(STRATEGIES)}; "
            "with `script:` or `command:` your own program can use any strategy"
        )
    if spec.checkpoint is not None and spec.checkpoint.directory.parts[:1] == ("s3:",):
        raise BadConfiguration(
            "spec.checkpoint.storage.uri: the bundled trainer saves to folders only; write file:///path, or name a persistentVolumeClaim"
        )
    stop = StopRequest(events.descriptor)
    events.emit("phase", phase="Starting")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _quiet()
    task = load_task(spec, env.framework)
    engine = _engine(task, spec, env)
    stop.listen()
    fingerprint = {"python": python_version(), "host": socket.gethostname(), **engine.fingerprint()}
    events.emit("fingerprint", **fingerprint)
    code = Training(spec=spec, env=env, task=task, engine=engine, events=events, stop=stop).run()
    engine.close()
    _end(code)


def _engine(task: Task, spec: TrainerSpec, env: ReplicaEnv) -> Engine:
    try:
        return STRATEGIES[env.strategy](task, spec)
    except ModuleNotFoundError as error:
        raise BadConfiguration(
            f"strategy {env.strategy} needs {env.framework}: {error}; use the trainer image of that framework"
        ) from error


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


def _quiet() -> None:
    """TensorFlow and gRPC log to stderr from C++, and read these when they are imported."""
    if not _debug():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


if __name__ == "__main__":
    main()
