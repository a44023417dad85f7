"""JAX: one world of processes, each of which uses all devices of its replica."""

from __future__ import annotations

from collections.abc import Mapping

from muster.api.spec import EVALUATOR, WORKER, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, Measured, ReplicaPlan, RoleRule, Strategy, WorldPlan, worker_of
from muster.strategies.libraries import GLOO_PEER_LOST, NCCL_PEER_LOST
from muster_contract.strategy import Framework, RoleRuntime, StrategyRuntime

PORT_NAME = "jax"
PORT = 8476
"""JAX's own default for the coordination service on TPUs."""

JAX_WORLD = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
FRAMEWORK = Framework(
    name="JAX",
    package="muster_trainer.jax",
    modules=("jax", "jaxlib"),
    world_variables=JAX_WORLD,
    peer_lost=(
        *GLOO_PEER_LOST,
        *NCCL_PEER_LOST,
        r"JAX distributed service detected fatal errors",  # JAX ends a process whose coordinator or peer is gone
        r"stopped sending heartbeats",
        r"JaxRuntimeError: (UNAVAILABLE|DEADLINE_EXCEEDED)",
    ),
)


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    """The variables, with the names that Kubeflow gives them. JAX itself reads the address. Rank 0 hosts the coordination service.

    The evaluator gets none, because it belongs to no world.
    """
    if replica.first_rank is None:
        return {}
    first = plan.replicas[0]
    host, port = addresses.host(first.role, first.index), addresses.port(first.role, first.index, PORT_NAME)
    values = (f"{host}:{port}", str(plan.size), str(replica.first_rank))
    return dict(zip(JAX_WORLD, values, strict=True))


def data_parallel(spec: TrainingJobSpec) -> int:
    """Every device has a share of the batch."""
    worker = worker_of(spec)
    return worker.replicas * (accelerators.count(worker) or 1)


JAX = Strategy(
    runtime=StrategyRuntime(
        "JAX",
        FRAMEWORK,
        engine="muster_trainer.jax.engine:DataParallel",
        collectives="muster_trainer.jax.collectives:Collectives",
        roles={EVALUATOR: RoleRuntime(evaluation="muster_trainer.jax.evaluation:Evaluation")},
    ),
    roles={
        WORKER: RoleRule(single_process=True, decides_success=True),
        EVALUATOR: RoleRule(default=0, maximum=1, single_process=True, in_world=False, restarts_with=frozenset()),
    },
    first_ports={PORT_NAME: PORT},
    environment=environment,
    elastic=True,
    spares=True,
    data_parallel=data_parallel,
    measured=Measured(plain="JAX", single="JAX"),
)
