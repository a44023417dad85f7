"""The descriptor of MPI: a launcher that runs mpirun, and workers with slots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from muster.api.problems import Problem
from muster.api.spec import WORKER, Role, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, ExtraObject, ReplicaPlan, RoleRule, Strategy, WorldPlan, processes_of
from muster.strategies.libraries import GLOO_PEER_LOST, NCCL_PEER_LOST
from muster.strategies.own_programs import secret_of, task_problems
from muster_contract.strategy import Framework, RoleRuntime, StrategyRuntime
from muster_mpi.names import HOSTS, KEY, LAUNCHER, OBJECT, PORT, Host, written

PORT_NAME, PORT_NUMBER = "mpi", 7022
STORE_NAME, STORE_PORT = "mpi-store", 29400
_MPIRUN = re.compile(r"(?:^|[\s;&|(/])(mpirun|mpiexec|orterun|prterun)(?:\s|$)")


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    """The hosts for the launcher, the port for a worker, and for all ranks an address where rank 0 may listen."""
    first = plan.first
    store = {
        "MASTER_ADDR": addresses.host(first.role, first.index),
        "MASTER_PORT": str(addresses.port(first.role, first.index, STORE_NAME)),
    }
    if replica.role == WORKER:
        return {**store, PORT: str(addresses.port(WORKER, replica.index, PORT_NAME))}
    hosts = [
        Host(
            name=f"{WORKER}-{each.index}",
            slots=each.slots or 1,
            address=addresses.host(WORKER, each.index),
            port=addresses.port(WORKER, each.index, PORT_NAME),
        )
        for each in plan.of(WORKER)
    ]
    return {**store, HOSTS: written(hosts, own_slots=replica.ranks)}


def objects(spec: TrainingJobSpec, plan: WorldPlan, addresses: Addresses) -> Sequence[ExtraObject]:
    """The key with which the launcher shows the workers that it belongs to the job."""
    return [secret_of(OBJECT, KEY)]


def data_parallel(spec: TrainingJobSpec) -> int:
    """Every rank has a share of the batch."""
    return MPI.plan(spec).size


def is_worker_too(role: Role) -> bool:
    """Whether the launcher has ranks as well: only if the job gives it a number of processes."""
    return role.processes_per_replica is not None


def problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
    """A job that does not name a program of its own, starts mpirun by itself, or has more slots than GPUs."""
    trainer = spec.trainer
    yield from task_problems(spec, "mpirun starts programs of your own, and trains no tasks; write script or command, or use DDP")
    words = [*(trainer.command or ()), *([trainer.script] if trainer.script else ()), *(trainer.args or ())]
    for word in words:
        if match := _MPIRUN.search(word):
            field = "script" if trainer.script else "command"
            message = (
                f"Muster starts {match[1]} itself, with the hosts and slots of this job; write only the program and its arguments, and set "
                "options of Open MPI by variables such as OMPI_MCA_btl in the template of launcher"
            )
            yield Problem(f"spec.trainer.{field}", message)
            break
    for name in spec.roles:
        role = strategy.role(spec, name) if name in strategy.roles else None
        gpus = accelerators.count(role) if role else 0
        if role and gpus and processes_of(role) > gpus:
            message = f"{processes_of(role)} slots do not fit on {gpus} accelerators of the replica; write at most {gpus}, or leave it out"
            yield Problem(f"spec.roles.{name}.processesPerReplica", message)


MPI = Strategy(
    runtime=StrategyRuntime(
        "MPI",
        Framework(name="MPI", package="muster_mpi", peer_lost=(*GLOO_PEER_LOST, *NCCL_PEER_LOST)),
        roles={
            LAUNCHER: RoleRuntime(program="muster_mpi.launcher:launch", takes_over=True),
            WORKER: RoleRuntime(program="muster_mpi.worker:serve", takes_over=True),
        },
    ),
    # The launcher comes first, so that its ranks, if it has any, are the first ones, as in a hostfile that begins with it.
    roles={
        LAUNCHER: RoleRule(maximum=1, slots=True, ranked=is_worker_too, decides_success=True),
        WORKER: RoleRule(slots=True, ports={PORT_NAME: PORT_NUMBER}),
    },
    first_ports={STORE_NAME: STORE_PORT},
    environment=environment,
    objects=objects,
    reserved=frozenset({"OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "MASTER_ADDR", "MASTER_PORT"}),
    data_parallel=data_parallel,
    checks=(problems,),
    local_remark="Open MPI listens on every network address of this machine: on a network that you do not trust, use a firewall",
)
