"""All manifests of one attempt of a job: the headless service, and a pod for each replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from muster.api.constants import JOB_NAME_LABEL, JOB_UID_LABEL
from muster.api.job import TrainingJob
from muster.api.spec import PodLabels, RoleName, TrainingJobSpec
from muster.api.status import World as WorldStatus
from muster.render.defaults import JobDefaults, images_with
from muster.render.environment import Coordinator, Plans, Rendering, world_environment
from muster.render.filling import fill
from muster.render.gang import SCHEDULERS, joined, priority_class_of
from muster.render.images import Images
from muster.render.pods import labels_of, owner_of, pod_of
from muster.render.strategy_objects import render_objects
from muster.strategies.base import Addresses, ReplicaPlan, WorldPlan
from muster.strategies.registry import strategy_of

Manifest = dict[str, Any]


def render(
    job: TrainingJob,
    *,
    attempt: int,
    addresses: Addresses,
    images: Images,
    coordinator: Coordinator | None = None,
    defaults: Sequence[JobDefaults] = (),
) -> list[Manifest]:
    """The objects of the strategy, the service, then the pods in the order of their ranks. The same arguments give the same manifests.

    Raises InvalidJobError for problems that only rendering shows, such as a template that cannot be merged.
    """
    plan = strategy_of(job.spec.strategy).plan(job.spec)
    rendering = Rendering(job, Plans(plan, plan, plan), attempt, addresses, images_with(images, defaults), coordinator, defaults)
    pods = [pod_of(rendering, replica) for replica in plan.replicas]
    return [*render_objects(job, plan, addresses), render_service(job, addresses), *pods]


def render_replica(
    job: TrainingJob,
    role: RoleName,
    *,
    index: int,
    attempt: int,
    addresses: Addresses,
    images: Images,
    coordinator: Coordinator | None = None,
    defaults: Sequence[JobDefaults] = (),
    standby: bool = False,
    apart_from: Sequence[PodLabels] = (),
    plans: Plans | None = None,
    priority_class: str | None = None,
) -> Manifest:
    """The pod of one replica, as a member of the job's PodGroup if it has one. Evaluators are not members.

    `priority_class` is that of the PodGroup. None if the PodGroup does not exist yet.
    The pod may not run on the nodes of the pods `apart_from`.
    `defaults` have pod templates and images that the job's own override. Pass `plans` when you render many replicas, because their cost
    grows with the number of replicas. Raises LookupError if the job has no such replica, and InvalidJobError if a template cannot be
    merged.
    """
    plans = plans or plans_of(job)
    replica = _replica_of(job, plans.pool if standby else plans.world, role, index)
    rendering = Rendering(job, plans, attempt, addresses, images_with(images, defaults), coordinator, defaults)
    pod = pod_of(rendering, replace(replica, ports={}) if standby else replica, standby=standby, apart_from=apart_from)
    scheduler = SCHEDULERS.get(job.status.gang_scheduler or "")
    if scheduler is None or not rendering.strategy.is_in_world(role):
        return pod
    if priority_class is None:
        priority_class = priority_class_of(job, defaults)
    return joined(pod, scheduler, job.metadata.name, priority_class=priority_class)


def render_world(job: TrainingJob, role: RoleName, *, index: int, attempt: int, addresses: Addresses) -> dict[str, str]:
    """The variables with which an existing replica starts the processes of another attempt. Raises LookupError as `render_replica` does."""
    strategy, plan = strategy_of(job.spec.strategy), world_plan(job)
    replica = _replica_of(job, plan, role, index)
    return world_environment(job.spec, replica, strategy=strategy, plan=plan, attempt=attempt, addresses=addresses)


def world_plan(job: TrainingJob) -> WorldPlan:
    """The job's current world. It may be a part of the world in its spec, or have spares as members."""
    return plans_of(job).world


def plans_of(job: TrainingJob) -> Plans:
    """The plans of the job, for its current status. Recent ones are cached, because all replicas of a new world need the same plan within
    a second, and its cost grows with their number."""
    return _plans(_PlanKey(job.spec, job.status.world))


@dataclass(frozen=True, eq=False)
class _PlanKey:
    """Keys are equal if they have the same objects. To compare the specs themselves would cost as much as a plan."""

    spec: TrainingJobSpec
    world: WorldStatus | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PlanKey) and self.spec is other.spec and self.world is other.world

    def __hash__(self) -> int:
        return hash((id(self.spec), id(self.world)))


@lru_cache(maxsize=16)
def _plans(key: _PlanKey) -> Plans:
    strategy = strategy_of(key.spec.strategy)
    whole, pool = strategy.plan(key.spec), strategy.pool(key.spec)
    members = [(member.role, member.index) for member in key.world.members] if key.world else []
    if not strategy.members_vary(key.spec) or key.world is None or members == list(whole.positions):
        return Plans(whole=whole, world=whole, pool=pool)
    return Plans(whole=whole, world=pool.arranged(members), pool=pool)


def _replica_of(job: TrainingJob, plan: WorldPlan, role: RoleName, index: int) -> ReplicaPlan:
    position = plan.positions.get((role, index))
    if position is None:
        raise LookupError(f"{job.key} has no replica {role}-{index}")
    return plan.replicas[position]


def render_service(job: TrainingJob, addresses: Addresses) -> Manifest:
    """The headless service that gives the pods their DNS names. It must exist before the pods, and serves all attempts."""
    plan = strategy_of(job.spec.strategy).plan(job.spec)
    ports = {name: addresses.port(replica.role, replica.index, name) for replica in reversed(plan.replicas) for name in replica.ports}
    return fill(
        "service.yaml.j2",
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        labels=labels_of(job),
        owner=owner_of(job),
        selector={key: value for key, value in labels_of(job).items() if key in (JOB_NAME_LABEL, JOB_UID_LABEL)},
        ports=sorted(ports.items()),
    )
