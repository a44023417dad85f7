"""The environment of a trainer container: Muster's own variables (`muster_contract.environment`), then those of the framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor

from muster.api import grace
from muster.api.job import TrainingJob
from muster.api.spec import JobInput, RoleName, TrainingJobSpec
from muster.render.defaults import JobDefaults
from muster.render.images import Images
from muster.render.trainer import checkpoint_directory, trainer_spec
from muster.strategies import accelerators
from muster.strategies.base import Addresses, ReplicaPlan, Strategy, WorldPlan
from muster.strategies.registry import strategy_of
from muster_contract.checkpoint_layout import TENSORBOARD
from muster_contract.environment import variables
from muster_contract.inputs import input_variables
from muster_contract.large_variables import pack

NOT_APPLIED_UID = "00000000-0000-0000-0000-000000000000"
NOT_APPLIED_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""The uid and creation time of a job that is not applied, as in `muster render`."""

CLAIM_PATH = "/checkpoints"
CODE_PATH = "/code"
CODE_SOURCE_PATH = "/run/muster-code"
"""The read-only mount of the ConfigMap of `trainer.code`. The supervisor copies it into the working directory, CODE_PATH."""
STATE_PATH = "/run/muster"
OBJECTS_PATH = "/run/muster-objects"
"""The mounts of the ConfigMaps and Secrets of a strategy. Each is in a folder of its name."""
TOKEN_PATH = "/var/run/secrets/muster"


@dataclass(frozen=True)
class Coordinator:
    """The coordination channel: its base URL, and the PEM of the authority that verifies its server (empty for plain HTTP, as on a laptop).
    The token is mounted into the pod."""

    url: str
    authority: str = ""


@dataclass(frozen=True)
class Plans:
    """The plans from which the replicas of a job are rendered."""

    whole: WorldPlan
    """The world that the spec asks for."""
    world: WorldPlan
    """The current world. It may be a part of `whole` if the job is elastic, and have spares as members."""
    pool: WorldPlan
    """The whole world and its spares."""


@dataclass(frozen=True)
class Rendering:
    """What the pods of one attempt of a job have in common."""

    job: TrainingJob
    plans: Plans
    attempt: int
    addresses: Addresses
    images: Images
    """The images of the installation, with those of the `defaults`."""
    coordinator: Coordinator | None = None
    defaults: Sequence[JobDefaults] = ()
    """Their templates are merged into a pod in their order, and then the user's."""

    @property
    def strategy(self) -> Strategy:
        return strategy_of(self.job.spec.strategy)


def uid_of(job: TrainingJob) -> str:
    return job.metadata.uid or NOT_APPLIED_UID


def environment_of(of: Rendering, replica: ReplicaPlan, *, standby: bool = False) -> dict[str, str]:
    """Every variable of a replica's trainer container, except the name and uid of the pod.

    A stand-by replica (`standby`) gets the variables of its world later, in the reply to a report.
    """
    job, strategy, plans, coordinator = of.job, of.strategy, of.plans, of.coordinator
    directory = checkpoint_directory(job, CLAIM_PATH)
    grace_seconds = grace.seconds(job.spec, job.status)
    spec = trainer_spec(job.spec, directory, processes=plans.whole.size, grace_seconds=grace_seconds)
    writes_summaries = standby or replica.first_rank in (0, None) or job.spec.elastic is not None or job.spec.recovery.spares > 0
    env = variables(
        job=job.key,
        job_uid=uid_of(job),
        job_created=job.metadata.creation_timestamp or NOT_APPLIED_TIME,
        strategy=job.spec.strategy,
        role=replica.role,
        index=replica.index,
        trainer=spec.to_json(),
        state_dir=STATE_PATH,
        coordinator=coordinator and coordinator.url,
        token_file=coordinator and f"{TOKEN_PATH}/token",
        coordinator_authority=coordinator and coordinator.authority,
        checkpoint_dir=directory,
        code=CODE_SOURCE_PATH if job.spec.trainer.code is not None and job.spec.trainer.supervised else None,
        tensorboard_dir=f"{directory}/{TENSORBOARD}" if directory and directory.startswith("/") and writes_summaries else None,
        standby=standby,
        objects=OBJECTS_PATH if strategy.objects else None,
    )
    if standby:
        world = _of_attempt(replica, of.attempt)
    else:
        world = world_environment(job.spec, replica, strategy=strategy, plan=plans.world, attempt=of.attempt, addresses=of.addresses)
    inputs = input_variables(each.name for each in inputs_of(job.spec, replica.role))
    launcher = {strategy.launcher_grace: str(grace_seconds)} if strategy.launcher_grace else {}
    return {**env, **inputs, **world, **launcher, **_defaults(job, replica)}


def inputs_of(spec: TrainingJobSpec, role: RoleName) -> list[JobInput]:
    """The inputs that the pods of a role get."""
    return [each for each in spec.inputs if each.roles is None or role in each.roles]


def world_environment(
    spec: TrainingJobSpec, replica: ReplicaPlan, *, strategy: Strategy, plan: WorldPlan, attempt: int, addresses: Addresses
) -> dict[str, str]:
    """The variables that change with the world: the attempt, and those that the framework reads. A supervisor unpacks large ones."""
    framework = strategy.environment(spec, plan, replica, addresses)
    packed = pack(framework) if spec.trainer.supervised else framework
    return {**_of_attempt(replica, attempt), **_world(replica, plan, addresses), **packed}


def _world(replica: ReplicaPlan, plan: WorldPlan, addresses: Addresses) -> dict[str, str]:
    """The ranks of the replica, the size of the world, and the address of rank 0, where they meet before the framework starts.

    Roles may run different numbers of processes, so a replica cannot compute its ranks.
    """
    first = plan.first
    address = None
    if first.ports:
        port = addresses.port(first.role, first.index, next(iter(first.ports)))
        address = f"{addresses.host(first.role, first.index)}:{port}"
    return variables(first_rank=replica.first_rank, world_size=plan.size or None, world_address=address)


def _of_attempt(replica: ReplicaPlan, attempt: int) -> dict[str, str]:
    return variables(attempt=attempt, processes=replica.processes)


def _defaults(job: TrainingJob, replica: ReplicaPlan) -> Mapping[str, str]:
    """Variables that interpreters and libraries read when they start. Users may override them."""
    env = {"PYTHONUNBUFFERED": "1"}
    role = job.spec.roles.get(replica.role)
    cpus = accelerators.cpus(role) if role is not None else None
    if cpus is not None:
        # Libraries count the cores of the machine, not those of the container, and would start far too many threads.
        env["OMP_NUM_THREADS"] = str(max(1, floor(cpus / replica.sharers)))
    return env
