"""The descriptor of a strategy: how it distributes a training over replicas.

A strategy is one frozen dataclass of small parts, most of them optional. A part that depends on a job is a function of its spec.
Strategies of other packages come in through the entry-point group `muster.strategies` (`strategies/registry.py`, docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from typing import Literal, Protocol

from muster.api.problems import Problem
from muster.api.spec import WORKER, Communication, NodeNotices, Role, RoleName, StrategyName, TrainingJobSpec
from muster.strategies import accelerators
from muster_contract.strategy import Framework, StrategyRuntime


class RestartScope(Enum):
    """What restarts with a broken replica, if it is not a set of roles."""

    WHOLE_WORLD = auto()


RestartsWith = frozenset[RoleName] | RestartScope
"""The roles that restart with a broken replica. An empty set is only that replica."""


@dataclass(frozen=True, kw_only=True)
class RoleRule:
    """The rules of a strategy for a role."""

    default: int = 1
    """Replicas of the role if the job does not list it. 0 means that such a job does not have the role."""
    minimum: int = 1
    maximum: int | None = None
    single_process: bool = False
    """Whether a replica runs one process for all its devices. Otherwise it runs one per accelerator, or `processesPerReplica`."""
    slots: bool = False
    """Whether a replica runs one process that starts the processes of its ranks by itself. `processesPerReplica` is the number of ranks."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Ports on which each replica listens, by name."""
    in_world: bool = True
    """Whether the role belongs to the world. A replica outside the world starts and ends without an effect on the training, and has no
    rank."""
    ranked: bool | Callable[[Role], bool] = True
    """Whether the processes of a role in the world have ranks. A launcher has none. It may depend on what the job says about the role."""
    decides_success: bool = False
    """Whether the job succeeds when all replicas of the role have succeeded. Exactly one role of a strategy decides. It is in the world."""
    restarts_with: RestartsWith = RestartScope.WHOLE_WORLD
    """What restarts with a broken replica of this role."""


@dataclass(frozen=True)
class ReplicaPlan:
    """One replica of a world. Its supervisor starts `processes` processes. `first_rank` is the global rank of the first one, or None
    without a rank."""

    role: RoleName
    index: int
    processes: int
    first_rank: int | None
    ports: Mapping[str, int] = field(default_factory=dict)
    """Port name -> number inside the pod. A local run replaces them with free ports."""
    slots: int | None = None
    """The number of ranks that the process of the replica starts by itself. None: each process has one rank."""

    @property
    def ranks(self) -> int:
        """The number of ranks of the replica."""
        if self.first_rank is None:
            return 0
        return self.processes if self.slots is None else self.slots

    @property
    def sharers(self) -> int:
        """The number of processes that share the processors of the replica."""
        return self.slots or self.processes


MOST_REPLACEMENTS = 64
"""The most workers of a world that are replaced at once because their nodes go."""


@dataclass(frozen=True)
class WorldPlan:
    """The world of a spec: its replicas in rank order, and the number of all ranks."""

    replicas: tuple[ReplicaPlan, ...]
    size: int

    @cached_property
    def positions(self) -> Mapping[tuple[RoleName, int], int]:
        """The position of each replica in the world, by role and index."""
        return {(replica.role, replica.index): position for position, replica in enumerate(self.replicas)}

    @cached_property
    def first(self) -> ReplicaPlan:
        """The replica of rank 0, or the first replica of a world without ranks."""
        return next((replica for replica in self.replicas if replica.first_rank == 0), self.replicas[0])

    def of(self, role: RoleName) -> tuple[ReplicaPlan, ...]:
        return tuple(replica for replica in self.replicas if replica.role == role)

    def part(self, members: Collection[tuple[str, int]]) -> WorldPlan:
        """The world of only these replicas (role and index), with new ranks. Its rank 0 gets the ports of rank 0 of the whole world."""
        return self.arranged([key for key in self.positions if key in members])

    def size_of(self, members: Collection[tuple[str, int]]) -> int:
        """The size of `part`. Its replicas are not made, because a pass over thousands of them needs only this number."""
        return sum(replica.ranks for replica in self.replicas if (replica.role, replica.index) in members)

    def arranged(self, members: Sequence[tuple[str, int]]) -> WorldPlan:
        """The world of these replicas in this order, as `part` makes it. Omits members that the plan does not have."""
        replicas: list[ReplicaPlan] = []
        size = 0
        for member in members:
            if (position := self.positions.get(member)) is None:
                continue
            replica = self.replicas[position]
            rank = None if replica.first_rank is None else size
            replicas.append(replace(replica, first_rank=rank, ports=self.first.ports if rank == 0 else replica.ports))
            size += replica.ranks
        return WorldPlan(tuple(replicas), size=size)


