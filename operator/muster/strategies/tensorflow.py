"""tf.distribute on one machine (OneDevice, Mirrored, CentralStorage) and on several (MultiWorkerMirrored)."""

from __future__ import annotations

from collections.abc import Iterator

from muster.api.problems import Problem
from muster.api.spec import EVALUATOR, WORKER, Communication, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import RoleRule, Strategy, worker_of
from muster.strategies.tf_config import LOCAL_REMARK, MEASURED, PORTS, TENSORFLOW, environment
from muster_contract.strategy import RoleRuntime, StrategyRuntime


def devices_per_worker(spec: TrainingJobSpec) -> int:
    """Number of devices that tf.distribute uses in one process: the named ones, or else the accelerators, or else logical CPUs, or one
    CPU."""
    if spec.options.devices:
        return len(spec.options.devices)
    return accelerators.count(worker_of(spec)) or spec.options.logical_devices or 1


def data_parallel(spec: TrainingJobSpec) -> int:
    return worker_of(spec).replicas * devices_per_worker(spec)


def one_device_problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
    count = len(spec.options.devices or [])
    if count > 1:
        yield Problem("spec.options.devices", f"{strategy.name} takes one device, not {count}; name one, or use Mirrored")


ONE_WORKER = {WORKER: RoleRule(maximum=1, single_process=True, decides_success=True)}
EVALUATION = RoleRuntime(evaluation="muster_trainer.tensorflow.evaluation:Evaluation")
EVALUATOR_RULE = RoleRule(default=0, maximum=1, single_process=True, ports=PORTS, in_world=False, restarts_with=frozenset())

ONE_DEVICE = Strategy(
    runtime=StrategyRuntime("OneDevice", TENSORFLOW, engine="muster_trainer.tensorflow.synchronous:OneDevice"),
    roles=ONE_WORKER,
    options=frozenset({"loop", "devices"}),
    data_parallel=lambda spec: 1,
    checks=(one_device_problems,),
    measured=MEASURED,
)
MIRRORED = Strategy(
    runtime=StrategyRuntime(
        "Mirrored",
        TENSORFLOW,
        engine="muster_trainer.tensorflow.synchronous:Mirrored",
        collectives="muster_trainer.tensorflow.collectives:BetweenDevices",
    ),
    roles=ONE_WORKER,
    options=frozenset({"loop", "devices", "logical_devices"}),
    communications=frozenset({Communication.NCCL, Communication.HIERARCHICAL, Communication.ONE_DEVICE}),
    data_parallel=data_parallel,
    measured=MEASURED,
)
CENTRAL_STORAGE = Strategy(
    runtime=StrategyRuntime("CentralStorage", TENSORFLOW, engine="muster_trainer.tensorflow.synchronous:CentralStorage"),
    roles=ONE_WORKER,
    options=frozenset({"loop", "devices", "logical_devices"}),
    data_parallel=data_parallel,
    measured=MEASURED,
)
# TF_CONFIG is set for a single worker too: tf.distribute takes a cluster of one, programs that read the variable work at any size, and
# the same job scales without a change. Worker 0 is the chief by TensorFlow's own rule (`multi_worker_util.is_chief`).
MULTI_WORKER_MIRRORED = Strategy(
    runtime=StrategyRuntime(
        "MultiWorkerMirrored",
        TENSORFLOW,
        engine="muster_trainer.tensorflow.synchronous:MultiWorkerMirrored",
        collectives="muster_trainer.tensorflow.collectives:Collectives",
        roles={EVALUATOR: EVALUATION},
    ),
    roles={WORKER: RoleRule(single_process=True, ports=PORTS, decides_success=True), EVALUATOR: EVALUATOR_RULE},
    environment=environment,
    options=frozenset({"loop"}),
    communications=frozenset({Communication.NCCL, Communication.RING}),
    spares=True,
    data_parallel=data_parallel,
    measured=MEASURED,
    local_remark=LOCAL_REMARK,
)
