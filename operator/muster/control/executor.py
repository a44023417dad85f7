"""Carries out the actions of a decision. Every action is idempotent, because names are deterministic and deletions carry the uid."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from muster.api.constants import TRAINER_CONTAINER
from muster.api.job import TrainingJob
from muster.control.admission import Admitted
from muster.control.cluster import Child
from muster.control.dependencies import Dependencies
from muster.control.network_policy import network_policy
from muster.control.owned import ensured
from muster.control.pod_groups import PodGroups
from muster.kubernetes.errors import AlreadyExistsError, ClusterError, ConflictError, NotFoundError, RefusedError
from muster.kubernetes.fairness import Slots
from muster.kubernetes.objects import Object
from muster.lifecycle.actions import Action, CreateReplica, DeleteJob, DeleteReplica, EnsureService, LookLive
from muster.render.addresses import ClusterAddresses, addresses_of
from muster.render.environment import Plans
from muster.render.kueue import Placement, placed, pod_set_of
from muster.render.manifests import plans_of, render_replica, render_service
from muster.render.strategy_objects import render_objects

AT_ONCE = 48
"""Concurrent requests for all jobs. More requests would only wait at the API server. If there are more, namespaces take turns."""
AT_ONCE_FOR_ONE = 16
"""Concurrent requests for one job, so that a job with a thousand pods does not block the others."""
MOST_CREATIONS, SHARE_OF_CREATIONS = 64, 8
"""How many pods one pass creates: this number, or this fraction of the world if that is more. Each pass lists the job's pods once, so a
pass must not be too small. The next pass creates the other pods after other jobs had their turn."""

OneAction = TypeVar("OneAction", bound=Action)

log = logging.getLogger("muster.reconciler")


@dataclass(frozen=True)
class Created:
    """How many pods were created, and how many remain for the next pass."""

    replicas: int
    remaining: int


class Executor:
    """Turns actions into requests. Every object that it creates goes into the store at once, so that the next pass includes it."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._cluster = dependencies.cluster
        self._store = dependencies.store
        self.pod_groups = PodGroups(dependencies.cluster, dependencies.store)
        self._slots = Slots(AT_ONCE)

    async def carry_out(self, admitted: Admitted, actions: Sequence[Action], placements: Mapping[str, Placement]) -> Created:
        """Carries out the actions concurrently, but creates the service before the pods.

        After all actions have ended, raises the first RefusedError in their order, or else the first other error.
        """
        job = admitted.job
        creations = [action for action in actions if isinstance(action, CreateReplica)]
        others = [action for action in actions if not isinstance(action, CreateReplica | LookLive)]
        _raise_worst(await self._all(job, others, lambda action: self._do(job, action)))
        if not creations:
            return Created(0, remaining=0)
        plans = plans_of(job)  # once for all pods, because the cost grows with the number of replicas
        await self._ensure_objects(job, plans)
        group = await self.pod_groups.ensure(admitted)
        batch = creations[: max(MOST_CREATIONS, len(plans.whole.replicas) // SHARE_OF_CREATIONS)]
        _raise_worst(await self._all(job, batch, lambda action: self._create(admitted, action, plans, group, placements)))
        return Created(len(batch), remaining=len(creations) - len(batch))

    async def _all(
        self, job: TrainingJob, actions: Sequence[OneAction], do: Callable[[OneAction], Awaitable[None]]
    ) -> list[BaseException | None]:
        """The outcome of each action. After a refusal, actions that have not begun are not carried out, because the API server would refuse
        them too."""
        own_slots = asyncio.Semaphore(AT_ONCE_FOR_ONE)
        refused = False

        async def attempt(action: OneAction) -> None:
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
        """Creates the headless service, and the network policy if the installation uses them."""
        service = render_service(job, ClusterAddresses(job.metadata.name, job.metadata.namespace))
        manifests = [network_policy(job), service] if self._dependencies.policies else [service]
        await asyncio.gather(*(ensured(self._cluster, job, manifest) for manifest in manifests))
        self._store.put_service(job.key, job.metadata.uid)

    async def _ensure_objects(self, job: TrainingJob, plans: Plans) -> None:
        """Creates the ConfigMaps and Secrets of the strategy, which the pods mount. Updates a ConfigMap when the spec changes."""
        for manifest in render_objects(job, plans.whole, ClusterAddresses(job.metadata.name, job.metadata.namespace)):
            existing = await ensured(self._cluster, job, manifest)
            if manifest["kind"] == "ConfigMap" and existing.get("data", {}) != manifest["data"]:
                identity = {name: existing["metadata"][name] for name in ("uid", "resourceVersion")}  # no other object of this name
                await self._cluster.replace({**manifest, "metadata": {**manifest["metadata"], **identity}})

    async def _create(
        self, admitted: Admitted, action: CreateReplica, plans: Plans, group: Object | None, placements: Mapping[str, Placement]
    ) -> None:
        job = admitted.job
        manifest = render_replica(
            job,
            action.role,
            index=action.index,
            attempt=action.attempt,
            addresses=addresses_of(job, action.attempt),
            images=admitted.images,
            coordinator=self._dependencies.coordinator,
            standby=action.standby,
            apart_from=action.apart_from,
            defaults=admitted.defaults,
            plans=plans,
            priority_class=group["spec"].get("priorityClassName", "") if group else None,
        )
        if placement := placements.get(pod_set_of(action.role)):
            manifest = placed(manifest, placement)
        if self._dependencies.tracing is not None:
            _add_variables(manifest, self._dependencies.tracing.variables(job))
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
            self._store.echoes.expect(child.view.uid, child.version)

    async def _delete(self, job: TrainingJob, action: DeleteReplica) -> None:
        if action.grace_seconds == 0:
            log.info("%s: %s is deleted without waiting for its node", job.key, action.name)
        try:
            await self._cluster.delete_pod(job.metadata.namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds)
        except (NotFoundError, ConflictError):  # the pod with this uid no longer exists
            self._store.drop_child(job.key, action.uid)


def _add_variables(pod: Object, variables: Mapping[str, str]) -> None:
    """Adds variables to the trainer container, less those that it has."""
    container = next(each for each in pod["spec"]["containers"] if each["name"] == TRAINER_CONTAINER)
    present = {each["name"] for each in container["env"]}
    container["env"] += [{"name": name, "value": value} for name, value in variables.items() if name not in present]


def _in_the_way(name: str, child: Child) -> ClusterError:
    if child.owner:
        return ConflictError(f"pod {name} of another attempt or an earlier job is not gone yet")
    return RefusedError(f"a pod {name} exists and does not belong to this job: remove it, or give the job another name")


def _raise_worst(outcomes: Sequence[BaseException | None]) -> None:
    errors = [error for error in outcomes if error is not None]
    if errors:
        raise next((error for error in errors if isinstance(error, RefusedError)), errors[0])
