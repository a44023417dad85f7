"""PyTorch: worlds of processes with torchrun's environment (DDP, FSDP, TensorParallel, RPC)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from muster.api.problems import Problem
from muster.api.spec import CHIEF, PS, WORKER, Communication, TrainingJobSpec
from muster.strategies.base import Addresses, Measured, ReplicaPlan, RoleRule, Strategy, WorldPlan, processes_of, worker_of
from muster.strategies.libraries import GLOO_PEER_LOST, NCCL_PEER_LOST
from muster_contract.options import MeshOptions
from muster_contract.strategy import Framework, StrategyRuntime

PORT_NAME = "torchrun"
PORT = 29500
"""torchrun's own default."""

PYTORCH = Framework(
    name="PyTorch",
    package="muster_trainer.pytorch",
    modules=("torch",),
    preload=("torch._dynamo",),  # torch imports it when the first optimizer is created
    # The variables that torchrun sets for each process, without those of the container. Source: torchrun's manual.
    process_environment={
        "RANK": "$(MUSTER_RANK)",
        "LOCAL_RANK": "$(MUSTER_LOCAL_RANK)",
        "LOCAL_WORLD_SIZE": "$(MUSTER_PROCESSES)",
        "MASTER_ADDR": "$(MASTER_ADDR)",  # of the container: a process without it is refused
        "MASTER_PORT": "$(MASTER_PORT)",
        "GROUP_RANK": "$(PET_NODE_RANK)",
        "GROUP_WORLD_SIZE": "$(PET_NNODES)",
        # torchrun's roles are groups of processes that restart together. A world of Muster's is one group.
        "ROLE_NAME": "default",
        "ROLE_RANK": "$(MUSTER_RANK)",
        "ROLE_WORLD_SIZE": "$(WORLD_SIZE)",
        "TORCHELASTIC_RUN_ID": "$(MUSTER_JOB_UID)",
        "TORCHELASTIC_RESTART_COUNT": "$(MUSTER_ATTEMPT)",
        # Muster limits failures by their class and not restarts, so no restart is the last one.
        "TORCHELASTIC_MAX_RESTARTS": str(2**31 - 1),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 hosts the store
    },
    default_environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
    world_variables=("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"),
    peer_lost=(
        *GLOO_PEER_LOST,
        *NCCL_PEER_LOST,
        r"Connection was likely closed\. Did the remote server shutdown or crash",
        r"^(?=.*client socket has timed out after).* trying to connect",
        r"RendezvousConnectionError",
    ),
)
COLLECTIVES = "muster_trainer.pytorch.collectives:Collectives"


def environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    """The variables that torchrun reads (PET_*) and those that `init_process_group` reads.

    Rendezvous is static: the operator decides on members and ranks, and a change of them is a new attempt. Rank 0 hosts it.
    """
    first = plan.first
    host = addresses.host(first.role, first.index)
    port = str(addresses.port(first.role, first.index, PORT_NAME))
    env = {
        "PET_NNODES": str(len(plan.replicas)),
        "PET_NPROC_PER_NODE": str(replica.processes),
        "PET_NODE_RANK": str(plan.positions[replica.role, replica.index]),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(plan.size),
        # Otherwise torchrun shares its own store with the processes, which a second start in the same pod cannot use.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return {**env, "RANK": str(replica.first_rank)} if replica.processes == 1 else env


_STANDALONE = re.compile(r"(?:torchrun|torch\.distributed\.run)\b(?!.*--nnodes[ =]1\b).* --standalone\b", re.DOTALL)


def launcher_problems(strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
    """A launcher that is to wait for the other replicas at an address of its own machine waits in vain."""
    if len(strategy.plan(spec).replicas) > 1 and _STANDALONE.search(" ".join(spec.trainer.command or ())):
        yield Problem(
            "spec.trainer.command",
            "with --standalone, torchrun looks for the other replicas on its own machine, and never meets them; leave --standalone out, "
            "because Muster sets the number of nodes and the address (PET_NNODES, PET_MASTER_ADDR)",
        )


def data_parallel(spec: TrainingJobSpec) -> int:
    """Every process has a share of the batch."""
    worker = worker_of(spec)
    return worker.replicas * processes_of(worker)


@dataclass(frozen=True)
class Mesh:
    """A world whose processes may form a mesh. `whole_world` is the axis that gets all processes if the spec has no mesh."""

    whole_world: str
    shards: bool = False

    def of(self, spec: TrainingJobSpec) -> MeshOptions:
        return spec.options.for_trainer.mesh or MeshOptions(**{self.whole_world: data_parallel(spec)})

    def data_parallel(self, spec: TrainingJobSpec) -> int:
        return self.of(spec).data

    def problems(self, strategy: Strategy, spec: TrainingJobSpec) -> Iterator[Problem]:
        mesh = self.of(spec)
        if mesh.shard is not None and not self.shards:
            yield Problem("spec.options.mesh.shard", f"{strategy.name} does not shard; remove it, or use FSDP")
            mesh = replace(mesh, shard=None)
        yield from itertools.starmap(Problem, mesh.problems(processes=strategy.plan(spec).size))
        if spec.options.mesh and spec.elastic:
            yield Problem("spec.options.mesh", "a mesh fixes the number of processes; leave out spec.elastic, or the mesh")


COLLECTIVE_LIBRARIES = frozenset({Communication.NCCL, Communication.GLOO})
MEASURED = Measured(plain="DDP", single="DDP", sharded="FSDP")
WORKERS = {WORKER: RoleRule(decides_success=True)}
FIRST_PORTS = {PORT_NAME: PORT}
RESERVED = frozenset({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE"})
LOCAL_REMARK = (
    "PyTorch's store listens on every network address of this machine, without a password: on a network that you do not "
    "trust, close its port with a firewall; --ports sets which port it is"
)
LAUNCHER_GRACE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""torchrun kills its processes after this time, or after 30 s by default."""
_DATA, _TENSOR = Mesh("data", shards=True), Mesh("tensor")

worker_strategy = partial(
    Strategy,
    roles=WORKERS,
    first_ports=FIRST_PORTS,
    environment=environment,
    reserved=RESERVED,
    launcher_grace=LAUNCHER_GRACE,
    keeps_snapshots=True,
    communications=COLLECTIVE_LIBRARIES,
    spares=True,
    measured=MEASURED,
    checks=(launcher_problems,),
    local_remark=LOCAL_REMARK,
)
"""A strategy whose only role is worker, and whose workers can have any rank."""

DDP = worker_strategy(
    runtime=StrategyRuntime("DDP", PYTORCH, "muster_trainer.pytorch.ddp:engine", collectives=COLLECTIVES),
    options=frozenset({"gradient_compression"}),
    elastic=True,
    data_parallel=data_parallel,
)
FSDP = worker_strategy(
    runtime=StrategyRuntime("FSDP", PYTORCH, "muster_trainer.pytorch.fsdp:engine", collectives=COLLECTIVES),
    options=frozenset({"mesh"}),
    shards_state=True,
    elastic=True,
    data_parallel=_DATA.data_parallel,
    checks=(launcher_problems, _DATA.problems),
)
TENSOR_PARALLEL = worker_strategy(
    runtime=StrategyRuntime("TensorParallel", PYTORCH, "muster_trainer.pytorch.tensor_parallel:engine", collectives=COLLECTIVES),
    options=frozenset({"mesh"}),
    shards_state=True,
    data_parallel=_TENSOR.data_parallel,
    checks=(launcher_problems, _TENSOR.problems),
)
RPC = Strategy(
    runtime=StrategyRuntime("RPC", PYTORCH, "muster_trainer.pytorch.rpc:RpcEngine"),
    # The chief is rank 0. It starts the work of the others, and the job ends with it.
    roles={CHIEF: RoleRule(maximum=1, decides_success=True), WORKER: RoleRule(), PS: RoleRule()},
    first_ports=FIRST_PORTS,
    environment=environment,
    reserved=RESERVED,
    launcher_grace=LAUNCHER_GRACE,
    options=frozenset({"synchronous"}),
    is_synchronous=lambda spec: bool(spec.options.synchronous),
    data_parallel=data_parallel,
    checks=(launcher_problems,),
    measured=MEASURED,
    local_remark=LOCAL_REMARK,
)
