"""The queue of a job. Creates and updates its Workload in Kueue, and deletes the Workload when the job needs no quota."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from muster.api import grace
from muster.api.constants import CONTROLLER
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.status import LIMIT_REASONS, ConditionType, Phase, Reason, TrainingJobStatus
from muster.api.times import format_time, parse_time
from muster.control.admission import Admitted
from muster.control.cluster import Cluster
from muster.control.positions import Positions
from muster.kubernetes.errors import AlreadyExistsError, ConflictError, NotFoundError, RefusedError
from muster.kubernetes.objects import Object, owner_of
from muster.lifecycle.job_state import is_open
from muster.lifecycle.observed import Observed, QuotaView
from muster.render.gang import chosen
from muster.render.kueue import (
    Placement,
    admitted_count,
    conditions_of,
    dated,
    finished,
    flavor,
    flavors_of,
    identity,
    is_copied,
    is_prebuilt,
    is_true,
    owned,
    placement_of,
    pod_set_of,
    priority_class,
    released,
    with_given_back,
    with_pods_ready,
    with_priority,
    workload,
)
from muster.render.kueue_versions import VERSIONS, api_version, priority_class_name
from muster.render.template_hash import is_outdated
from muster.strategies.registry import strategy_of

_COPY_SECONDS = 15
"""Seconds in which the manager of a copy in another cluster learns of a change there."""


class Kueue:
    """Whether jobs may use Kueue, and in which version of its API: a cache of what the cluster serves."""

    def __init__(self, *, enabled: bool = False, version: str = "") -> None:
        self.enabled = enabled
        self.version = version
        """The version of Workloads. Empty if the cluster serves none that Muster can use."""
        self.positions_version = ""
        """The version of the positions of jobs in their queues. Empty if the cluster does not serve them."""

    @property
    def served(self) -> bool:
        return bool(self.version)

    def problems(self, job: TrainingJob, gang_groups: tuple[str, ...]) -> list[Problem]:
        """A problem if the job names a queue and starts now, and nothing manages that queue. `gang_groups` are the API groups that the
        cluster serves."""
        if not job.spec.scheduling.queue or self.served or is_open(job.status) or not _starts(job):
            return []
        gang = chosen(job.spec.scheduling.gang, gang_groups)
        if gang is not None and gang.has_queues:
            return []
        missing = f"serves neither {' nor '.join(map(api_version, VERSIONS))}" if self.enabled else "has queueing.kueue.enabled off"
        message = (
            f"names a queue, but nothing in this cluster manages it: the installation {missing}, and its gang scheduler is not Volcano; "
            "install Kueue and set queueing.kueue.enabled of the chart, or leave the queue empty"
        )
        return [Problem("spec.scheduling.queue", message, reason=Reason.QUEUE_UNAVAILABLE)]


class Queues:
    """The Workloads of jobs. `controller` is the manager whose jobs it serves."""

    def __init__(
        self, cluster: Cluster, kueue: Kueue, positions: Positions | None, *, controller: str, now: Callable[[], datetime]
    ) -> None:
        self._cluster = cluster
        self._kueue = kueue
        self._positions = positions
        self._controller = controller
        self._now = now
        self._existing: dict[str, Object] = {}
        self._settled: set[str] = set()

    def is_settled(self, obj: Object) -> bool:
        """Whether a job that has ended holds no quota any more, according to this process."""
        queue = ((obj.get("spec") or {}).get("scheduling") or {}).get("queue")
        return not queue or not self._kueue.served or obj["metadata"]["uid"] in self._settled

    def forget(self, key: str, uid: str) -> None:
        """Drops the state of a job that is gone."""
        if self._positions is not None:
            self._positions.forget(key)
        self._settled.discard(uid)
        self._existing.pop(uid, None)

    async def look(self, job: TrainingJob) -> QuotaView | None:
        """The state of the job in Kueue. None if no queue holds it. A job that runs without a Workload gets one at its next start.

        Raises ClusterError.
        """
        view = await self._look(job)
        if self._positions is None:
            return view
        if view is None or view.admitted or job.spec.suspend or job.status.phase.final:
            self._positions.forget(job.key)
            return view
        return replace(view, position=self._positions.of(job.key, job.spec.scheduling.queue))

    async def _look(self, job: TrainingJob) -> QuotaView | None:
        uid = job.metadata.uid
        self._existing.pop(uid, None)
        if not self._uses_queue(job):
            return None
        with suppress(NotFoundError):
            self._existing[uid] = await self._cluster.read(identity(job, self._kueue.version))
        existing = self._existing.get(uid)
        if existing is not None and owner_of(existing) != uid:
            if is_prebuilt(job) and not owner_of(existing):
                message = "its Workload comes from another cluster and is for other pods: give Muster the same values in both clusters"
                return QuotaView(admitted=False, message=f"queue {job.spec.scheduling.queue}: {message}")
            del self._existing[uid]
            if owner_of(existing) or "deletionTimestamp" in existing["metadata"]:
                raise ConflictError(f"Workload {job.metadata.name} of an earlier job of this name is not gone yet")
            message = f"a Workload {job.metadata.name} exists and does not belong to this job: remove it, or give the job another name"
            return QuotaView(admitted=False, message=f"queue {job.spec.scheduling.queue}: {message}")
        if existing is None and is_open(job.status) and job.status.condition(ConditionType.QUOTA_RESERVED) is None:
            return None
        worker = pod_set_of(strategy_of(job.spec.strategy).worker_role) if job.spec.elastic else None
        return view_of(existing, job.spec.scheduling.queue, worker)

    async def settle(self, admitted: Admitted, status: TrainingJobStatus, observed: Observed) -> float | None:
        """Creates the Workload of a job that needs to run, and gives its quota back once no pod of the job uses it. Returns the seconds
        after which it must be called again, if any. Raises ClusterError."""
        job = admitted.job
        existing = self._existing.get(job.metadata.uid)
        if not self._uses_queue(job):
            return None
        if status.phase.final and self._positions is not None:
            self._positions.forget(job.key)
        if existing is not None and is_copied(job):
            return await self._settle_copied(admitted, existing, status)
        if existing is not None:
            return await self._settle_own(admitted, existing, status, observed)
        if status.phase.final:
            self._settled.add(job.metadata.uid)
        elif not admitted.problems and _needs_workload(job, status, observed):
            await self._create(admitted)
        return None

    async def _settle_own(self, admitted: Admitted, existing: Object, status: TrainingJobStatus, observed: Observed) -> float | None:
        job = admitted.job
        is_empty = observed.live and not observed.replicas
        if status.phase.final:
            if all(view.phase.ended and not view.only_side_cars_run for view in observed.replicas):
                await self._end(job, existing, status)
                self._settled.add(job.metadata.uid)
        elif observed.quota is None:
            return None
        elif is_open(status):
            if observed.quota.admitted:
                await self._update(job, existing, status, observed)
        elif job.spec.suspend or _is_held_by_a_limit(status):
            if status.phase is Phase.SUSPENDED and is_empty and not is_prebuilt(job):
                await self._delete(existing)
        elif admitted.problems or (job.status.attempts and not is_empty):
            return None
        elif self._is_outdated(admitted, existing):
            if not is_prebuilt(job):
                await self._delete(existing)  # the next pass creates it: pod sets with a reservation cannot change
        elif owner_of(existing) != job.metadata.uid:
            await self._cluster.replace(owned(existing, job))
        elif not observed.quota.admitted and _is_evicted(existing):
            rest = self._seconds_left(existing, _COPY_SECONDS)
            if is_prebuilt(job) and rest > 0:
                return rest  # or the job might start here again before the manager takes it back
            await self._cluster.replace_status(released(existing, format_time(self._now())))
        return None

    async def _settle_copied(self, admitted: Admitted, existing: Object, status: TrainingJobStatus) -> float | None:
        """Keeps the Workload of a job that MultiKueue copies to another cluster. The status is that of the copy. It stays as it is when the
        copy is lost. After an eviction there is a new Workload, so that MultiKueue deletes a lost copy when its cluster is back."""
        job = admitted.job
        if job.spec.suspend or (status.phase.final and (is_true(existing, "Finished") or _is_evicted(existing))):
            await self._delete(existing)
        elif _is_evicted(existing):
            rest = self._seconds_left(existing, grace.pod_seconds(job.spec, status) + _COPY_SECONDS)
            if is_open(status) and rest > 0:
                return rest
            await self._delete(existing)
        elif is_true(existing, "Admitted"):
            await self._update(job, existing, status)
        elif not is_true(existing, "QuotaReserved") and not admitted.problems and self._is_outdated(admitted, existing):
            await self._delete(existing)
        return None

    def _seconds_left(self, evicted: Object, seconds: float) -> float:
        """How many of so many seconds are left since the eviction."""
        since = parse_time(conditions_of(evicted)["Evicted"]["lastTransitionTime"])
        return (since + timedelta(seconds=seconds) - self._now()).total_seconds()

    def _is_outdated(self, admitted: Admitted, existing: Object) -> bool:
        return is_outdated(existing, workload(admitted.job, admitted.images, admitted.defaults, self._kueue.version))

    async def _end(self, job: TrainingJob, existing: Object, status: TrainingJobStatus) -> None:
        """Gives back the quota of a job that has ended. MultiKueue would dispatch the job again if its Workload were gone."""
        if not is_prebuilt(job):
            await self._delete(existing)
        elif not is_true(existing, "Finished"):
            await self._cluster.replace_status(finished(existing, status, format_time(self._now())))

    async def _update(self, job: TrainingJob, existing: Object, status: TrainingJobStatus, observed: Observed | None = None) -> None:
        """Reports to Kueue whether all pods of the world run, and gives back the quota of workers that the spec no longer asks for.

        Workers that are lost keep their quota, because they come back when there are nodes. So do all workers without `observed`.
        """
        is_ready = status.world is not None and status.world.ready_time is not None
        updated = with_pods_ready(existing, is_ready, format_time(self._now()))
        if job.spec.elastic is not None and observed is not None:
            strategy = strategy_of(job.spec.strategy)
            role = strategy.worker_role
            pods = sum(view.role == role and not (view.phase.ended and not view.only_side_cars_run) for view in observed.replicas)
            desired = len(strategy.plan(job.spec).of(role))
            updated = with_given_back(updated, pod_set_of(role), max(pods, desired))
        if updated != existing:
            await self._cluster.replace_status(updated)

    async def placements(self, job: TrainingJob) -> dict[str, Placement]:
        """What Kueue adds to the pods of each role, by the role's name in lower case. Raises ClusterError."""
        existing = self._existing.get(job.metadata.uid)
        if existing is None:
            return {}
        flavors = flavors_of(existing)
        version = self._kueue.version
        objects = {name: await self._cluster.read(flavor(name, version)) for name in {each for names in flavors.values() for each in names}}
        return {pod_set: placement_of(existing, pod_set, [objects[name] for name in names]) for pod_set, names in flavors.items()}

    def _uses_queue(self, job: TrainingJob) -> bool:
        ours = job.spec.managed_by == self._controller or (is_copied(job) and self._controller == CONTROLLER)
        return self._kueue.served and ours and job.metadata.deletion_timestamp is None and bool(job.spec.scheduling.queue)

    async def _create(self, admitted: Admitted) -> None:
        """Creates the Workload. Its priority is always set, because Kueue's visibility API fails for a whole queue if a Workload has
        none."""
        manifest, value = workload(admitted.job, admitted.images, admitted.defaults, self._kueue.version), 0
        if is_copied(admitted.job):
            manifest = dated(manifest, format_time(self._now()))
        if name := priority_class_name(manifest["spec"]):
            try:
                value = int((await self._cluster.read(priority_class(name)))["value"])
            except NotFoundError:
                raise RefusedError(
                    f"there is no PriorityClass {name}: create it, or name another in spec.scheduling.priorityClassName"
                ) from None
        with suppress(AlreadyExistsError):
            await self._cluster.create(with_priority(manifest, value))

    async def _delete(self, existing: Object) -> None:
        with suppress(NotFoundError, ConflictError):
            await self._cluster.delete(existing)


