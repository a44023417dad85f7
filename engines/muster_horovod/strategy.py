"""The descriptor of Horovod: workers whose processes are its ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from muster.api.problems import Problem
from muster.api.spec import WORKER, TrainingJobSpec
from muster.strategies.base import Addresses, ReplicaPlan, RoleRule, Strategy, WorldPlan
from muster.strategies.libraries import GLOO_PEER_LOST
from muster.strategies.own_programs import task_problems
from muster_contract.strategy import Framework, RoleRuntime, StrategyRuntime

PORT_NAME, PORT_NUMBER = "horovod", 29450
_LAUNCHER = re.compile(r"(?:^|[\s;&|(/])(horovodrun|mpirun|mpiexec|orterun|prterun|torchrun)(?:\s|$)")

FRAMEWORK = Framework(
    name="Horovod",
    package="muster_horovod",
    modules=("horovod", "torch"),
    process_environment={"HOROVOD_RANK": "$(MUSTER_RANK)", "HOROVOD_LOCAL_RANK": "$(MUSTER_LOCAL_RANK)"},
    # How long a rank waits in hvd.init() for the others, which may still import. Horovod's own default is 30.
    default_environment={"HOROVOD_GLOO_TIMEOUT_SECONDS": "300"},
    world_variables=(
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        "HOROVOD_HOSTNAME",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "HOROVOD_CONTROLLER",
        "HOROVOD_CPU_OPERATIONS",
    ),
    peer_lost=(
        *GLOO_PEER_LOST,
        # All errors of a collective are a HorovodInternalError. These are about what the program has passed to it.
        r"HorovodInternalError(?!.*(?:Mismatched|not supported|rank.zero|same name|prescale_factor|nvalid|AVERAGE not allowed))",
        r"Horovod has been shut down\. This was caused by an exception on one of the ranks",
    ),
)


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    """What horovodrun passes to the processes of a host, apart from the ranks of each process. A replica is a host."""
    first = plan.first
    return {
        "HOROVOD_SIZE": str(plan.size),
        "HOROVOD_LOCAL_SIZE": str(replica.processes),
        "HOROVOD_CROSS_RANK": str(plan.positions[replica.role, replica.index]),
        "HOROVOD_CROSS_SIZE": str(len(plan.replicas)),
        "HOROVOD_HOSTNAME": f"{replica.role}-{replica.index}",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": addresses.host(first.role, first.index),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(addresses.port(first.role, first.index, PORT_NAME)),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def data_parallel(spec: TrainingJobSpec) -> int:
    """Every rank has a share of the batch."""
    return HOROVOD.plan(spec).size


def problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
    """A job that does not name a program of its own, or that starts the ranks by itself."""
    trainer = spec.trainer
    yield from task_problems(spec, "Horovod trains no tasks; write script or command, with a program that calls hvd.init(), or use DDP")
    for field, words in (("command", trainer.command or ()), ("script", (trainer.script or "",)), ("args", trainer.args or ())):
        if match := next(filter(None, map(_LAUNCHER.search, words)), None):
            message = (
                f"Muster starts each rank itself, without {match[1]}; write only the program and its arguments, and the number of ranks "
                "in roles.worker.replicas and processesPerReplica"
            )
            yield Problem(f"spec.trainer.{field}", message)


HOROVOD = Strategy(
    runtime=StrategyRuntime(
        "Horovod", FRAMEWORK, roles={WORKER: RoleRuntime(program="muster_horovod.worker:become_rank", takes_over=True)}
    ),
    roles={WORKER: RoleRule(decides_success=True)},
    first_ports={PORT_NAME: PORT_NUMBER},
    environment=environment,
    data_parallel=data_parallel,
    checks=(problems,),
)
