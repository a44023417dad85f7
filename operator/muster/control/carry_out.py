"""Does what the lifecycle core asked for. Every action is idempotent: names are deterministic, deletions carry the uid."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from muster.api.job import TrainingJob
from muster.control.cluster import Child, Cluster, Object, owner_of
from muster.control.defaults import JobDefaults
from muster.control.errors import AlreadyExistsError, ClusterError, ConflictError, NotFoundError, RefusedError
from muster.control.fairness import Slots
from muster.control.network_policy import network_policy
from muster.control.store import Store
from muster.lifecycle.actions import Action, CreateReplica, DeleteJob, DeleteReplica, EnsureService, LookLive
from muster.render.addresses import ClusterAddresses, addresses_of
from muster.render.environment import Coordinator, Plans
from muster.render.images import Images
from muster.render.manifests import plans_of, render_replica, render_service

AT_ONCE = 48
"""Requests at once, for all jobs: more would only wait at the API server. Where there are more, the namespaces take turns."""
AT_ONCE_FOR_ONE = 16
"""For one job, so that one with a thousand pods does not keep out the others."""
MOST_CREATIONS, SHARE_OF_CREATIONS = 64, 8
"""How many replicas one pass makes: so many, or so large a part of the world, for each pass lists the job's pods once. The next pass makes
the rest, after other jobs had their turn."""

Wanted = TypeVar("Wanted", bound=Action)

log = logging.getLogger("muster.reconciler")


@dataclass(frozen=True)
class Made:
    """How many replicas were made, and how many are left for the next pass."""

    replicas: int
    left: int


class Carrier:
    """Turns actions into requests. What it makes goes into the store at once, so that the next pass sees it."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        *,
        images: Images,
        coordinator: Coordinator | None,
        defaults: JobDefaults,
        policies: bool,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._images = images
        self._coordinator = coordinator
        self._defaults = defaults
        self._policies = policies
        self._slots = Slots(AT_ONCE)

    async def carry_out(self, job: TrainingJob, actions: Sequence[Action]) -> Made:
        """Carries the actions out side by side, but the service before the pods that it names.

        Raises, once all have ended, the first refusal in the order of the actions, else the first other error.
        """
        creations = [action for action in actions if isinstance(action, CreateReplica)]
        others = [action for action in actions if not isinstance(action, CreateReplica | LookLive)]
        _raise_worst(await self._all(job, others, lambda action: self._do(job, action)))
        if not creations:
            return Made(0, left=0)
        plans = plans_of(job)  # once for all: making them takes as long as the job has replicas
        begun = creations[: max(MOST_CREATIONS, len(plans.whole.replicas) // SHARE_OF_CREATIONS)]
        _raise_worst(await self._all(job, begun, lambda action: self._create(job, action, plans)))
        return Made(len(begun), left=len(creations) - len(begun))

    async def _all(
        self, job: TrainingJob, actions: Sequence[Wanted], do: Callable[[Wanted], Awaitable[None]]
    ) -> list[BaseException | None]:
        """The outcome of each action. Once one is refused those not yet begun are left: they would be refused too."""
        own_slots = asyncio.Semaphore(AT_ONCE_FOR_ONE)
        refused = False

        async def attempt(action: Wanted) -> None:
            nonlocal refused
            async with own_slots, self._slots.of(job.metadata.namespace):
                if refused:
                    return
                try:
                    await do(action)
                except RefusedError:
                    refused = True
                    raise

        return await asyncio.gather(*map(attempt, actions), return_exceptions=True)

    async def _do(self, job: TrainingJob, action: Action) -> None:
        match action:
            case EnsureService():
                await self._ensure_service(job)
            case DeleteReplica():
                await self._delete(job, action)
            case DeleteJob(uid):
                with suppress(NotFoundError, ConflictError):
                    await self._cluster.delete_job(job.metadata.namespace, job.metadata.name, uid=uid)

    async def _ensure_service(self, job: TrainingJob) -> None:
        """The service, and the policy that goes with it."""
        service = render_service(job, ClusterAddresses(job.metadata.name, job.metadata.namespace))
        manifests = [network_policy(job), service] if self._policies else [service]
        await asyncio.gather(*(self._ensure(job, manifest) for manifest in manifests))
        self._store.put_service(job.key, job.metadata.uid)

    async def _ensure(self, job: TrainingJob, manifest: Object) -> None:
        try:
            found = await self._cluster.create(manifest)
        except AlreadyExistsError:
            found = await self._cluster.read(manifest)
        if owner_of(found) != job.metadata.uid:
            what = f"{manifest['kind']} {manifest['metadata']['name']}"
            if "deletionTimestamp" in found["metadata"] or owner_of(found):
                raise ConflictError(f"{what} of an earlier job of this name is not gone yet")
            raise RefusedError(f"a {what} is there and is not this job's: remove it, or give the job another name")

    async def _create(self, job: TrainingJob, action: CreateReplica, plans: Plans) -> None:
        manifest = render_replica(
            job,
            action.role,
            index=action.index,
            attempt=action.attempt,
            addresses=addresses_of(job, action.attempt),
            images=self._images,
            coordinator=self._coordinator,
            standby=action.standby,
            defaults=self._defaults.template,
            plans=plans,
        )
        name = manifest["metadata"]["name"]
        try:
            child = await self._cluster.create_pod(manifest)
        except AlreadyExistsError:
            child = await self._cluster.read_child(job.metadata.namespace, name)
            if child.owner == job.metadata.uid:
                self._store.put_child(child)
            if (child.owner, child.view.attempt) != (job.metadata.uid, action.attempt):
                raise _in_the_way(name, child) from None
        else:
            self._store.put_child(child)
            self._store.expect(child.view.uid, child.version)

    async def _delete(self, job: TrainingJob, action: DeleteReplica) -> None:
        if action.grace_seconds == 0:
            log.info("%s: %s is removed without waiting for its node", job.key, action.name)
        try:
            await self._cluster.delete_pod(job.metadata.namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds)
        except (NotFoundError, ConflictError):  # gone, or another pod of that name: the one with this uid is no more
            self._store.drop_child(job.key, action.uid)


def _in_the_way(name: str, child: Child) -> ClusterError:
    if child.owner:
        return ConflictError(f"pod {name} of another attempt or an earlier job is not gone yet")
    return RefusedError(f"a pod {name} is there and is not this job's: remove it, or give the job another name")


def _raise_worst(outcomes: Sequence[BaseException | None]) -> None:
    errors = [error for error in outcomes if error is not None]
    if errors:
        raise next((error for error in errors if isinstance(error, RefusedError)), errors[0])
