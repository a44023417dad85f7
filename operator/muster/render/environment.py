"""The environment of a trainer container: Muster's contract with it (docs/architecture.md), then what the framework reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor

from muster.api import grace
from muster.api.job import TrainingJob
from muster.api.spec import RoleName, TrainingJobSpec
from muster.render.trainer import checkpoint_directory, muster_trainer
from muster.strategies import accelerators
from muster.strategies.base import Addresses, ReplicaPlan, Strategy, WorldPlan

NOT_APPLIED_UID = "00000000-0000-0000-0000-000000000000"
NOT_APPLIED_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""What stands for the uid and creation time of a job that no server has seen."""

CLAIM_PATH = "/checkpoints"
CODE_PATH = "/code"
CODE_SOURCE_PATH = "/run/muster-code"
"""Where the ConfigMap of `trainer.code` is mounted, read-only; the supervisor copies it into the working directory, CODE_PATH."""
STATE_PATH = "/run/muster"
TOKEN_PATH = "/var/run/secrets/muster"


@dataclass
class Coordinator:
    """The coordination channel: its base URL, and what its server's certificate is checked with (PEM; empty: it speaks plain HTTP, as on a
    laptop). The token is mounted into the pod."""

    url: str
    authority: str = ""


@dataclass(frozen=True)
class Plans:
    """What the replicas of a job are rendered from."""

    whole: WorldPlan
    """The world that the spec asks for."""
    world: WorldPlan
    """The current one, which is a part of it where the job is elastic."""


def uid_of(job: TrainingJob) -> str:
    return job.metadata.uid or NOT_APPLIED_UID


def environment_of(
    job: TrainingJob,
    replica: ReplicaPlan,
    *,
    strategy: Strategy,
    plans: Plans,
    attempt: int,
    addresses: Addresses,
    coordinator: Coordinator | None,
    standby: bool = False,
) -> dict[str, str]:
    """Every variable of a replica's trainer container but those that only its pod knows (name and uid).

    One that stands by (`standby`) is told the world that takes it in when it does.
    """
    directory = checkpoint_directory(job, CLAIM_PATH)
    env = {
        "MUSTER_JOB": job.key,
        "MUSTER_JOB_UID": uid_of(job),
        "MUSTER_JOB_CREATED": f"{job.metadata.creation_timestamp or NOT_APPLIED_TIME:%Y-%m-%dT%H:%M:%SZ}",
        "MUSTER_STRATEGY": job.spec.strategy.value,
        "MUSTER_ROLE": replica.role.value,
        "MUSTER_INDEX": str(replica.index),
        "MUSTER_TRAINER": muster_trainer(
            job.spec, directory, processes=plans.whole.size, grace_seconds=grace.seconds(job.spec, job.status)
        ),
        "MUSTER_STATE_DIR": STATE_PATH,
    }
    if coordinator is not None:
        env |= {"MUSTER_COORDINATOR": coordinator.url, "MUSTER_TOKEN_FILE": f"{TOKEN_PATH}/token"}
        env |= {"MUSTER_COORDINATOR_AUTHORITY": coordinator.authority} if coordinator.authority else {}
    if directory is not None:
        env["MUSTER_CHECKPOINT_DIR"] = directory
    if job.spec.trainer.code is not None and job.spec.trainer.supervised:
        env["MUSTER_CODE"] = CODE_SOURCE_PATH
    if (
        directory is not None
        and directory.startswith("/")
        and (replica.first_rank == 0 or replica.role is RoleName.EVALUATOR or job.spec.elastic)
    ):
        env["MUSTER_TENSORBOARD_DIR"] = f"{directory}/tensorboard"
    if standby:
        world = {"MUSTER_STANDBY": "1", **_own(replica, attempt)}
    else:
        world = world_environment(job.spec, replica, strategy=strategy, plan=plans.world, attempt=attempt, addresses=addresses)
    return {**env, **world, **_defaults(job, replica)}


def world_environment(
    spec: TrainingJobSpec, replica: ReplicaPlan, *, strategy: Strategy, plan: WorldPlan, attempt: int, addresses: Addresses
) -> dict[str, str]:
    """What of a replica's environment changes with the world: the attempt, and what the framework reads."""
    return {**_own(replica, attempt), **strategy.environment(spec, plan, replica, addresses)}


def _own(replica: ReplicaPlan, attempt: int) -> dict[str, str]:
    return {"MUSTER_ATTEMPT": str(attempt), "MUSTER_PROCESSES": str(replica.processes)}


def _defaults(job: TrainingJob, replica: ReplicaPlan) -> Mapping[str, str]:
    """What interpreters and libraries read when they start. Users may set it otherwise."""
    env = {"PYTHONUNBUFFERED": "1"}
    role = job.spec.roles.named().get(replica.role)
    cpus = accelerators.cpus(role) if role is not None else None
    if cpus is not None:
        # Libraries count the machine's cores, not the container's, and would start far too many threads.
        env["OMP_NUM_THREADS"] = str(max(1, floor(cpus / replica.processes)))
    return env
