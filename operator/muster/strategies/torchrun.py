"""PyTorch: worlds of processes with torchrun's environment (DDP, FSDP, TensorParallel, Pipeline, RPC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from muster.api.problems import Problem
from muster.api.spec import Communication, MeshOptions, PipelineOptions, Role, RoleName, StrategyName, TrainingJobSpec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, Framework, ReplicaPlan, RoleRule, WorldPlan
from muster.strategies.checks import general_problems, torch_problems
from muster.strategies.traits import WORKERS, Traits, replicas_of

PORT_NAME = "torchrun"
PORT = 29500
"""torchrun's own default."""


def processes_of(role: Role) -> int:
    """Processes of each replica: as the user says, else one per accelerator, else one."""
    return role.processes_per_replica or accelerators.count(role) or 1


@dataclass(frozen=True, kw_only=True)
class TorchWorld(Traits):
    """One world over all roles; replicas are ranked role after role, in the order of `roles`, and rank 0 hosts the rendezvous.

    The variables are those that torchrun reads (PET_*) and those that `init_process_group` reads. Rendezvous is static: members and
    ranks are the operator's to say, and a change of them is a new attempt.
    """

    def plan(self, spec: TrainingJobSpec) -> WorldPlan:
        members: list[ReplicaPlan] = []
        size = 0
        for name in self.roles:
            role = self.role(spec, name)
            if role is not None:
                processes = processes_of(role)
                members += replicas_of(name, role.replicas, processes=processes, first_rank=size)
                size += role.replicas * processes
        members[0] = replace(members[0], ports={PORT_NAME: PORT})
        return WorldPlan(tuple(members), size=size)

    def environment(self, spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
        first = plan.replicas[0]
        host = addresses.host(first.role, first.index)
        port = str(addresses.port(first.role, first.index, PORT_NAME))
        env = {
            "PET_NNODES": str(len(plan.replicas)),
            "PET_NPROC_PER_NODE": str(replica.processes),
            "PET_NODE_RANK": str(_node_rank(plan, replica)),
            "PET_MASTER_ADDR": host,
            "PET_MASTER_PORT": port,
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "WORLD_SIZE": str(plan.size),
            # torchrun otherwise lets the processes share its own store, which a second start in the same pod finds used.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            # Roles may run different numbers of processes, so that no replica can work this out by itself.
            "MUSTER_FIRST_RANK": str(replica.first_rank),
        }
        return {**env, "RANK": str(replica.first_rank)} if replica.processes == 1 else env

    def data_parallel(self, spec: TrainingJobSpec) -> int:
        worker = self.worker(spec)
        return worker.replicas * processes_of(worker)

    def problems(self, spec: TrainingJobSpec) -> Sequence[Problem]:
        return general_problems(self, spec, devices=self.data_parallel(spec)) + torch_problems(self, spec)


@dataclass(frozen=True, kw_only=True)
class Mesh(TorchWorld):
    """A world whose processes may be laid out as a mesh; `whole_world` is the side that takes all of it where no mesh is given."""

    whole_world: str

    def mesh(self, spec: TrainingJobSpec) -> MeshOptions:
        return spec.options.mesh or MeshOptions.model_validate({self.whole_world: super().data_parallel(spec)})

    def data_parallel(self, spec: TrainingJobSpec) -> int:
        return self.mesh(spec).data

    def problems(self, spec: TrainingJobSpec) -> Sequence[Problem]:
        return [*super().problems(spec), *self._mesh_problems(spec)]

    def _mesh_problems(self, spec: TrainingJobSpec) -> list[Problem]:
        mesh, size = self.mesh(spec), self.plan(spec).size
        found = []
        product = mesh.data * mesh.pipeline * mesh.tensor
        if product != size:
            sides = f"{mesh.data} (data) x {mesh.pipeline} (pipeline) x {mesh.tensor} (tensor)"
            message = f"{sides} is {product}, but the job has {size} processes; change the mesh or the number of workers"
            found.append(Problem("spec.options.mesh", message))
        if mesh.shard is not None and self.name is not StrategyName.FSDP:
            found.append(Problem("spec.options.mesh.shard", f"{self.name.value} does not shard; remove it, or use FSDP"))
        elif mesh.shard is not None and mesh.data % mesh.shard:
            message = f"{mesh.shard} does not divide data, {mesh.data}; write a number that does"
            found.append(Problem("spec.options.mesh.shard", message))
        if spec.options.mesh and spec.elastic:
            found.append(Problem("spec.options.mesh", "a mesh fixes the number of processes; leave out spec.elastic, or the mesh"))
        return found


@dataclass(frozen=True, kw_only=True)
class Pipeline(Mesh):
    """The layers of the model are cut into stages; micro-batches flow through them."""

    def is_synchronous(self, spec: TrainingJobSpec) -> bool:
        return self._options(spec).schedule != "PipeDream"

    def problems(self, spec: TrainingJobSpec) -> Sequence[Problem]:
        found = [*self._stage_problems(spec), *self._micro_batch_problems(spec), *self._asynchronous_problems(spec)]
        return [*super().problems(spec), *found]

    @staticmethod
    def _options(spec: TrainingJobSpec) -> PipelineOptions:
        return spec.options.pipeline or PipelineOptions()

    def _stages(self, spec: TrainingJobSpec) -> int:
        options, ranks = self._options(spec), self.mesh(spec).pipeline
        return options.stages or (2 * ranks if options.schedule == "Interleaved1F1B" else ranks)

    def _stage_problems(self, spec: TrainingJobSpec) -> list[Problem]:
        ranks, stages = self.mesh(spec).pipeline, self._stages(spec)
        interleaved = self._options(spec).schedule == "Interleaved1F1B"
        if interleaved and (stages % ranks or stages == ranks):
            message = f"Interleaved1F1B runs the same number of stages, at least 2, in each of {ranks} processes; write {2 * ranks}, say"
            return [Problem("spec.options.pipeline.stages", message)]
        if not interleaved and stages != ranks:
            message = f"{stages} stages for {ranks} processes in a row; write {ranks}, or options.mesh with pipeline: {stages}"
            return [Problem("spec.options.pipeline.stages", message)]
        return []

    def _micro_batch_problems(self, spec: TrainingJobSpec) -> list[Problem]:
        """Also where the job leaves the number of micro-batches to the default."""
        options, stages, mesh = self._options(spec), self._stages(spec), self.mesh(spec)
        count = options.micro_batches or stages
        field = "spec.options.pipeline.microBatches"
        if options.schedule == "1F1B" and count < stages:
            return [Problem(field, f"1F1B needs at least as many micro-batches as the {stages} stages; write {stages}")]
        if options.schedule == "Interleaved1F1B" and count % mesh.pipeline:
            return [Problem(field, f"Interleaved1F1B needs a multiple of the {mesh.pipeline} processes in a row; write {stages}, say")]
        size, parts = spec.batch.global_size, mesh.data * spec.batch.accumulation_steps
        if size is not None and size % (parts * count):
            shared = f"{size} samples" + (f" in {parts} parts (data-parallel ways x accumulation steps)" if parts > 1 else "")
            near = max(round(size / (parts * count)), 1) * parts * count
            message = f"{count} micro-batches do not divide a batch of {shared}; write a number that does, or batch.globalSize: {near}"
            return [Problem(field, message)]
        return []

    def _asynchronous_problems(self, spec: TrainingJobSpec) -> list[Problem]:
        """What needs the gradient of a whole step, which there never is."""
        if self.is_synchronous(spec):
            return []
        given = {"spec.options.mesh.data": self.mesh(spec).data, "spec.batch.accumulationSteps": spec.batch.accumulation_steps}
        message = "PipeDream updates each stage by itself, after each micro-batch; write 1, or options.pipeline.schedule: 1F1B"
        return [Problem(field, message) for field, number in given.items() if number > 1]


_COLLECTIVES = frozenset({Communication.NCCL, Communication.GLOO})

DDP = TorchWorld(
    name=StrategyName.DDP,
    framework=Framework.PYTORCH,
    summary="Every process holds a copy of the model; gradients are averaged over all of them at each step.",
    roles=WORKERS,
    options=frozenset({"gradient_compression"}),
    communications=_COLLECTIVES,
    elastic=True,
)
FSDP = Mesh(
    name=StrategyName.FSDP,
    framework=Framework.PYTORCH,
    summary="Parameters, gradients and optimizer state are cut up over all processes; layers are gathered when a step needs them.",
    roles=WORKERS,
    options=frozenset({"mesh"}),
    communications=_COLLECTIVES,
    elastic=True,
    whole_world="data",
)
TENSOR_PARALLEL = Mesh(
    name=StrategyName.TENSOR_PARALLEL,
    framework=Framework.PYTORCH,
    summary="The matrices of each layer are cut up over the processes, which compute every sample of a step together.",
    roles=WORKERS,
    options=frozenset({"mesh"}),
    communications=_COLLECTIVES,
    whole_world="tensor",
)
PIPELINE = Pipeline(
    name=StrategyName.PIPELINE,
    framework=Framework.PYTORCH,
    summary="The layers are cut into stages on different processes, by what they cost; micro-batches of a step flow through them.",
    roles=WORKERS,
    options=frozenset({"mesh", "pipeline"}),
    communications=_COLLECTIVES,
    whole_world="pipeline",
)
RPC = TorchWorld(
    name=StrategyName.RPC,
    framework=Framework.PYTORCH,
    summary="Workers fetch parameters from servers and send gradients back by remote calls, each at its own pace unless asked to wait.",
    # The chief is rank 0: it starts the work of the others, and its end is the job's.
    roles={RoleName.CHIEF: RoleRule(default=1, maximum=1), RoleName.WORKER: RoleRule(default=1), RoleName.PS: RoleRule(default=1)},
    options=frozenset({"synchronous"}),
    synchronous=False,
    decisive=RoleName.CHIEF,
)


def _node_rank(plan: WorldPlan, replica: ReplicaPlan) -> int:
    return plan.positions[replica.role, replica.index]
