"""tf.distribute.ParameterServerStrategy: a chief hands out steps, workers compute them, parameter servers hold the variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from muster.api.problems import Problem
from muster.api.spec import RoleName, StrategyName, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, Framework, ReplicaPlan, RoleRule, WorldPlan
from muster.strategies.checks import general_problems, tensorflow_problems
from muster.strategies.tensorflow import devices_per_worker
from muster.strategies.tf_config import PORT, PORT_NAME, tf_config
from muster.strategies.traits import ALONE, EVALUATOR, Traits, replicas_of


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Traits):
    """Asynchronous: a worker that breaks is waited for by nobody. The coordinator's task type is `chief`."""

    def plan(self, spec: TrainingJobSpec) -> WorldPlan:
        members: list[ReplicaPlan] = []
        for name in self.roles:
            role = self.role(spec, name)
            if role is not None:
                first_rank = None if name is RoleName.EVALUATOR else len(members)
                members += replicas_of(name, role.replicas, processes=1, first_rank=first_rank)
        listening = tuple(replace(member, ports={PORT_NAME: PORT}) for member in members)
        return WorldPlan(listening, size=sum(member.first_rank is not None for member in members))

    def environment(self, spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
        # TensorFlow's parameter server guide asks for this: without it a call to a worker that restarts hangs instead of failing.
        return {"TF_CONFIG": tf_config(plan, replica, addresses), "GRPC_FAIL_FAST": "use_caller"}

    def restarts_with(self, role: RoleName) -> frozenset[RoleName] | None:
        """A lost parameter server takes variables with it, which only the chief can restore; worker and chief restart alone."""
        return frozenset({RoleName.CHIEF}) if role is RoleName.PS else ALONE

    def data_parallel(self, spec: TrainingJobSpec) -> int:
        """A step is one worker's: each takes batches of its own."""
        return devices_per_worker(spec, accelerators.count(self.worker(spec)))

    def problems(self, spec: TrainingJobSpec) -> Sequence[Problem]:
        return general_problems(self, spec, devices=self.data_parallel(spec)) + tensorflow_problems(self, spec)


PARAMETER_SERVER = ParameterServer(
    name=StrategyName.PARAMETER_SERVER,
    framework=Framework.TENSORFLOW,
    summary="The chief hands out steps; each worker computes them at its own pace and updates the variables, which parameter servers hold.",
    roles={
        RoleName.CHIEF: RoleRule(default=1, maximum=1),
        RoleName.WORKER: RoleRule(default=1),
        RoleName.PS: RoleRule(default=1),
        RoleName.EVALUATOR: EVALUATOR,
    },
    options=frozenset({"loop"}),
    synchronous=False,
    decisive=RoleName.CHIEF,
)
