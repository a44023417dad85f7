"""The operator's side."""

from __future__ import annotations

from collections.abc import Sequence

from muster.api.spec import WORKER, TrainingJobSpec
from muster.strategies.base import Addresses, ExtraObject, RoleRule, Strategy, WorldPlan, worker_of
from muster_contract.strategy import Framework, RoleRuntime, StrategyRuntime

LAUNCHER = "launcher"
PORT_NAME, PORT = "relay", 7070


def hostfile(spec: TrainingJobSpec, plan: WorldPlan, addresses: Addresses) -> Sequence[ExtraObject]:
    """The workers' addresses, one on a line."""
    lines = [f"{addresses.host(WORKER, each.index)}:{addresses.port(WORKER, each.index, PORT_NAME)}" for each in plan.of(WORKER)]
    return [ExtraObject("hostfile", lambda: {"hosts": "".join(f"{line}\n" for line in lines)})]


RELAY = Strategy(
    runtime=StrategyRuntime(
        "Relay",
        Framework(name="Relay", package="muster_toy"),
        roles={LAUNCHER: RoleRuntime(program="muster_toy.trainer:launch"), WORKER: RoleRuntime(program="muster_toy.trainer:serve")},
    ),
    roles={
        LAUNCHER: RoleRule(maximum=1, single_process=True, decides_success=True),
        WORKER: RoleRule(single_process=True, ports={PORT_NAME: PORT}),
    },
    objects=hostfile,
    reserved=frozenset({"RELAY_HOSTFILE"}),
    data_parallel=lambda spec: worker_of(spec).replicas,
)