@dataclass(frozen=True)
class Placement:
    """A strategy's needs of a node: labels that select it, and resource limits of the trainer container."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExtraObject:
    """A ConfigMap or Secret that a strategy's pods need. Muster creates it before the pods, and deletes it with the job.

    Every pod of the named roles finds its entries as files in the folder `name` below `$MUSTER_OBJECTS`. In a local run, every replica can
    read it.
    """

    name: str
    """At most 15 lower-case letters and digits, beginning with a letter. The object's name is the job's, a hyphen, and this."""
    data: Callable[[], Mapping[str, str]]
    """The entries. Muster updates a ConfigMap when they change. A Secret never changes, so its entries may be random keys."""
    kind: Literal["ConfigMap", "Secret"] = "ConfigMap"
    roles: frozenset[RoleName] | None = None
    """The roles whose pods mount it. None: all roles."""

    def is_for(self, role: RoleName) -> bool:
        return self.roles is None or role in self.roles


@dataclass(frozen=True)
class Measured:
    """The strategies of the same framework that `muster plan` measures and recommends, by name."""

    plain: StrategyName
    """Data parallel: every process has the whole model."""
    single: StrategyName
    """Trains in one process."""
    sharded: StrategyName | None = None
    """Data parallel with a sharded model state."""


def host_name(role: RoleName, index: int, suffix: int | None = None) -> str:
    """The host name of a replica's pod. `suffix` is the number that distinguishes the pod from an earlier pod that may still exist."""
    return f"{role}-{index}" if suffix is None else f"{role}-{index}-{suffix}"


def host_in_cluster(role: RoleName, index: int, *, job: str, namespace: str, suffix: int | None = None) -> str:
    """The DNS name of a replica below its job's headless service. The resolver's search list adds the cluster's domain."""
    return f"{host_name(role, index, suffix)}.{job}.{namespace}.svc"


class Addresses(Protocol):
    """The addresses of replicas: DNS names in a cluster, loopback and distinct ports on a laptop."""

    def host(self, role: RoleName, index: int) -> str: ...

    def port(self, role: RoleName, index: int, name: str) -> int: ...


def is_always_synchronous(spec: TrainingJobSpec) -> bool:
    return True


def no_placement(spec: TrainingJobSpec, role: RoleName) -> Placement:
    return Placement()


