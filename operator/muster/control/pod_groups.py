"""The PodGroup of a job. It is created before its pods, and its count follows the world."""

from __future__ import annotations

from contextlib import suppress

from muster.api.job import TrainingJob
from muster.control.admission import Admitted
from muster.control.cluster import Cluster
from muster.control.job_store import Store
from muster.control.owned import ensured
from muster.kubernetes.errors import ConflictError, NotFoundError, RefusedError
from muster.kubernetes.objects import Object, owner_of
from muster.lifecycle.facts import gang
from muster.lifecycle.job_state import is_open
from muster.render.gang import SCHEDULERS, identity, pod_group, priority_class_of, with_count
from muster.render.template_hash import is_outdated
from muster.strategies.registry import strategy_of


class PodGroups:
    """The PodGroups of all jobs. It caches the count of each, so that a pass over an unchanged job sends no request."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store
        self._counts: dict[str, int] = {}

    def forget(self, uid: str) -> None:
        """Drops the state of a job that is gone."""
        self._counts.pop(uid, None)

    async def ensure(self, admitted: Admitted) -> Object | None:
        """Creates the job's PodGroup, or updates its count. It exists before the pods that name it.

        A PodGroup of an earlier spec is replaced when it has no members. Until then it stays, because its members may run.
        """
        job = admitted.job
        scheduler = SCHEDULERS.get(job.status.gang_scheduler or "")
        if scheduler is None:
            return None
        count = gang.size(job.spec, job.status)
        desired = pod_group(job, scheduler, count=count, priority_class=priority_class_of(job, admitted.defaults))
        try:
            existing = await ensured(self._cluster, job, desired)
        except NotFoundError:
            message = f"the cluster serves no PodGroup of {scheduler.group} any more: suspend and resume the job to run it without a gang"
            raise RefusedError(message) from None
        is_leaving = "deletionTimestamp" in existing["metadata"]
        if (is_leaving or is_outdated(existing, desired)) and not self._has_members(job):
            if not is_leaving:
                with suppress(NotFoundError):
                    await self._cluster.delete(existing)
            raise ConflictError(f"PodGroup {job.metadata.name} of an earlier spec is not gone yet")
        updated = with_count(existing, scheduler, count)
        existing = existing if updated == existing else await self._cluster.replace(updated)
        self._counts[job.metadata.uid] = count
        return existing

    async def follow(self, job: TrainingJob) -> None:
        """Updates the count of the PodGroup if the size of the world has changed and no pod is created for it.

        A scheduler holds back the pods of a PodGroup that has fewer pods than its count. Pods that have ended do not count. Raises
        ClusterError.
        """
        scheduler, uid = SCHEDULERS.get(job.status.gang_scheduler or ""), job.metadata.uid
        if scheduler is None or not is_open(job.status) or not self._has_members(job):
            return
        count = gang.size(job.spec, job.status)
        if self._counts.get(uid) == count:
            return
        with suppress(NotFoundError):  # the next pod gets a new PodGroup
            existing = await self._cluster.read(identity(job, scheduler))
            updated = with_count(existing, scheduler, count)
            if owner_of(existing) == uid and "deletionTimestamp" not in existing["metadata"] and updated != existing:
                await self._cluster.replace(updated)
        self._counts[uid] = count

    def _has_members(self, job: TrainingJob) -> bool:
        strategy = strategy_of(job.spec.strategy)
        views = (child.view for child in self._store.children(job.key) if child.owner == job.metadata.uid)
        return any(strategy.is_in_world(view.role) and not view.phase.ended for view in views)
