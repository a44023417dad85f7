"""tf.distribute on one machine (OneDevice, Mirrored, CentralStorage) and on several (MultiWorkerMirrored)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from muster.api.problems import Problem
from muster.api.spec import Communication, RoleName, StrategyName, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, Framework, ReplicaPlan, RoleRule, WorldPlan
from muster.strategies.checks import general_problems, tensorflow_problems
from muster.strategies.tf_config import PORT, PORT_NAME, tf_config
from muster.strategies.traits import EVALUATOR, ONE_WORKER, Traits, replicas_of


def devices_per_worker(spec: TrainingJobSpec, worker_accelerators: int) -> int:
    """Devices that tf.distribute spreads over in one process: those named, else the accelerators, else logical CPUs, else one CPU."""
    if spec.options.devices:
        return len(spec.options.devices)
    return worker_accelerators or spec.options.logical_devices or 1


@dataclass(frozen=True, kw_only=True)
class OneMachine(Traits):
    """A strategy of one process: nobody to find, so no TF_CONFIG and no port."""

    def plan(self, spec: TrainingJobSpec) -> WorldPlan:
        workers = replicas_of(RoleName.WORKER, self.worker(spec).replicas, processes=1, first_rank=0)
        return WorldPlan(tuple(workers), size=len(workers))

    def environment(self, spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
        return {}

    def data_parallel(self, spec: TrainingJobSpec) -> int:
        if self.name is StrategyName.ONE_DEVICE:
            return 1
        return devices_per_worker(spec, accelerators.count(self.worker(spec)))

    def problems(self, spec: TrainingJobSpec) -> Sequence[Problem]:
        found = general_problems(self, spec, devices=self.data_parallel(spec)) + tensorflow_problems(self, spec)
        devices = spec.options.devices or []
        if self.name is StrategyName.ONE_DEVICE and len(devices) > 1:
            found.append(Problem("spec.options.devices", f"OneDevice takes one device, not {len(devices)}; name one, or use Mirrored"))
        return found


@dataclass(frozen=True, kw_only=True)
class MultiWorkerMirrored(Traits):
    """One process per worker, synchronous over all devices of all workers.

    TF_CONFIG is set for a single worker too: tf.distribute takes a cluster of one, programs that read the variable work at any
    size, and the same job scales without a change. Worker 0 is the chief by TensorFlow's own rule (`multi_worker_util.is_chief`).
    """

    def plan(self, spec: TrainingJobSpec) -> WorldPlan:
        workers = replicas_of(RoleName.WORKER, self.worker(spec).replicas, processes=1, first_rank=0)
        evaluator = self.role(spec, RoleName.EVALUATOR)
        evaluators = replicas_of(RoleName.EVALUATOR, evaluator.replicas if evaluator else 0, processes=1, first_rank=None)
        listening = [replace(replica, ports={PORT_NAME: PORT}) for replica in (*workers, *evaluators)]
        return WorldPlan(tuple(listening), size=len(workers))

    def environment(self, spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
        return {"TF_CONFIG": tf_config(plan, replica, addresses)}

    def data_parallel(self, spec: TrainingJobSpec) -> int:
        worker = self.worker(spec)
        return worker.replicas * devices_per_worker(spec, accelerators.count(worker))

    def problems(self, spec: TrainingJobSpec) -> Sequence[Problem]:
        return general_problems(self, spec, devices=self.data_parallel(spec)) + tensorflow_problems(self, spec)


ONE_DEVICE = OneMachine(
    name=StrategyName.ONE_DEVICE,
    framework=Framework.TENSORFLOW,
    summary="One process trains on one device; the yardstick that the others are compared with.",
    roles=ONE_WORKER,
    options=frozenset({"loop", "devices"}),
)
MIRRORED = OneMachine(
    name=StrategyName.MIRRORED,
    framework=Framework.TENSORFLOW,
    summary="Every device of one machine holds a copy of the model; gradients are summed over them at each step.",
    roles=ONE_WORKER,
    options=frozenset({"loop", "devices", "logical_devices"}),
    communications=frozenset({Communication.NCCL, Communication.HIERARCHICAL, Communication.ONE_DEVICE}),
)
CENTRAL_STORAGE = OneMachine(
    name=StrategyName.CENTRAL_STORAGE,
    framework=Framework.TENSORFLOW,
    summary="The variables lie once, on the CPU of one machine; its devices compute gradients, which are summed there at each step.",
    roles=ONE_WORKER,
    options=frozenset({"loop", "devices", "logical_devices"}),
)
MULTI_WORKER_MIRRORED = MultiWorkerMirrored(
    name=StrategyName.MULTI_WORKER_MIRRORED,
    framework=Framework.TENSORFLOW,
    summary="Every device of every worker holds a copy of the model; gradients are summed over all of them at each step.",
    roles={RoleName.WORKER: RoleRule(default=1), RoleName.EVALUATOR: EVALUATOR},
    options=frozenset({"loop"}),
    communications=frozenset({Communication.NCCL, Communication.RING}),
)