def _is_evicted(existing: Object) -> bool:
    """Whether the job must give its quota back."""
    return is_true(existing, "QuotaReserved") and is_true(existing, "Evicted")


def _needs_workload(job: TrainingJob, status: TrainingJobStatus, observed: Observed) -> bool:
    """Whether a job that has not ended, and has no Workload, gets one now. That of a job from another cluster comes from there."""
    if job.spec.suspend:
        return False
    if is_copied(job):
        return True
    return observed.quota is not None and not is_open(status) and not _is_held_by_a_limit(status) and not is_prebuilt(job)


def _starts(job: TrainingJob) -> bool:
    """Whether the next attempt of the job is the first one in its queue. A job that has run without a queue goes on without one."""
    status = job.status
    return not status.attempts or status.phase is Phase.SUSPENDED or status.condition(ConditionType.QUOTA_RESERVED) is not None


def view_of(existing: Object | None, queue: str, worker: str | None = None) -> QuotaView:
    """The state of the Workload in Kueue. `existing` is None if there is none. `worker` is the pod set of the workers of an elastic job."""
    if existing is None:
        return QuotaView(admitted=False, message=f"queue {queue}: its Workload does not exist")
    conditions = conditions_of(existing)
    evicted = conditions["Evicted"] if is_true(existing, "Evicted") else None
    if is_true(existing, "Admitted") and evicted is None:
        return QuotaView(admitted=True, workers=admitted_count(existing, worker) if worker else None)
    words = evicted if evicted and is_true(existing, "QuotaReserved") else conditions.get("QuotaReserved") or evicted
    message = f"{words.get('reason', '')}: {words.get('message', '')}" if words else "Kueue has not processed it yet"
    return QuotaView(admitted=False, message=f"queue {queue}: {message}")


def _is_held_by_a_limit(status: TrainingJobStatus) -> bool:
    """Whether the job is suspended because it has used what it may."""
    suspended = status.condition(ConditionType.SUSPENDED)
    return status.phase is Phase.SUSPENDED and suspended is not None and suspended.reason in LIMIT_REASONS