def no_environment(spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How one strategy distributes training."""

    runtime: StrategyRuntime
    """The part that the trainer reads."""
    roles: Mapping[RoleName, RoleRule]
    """The roles by name, in rank order."""
    first_ports: Mapping[str, int] = field(default_factory=dict)
    """Ports on which only the replica of rank 0 listens, by name."""
    environment: Callable[[TrainingJobSpec, WorldPlan, ReplicaPlan, Addresses], Mapping[str, str]] = no_environment
    """The variables of a replica's trainer container that describe the world to the framework."""
    reserved: frozenset[str] = frozenset()
    """Variables that a user may not set, in addition to those with the prefix MUSTER_ or PET_, and to the framework's
    `process_environment` and `world_variables`."""
    launcher_grace: str | None = None
    """The variable with the seconds that the framework's launcher gives its processes to end after SIGTERM. Users may set it."""
    objects: Callable[[TrainingJobSpec, WorldPlan, Addresses], Sequence[ExtraObject]] | None = None
    """ConfigMaps and Secrets that the pods need. The plan is that of the whole world."""
    placement: Callable[[TrainingJobSpec, RoleName], Placement] = no_placement
    options: frozenset[str] = frozenset()
    """The fields of `spec.options` that it uses."""
    communications: frozenset[Communication] = frozenset()
    """The values of `spec.communication` that it supports, in addition to Auto."""
    keeps_snapshots: bool = False
    """Whether its replicas can keep snapshots in memory (`spec.checkpoint.memory`)."""
    shards_state: bool = False
    """Whether processes have different parts of the state, so that the other processes cannot replace one that is lost."""
    is_synchronous: Callable[[TrainingJobSpec], bool] = is_always_synchronous
    """Whether all workers see every update at the same step."""
    elastic: bool = False
    """Whether the number of replicas of `worker_role` may change from attempt to attempt. An elastic job has no other role, because the
    lifecycle counts all its replicas as workers."""
    spares: bool = False
    """Whether any replica of `worker_role` can have any rank, so that a spare can take the place of another worker."""
    data_parallel: Callable[[TrainingJobSpec], int]
    """The number of devices that share the batch of a step. Devices that hold parts of one copy of the model count once."""
    checks: tuple[Callable[[Strategy, TrainingJobSpec], Iterable[Problem]], ...] = ()
    """The strategy's own checks of a spec, in addition to those of `muster.admission`."""
    measured: Measured | None = None
    """The strategies for `muster plan`. None if it cannot measure such jobs."""
    local_remark: str | None = None
    """A warning about open ports for the user of `muster run`."""

    def __post_init__(self) -> None:
        deciding = [name for name, rule in self.roles.items() if rule.decides_success]
        if len(deciding) != 1:
            raise ValueError(f"strategy {self.name}: one role decides success; {deciding or 'none'} does")
        [name] = deciding
        if not self.roles[name].in_world:
            raise ValueError(
                f"strategy {self.name}: role {name} decides success and is outside the world, so its failure would not count; "
                "write in_world=True, and ranked=False if it has no ranks"
            )
        if not self.roles[name].default:
            raise ValueError(f"strategy {self.name}: role {name} decides success, so every job has it; write a default of 1 or more")

    @property
    def name(self) -> StrategyName:
        return self.runtime.name

    @property
    def framework(self) -> Framework:
        return self.runtime.framework

    @cached_property
    def decisive(self) -> RoleName:
        """The role whose replicas decide the success of the job."""
        return next(name for name, rule in self.roles.items() if rule.decides_success)

    @cached_property
    def worker_role(self) -> RoleName:
        """The role whose replicas `status.workers` counts and `spec.elastic` limits: `worker`, or else the decisive role."""
        return WORKER if WORKER in self.roles else self.decisive

    @cached_property
    def reserved_variables(self) -> frozenset[str]:
        """The variables that a user may not set, because the strategy or its framework sets them."""
        return self.reserved | frozenset((*self.framework.process_environment, *self.framework.world_variables))

    @cached_property
    def ports(self) -> Mapping[str, int]:
        """All ports, by name."""
        return {**{name: port for rule in self.roles.values() for name, port in rule.ports.items()}, **self.first_ports}

    @property
    def moves(self) -> bool:
        """Whether every attempt has a new world, which may use new ports. A strategy with extra objects keeps its ports, because the
        objects may contain them."""
        return self.objects is None and self.restarts_with(self.decisive) is RestartScope.WHOLE_WORLD

    def is_in_world(self, role: RoleName) -> bool:
        """Whether replicas of the role belong to the world."""
        return self.roles[role].in_world if role in self.roles else True

    def restarts_with(self, role: RoleName) -> RestartsWith:
        """What restarts with a broken replica of `role`."""
        return self.roles[role].restarts_with if role in self.roles else RestartScope.WHOLE_WORLD

    def role(self, spec: TrainingJobSpec, name: RoleName) -> Role | None:
        """The role in the spec, or else with the default count. None if the job does not have the role."""
        role = spec.roles.get(name)
        if role is not None or not self.roles[name].default:
            return role
        return Role(replicas=self.roles[name].default)

    def plan(self, spec: TrainingJobSpec) -> WorldPlan:
        """The replicas of the whole world, ranked role after role."""
        return self._plan(spec, spares=0)

    def requested(self, spec: TrainingJobSpec) -> WorldPlan:
        """The replicas that the spec asks for: those of the whole world, and the spares as workers with higher indexes."""
        return self._plan(spec, spares=spec.recovery.spares)

    def pool(self, spec: TrainingJobSpec) -> WorldPlan:
        """The replicas from which worlds are made: those that the spec asks for, and further workers, which may replace some."""
        role = self.role(spec, self.worker_role) if self.replaces(spec) else None
        further = min(MOST_REPLACEMENTS, role.replicas) if role else 0
        return self._plan(spec, spares=spec.recovery.spares + further)

    def replaces(self, spec: TrainingJobSpec) -> bool:
        """Whether a new worker may take the place of one whose node announces that it goes. An elastic job shrinks and grows instead."""
        is_asked_for = spec.recovery.node_notices is NodeNotices.AUTO
        return self.spares and is_asked_for and spec.elastic is None and spec.trainer.supervised

    def members_vary(self, spec: TrainingJobSpec) -> bool:
        """Whether the next world may have other members, without a change of the spec."""
        return spec.elastic is not None or spec.recovery.spares > 0 or self.replaces(spec)

    def _plan(self, spec: TrainingJobSpec, *, spares: int) -> WorldPlan:
        replicas: list[ReplicaPlan] = []
        size = 0
        for name, rule in self.roles.items():
            role = self.role(spec, name)
            if role is None:
                continue
            processes = 1 if rule.single_process or rule.slots else processes_of(role)
            slots = processes_of(role) if rule.slots else None
            ranked = rule.in_world and (rule.ranked(role) if callable(rule.ranked) else rule.ranked)
            for index in range(role.replicas + (spares if name == self.worker_role else 0)):
                rank = size if ranked else None
                replicas.append(ReplicaPlan(name, index, processes, rank, rule.ports, slots))
                size += replicas[-1].ranks
        plan = WorldPlan(tuple(replicas), size=size)
        if not self.first_ports:
            return plan
        first = replace(plan.first, ports={**plan.first.ports, **self.first_ports})
        return replace(plan, replicas=tuple(first if each is plan.first else each for each in replicas))


def processes_of(role: Role) -> int:
    """Processes of each replica: the value in the spec, or else one per accelerator, or else one."""
    return role.processes_per_replica or accelerators.count(role) or 1


def worker_of(spec: TrainingJobSpec) -> Role:
    """The worker role, or the one worker that a job has by default."""
    return spec.roles.get(WORKER) or Role()
