"""One pass over one job: look, decide, write the status, do what was decided.

`lifecycle.decide` is the brain and `docs/architecture.md` ("The lifecycle core") the contract: the status is written first, with the
resourceVersion that it was decided from, and when that write fails nothing else is done. Nothing is remembered here that a restart of the
operator would need; what is remembered saves requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from muster.admission.job_policy import UNLIMITED, JobPolicy
from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, ConditionType, Reason, TrainingJobStatus
from muster.control.admitted import Admission, Admitted
from muster.control.carry_out import Carrier, Made
from muster.control.cluster import Child, Cluster, Object
from muster.control.defaults import JobDefaults
from muster.control.errors import ConflictError, NotFoundError, RefusedError
from muster.control.events import event_of, happenings
from muster.control.job_slots import JobSlots
from muster.control.reports import Reports
from muster.control.store import Store, key_of, version_of
from muster.lifecycle import in_place
from muster.lifecycle.actions import Decision, LookLive
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import ClaimView, Observed, ReplicaView
from muster.lifecycle.policy import DEFAULT_POLICY, Policy
from muster.render.environment import Coordinator
from muster.render.images import Images
from muster.render.trainer import image_of
from muster.strategies.registry import strategy_of

CALM_SECONDS = 0.5
"""How long news that no recovery waits for is gathered, so that a world of many pods does not cost a status write for each."""
STARTING_SECONDS = 5.0
"""The same while replicas are still to come: who starts within this time is told of once, when all run."""

log = logging.getLogger("muster.reconciler")


@dataclass(frozen=True)
class Surroundings:
    """What the reconciler works with. `images` are the installation's trainer images; no `coordinator`: supervisors report to nobody."""

    cluster: Cluster
    store: Store
    reports: Reports
    images: Images
    now: Callable[[], datetime]
    defaults: JobDefaults = field(default_factory=JobDefaults)
    coordinator: Coordinator | None = None
    job_policy: JobPolicy = UNLIMITED
    policies: bool = False
    """Whether each job gets a network policy."""
    policy: Policy = DEFAULT_POLICY
    again: Callable[[str], None] = lambda _: None
    """Called with the key of a job that is to be looked at again now."""
    tell: Callable[[Object], None] = lambda _: None
    """Called with each Event to be made."""
    restarted: Callable[[str], None] = lambda _: None
    """Called with the failure class of each restart that was decided."""
    recovered: Callable[[AttemptRecord], None] = lambda _: None
    """Called with each attempt that has done its first step after a failure."""


class Reconciler:
    """Brings jobs and what runs of them together, one key at a time; one key is never worked on twice at once."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._admission = Admission(around.images, around.defaults, around.job_policy)
        self._slots = JobSlots(around.job_policy.max_jobs_per_namespace, around.store, around.again)
        self._carrier = Carrier(
            around.cluster,
            around.store,
            images=around.images,
            coordinator=around.coordinator,
            defaults=around.defaults,
            policies=around.policies,
        )
        self._looked: dict[str, datetime] = {}
        self._refused: dict[str, str] = {}
        self._uids: dict[str, str] = {}

    def job_of(self, obj: Object) -> TrainingJob:
        """The job as a pass would decide on it."""
        return self._admission.admit(obj).job

    async def reconcile(self, key: str) -> float | None:
        """One pass. Seconds until the job wants to be looked at again; None: when something happens.

        Raises ClusterError where the pass could not be finished; what it did is done, and the next pass goes on from there.
        """
        obj = self._around.store.job(key)
        self._forget_unless(key, obj)
        if obj is None or self._at_rest(key, obj):
            return None
        admitted = self._with_slot(self._admission.admit(obj))
        job = admitted.job
        cached = await self._cached(admitted)
        decision = self._decide(admitted, cached)
        looked = _asks(decision) and self._worth_a_look(job, cached)
        if looked:
            decision = self._decide(admitted, await self._look_live(admitted))
        status = self._pinned(job, decision.status)
        if status.phase.final:
            self._slots.release(key)
        written = status != job.status
        try:
            if written:
                await self._write(obj, job, status)
            elif looked and decision.actions:
                await self._confirm(obj)
        except NotFoundError:
            self._around.store.drop_job(obj)
            return None
        made = await self._carry_out(job.with_status(status), decision)
        return self._later(job, decision, made=made, written=written)

    def _decide(self, admitted: Admitted, observed: Observed) -> Decision:
        return decide(admitted.job, observed, self._around.now(), problems=admitted.problems, policy=self._around.policy)

    def _with_slot(self, admitted: Admitted) -> Admitted:
        """With a problem where the namespace has as many jobs as the installation allows."""
        job = admitted.job
        ours = job.spec.managed_by == self._around.policy.controller and job.metadata.deletion_timestamp is None
        rejected = admitted.problems and job.status.admitted_time is None
        if not ours or rejected or job.status.phase.final:
            self._slots.release(job.key)
            return admitted
        return replace(admitted, problems=(*admitted.problems, *self._slots.take(job)))

    def _at_rest(self, key: str, obj: Object) -> bool:
        """Whether it has ended, is read of no more, and nothing is left to do: most jobs of a cluster, most of the time."""
        status = obj.get("status") or {}
        kept = obj.get("spec", {}).get("ttlSecondsAfterFinished") is None
        return kept and status.get("phase") in ("Succeeded", "Failed") and not self._around.store.children(key)

    # looking

    async def _cached(self, admitted: Admitted) -> Observed:
        job = admitted.job
        known = job.status.condition(ConditionType.STORAGE_SHARED)
        waits = known is not None and known.reason is Reason.CLAIM_NOT_FOUND
        claim = await self._claim(job) if waits else None
        return self._observed(admitted, self._around.store.children(job.key), claim=claim, live=False)

    async def _claim(self, job: TrainingJob) -> ClaimView | None:
        """The claim of its checkpoints; None where it has none, or this installation may not look."""
        storage = job.spec.checkpoint.storage
        if storage is None or storage.persistent_volume_claim is None:
            return None
        with suppress(RefusedError):
            return await self._around.cluster.read_claim(job.metadata.namespace, storage.persistent_volume_claim.claim_name)
        return None

    async def _look_live(self, admitted: Admitted) -> Observed:
        """Its pods as they are now. The job is the one that is known: what follows shows whether that was still so, as a status is written
        to this very version only, and `_confirm` reads where none is written. That is why a job for which nothing was begun has no pods."""
        store, job = self._around.store, admitted.job
        if not job.status.attempts and not store.children(job.key):
            return self._observed(admitted, (), claim=await self._claim(job), live=True)
        before = frozenset(child.view.uid for child in store.children(job.key))
        listing = self._around.cluster.list_children(job.metadata.namespace, job.metadata.name)
        children, claim = await asyncio.gather(listing, self._claim(job))
        store.replace_children(job.key, children, looked=before)
        self._looked[job.key] = self._around.now()
        return self._observed(admitted, children, claim=claim, live=True)

    async def _confirm(self, obj: Object) -> None:
        """Raises ConflictError where the job is no longer as it was decided on, NotFoundError where it is gone."""
        now = await self._around.cluster.read_job(obj["metadata"]["namespace"], obj["metadata"]["name"])
        self._around.store.put_job(now)
        if version_of(now) != version_of(obj):
            raise ConflictError(f"{key_of(obj)} has changed meanwhile")

    def _observed(self, admitted: Admitted, children: Iterable[Child], *, claim: ClaimView | None, live: bool) -> Observed:
        job, uid = admitted.job, admitted.job.metadata.uid
        replicas = tuple(self._with_report(child.view) for child in children if child.owner == uid)
        return Observed(replicas, live, self._around.store.has_service(job.key, uid), self._refused.get(uid, ""), claim, admitted.form)

    def _with_report(self, view: ReplicaView) -> ReplicaView:
        received = self._around.reports.of(view.uid)
        return replace(view, report=received.report, reported=received.time) if received else view

    def _worth_a_look(self, job: TrainingJob, cached: Observed) -> bool:
        """While the cache itself still shows replicas that have to go first, as the core sees them, a live look would show the same: once
        in a while is enough."""
        older = any(view.attempt < job.status.attempt for view in in_place.seen(cached, job.status).replicas)
        last = self._looked.get(job.key)
        return not older or last is None or self._around.now() - last >= timedelta(seconds=self._around.policy.look_seconds)

    # writing

    def _pinned(self, job: TrainingJob, status: TrainingJobStatus) -> TrainingJobStatus:
        """The image stays what it was when the job was admitted, whatever a newer installation's default is."""
        if status.admitted_time is None or (status.image and not job.spec.trainer.image):
            return status
        default = self._around.images.trainers[strategy_of(job.spec.strategy).framework]
        return status.model_copy(update={"image": job.spec.trainer.image or image_of(job, default)})

    async def _write(self, obj: Object, job: TrainingJob, status: TrainingJobStatus) -> None:
        written = await self._around.cluster.write_status(obj, status.wire())
        self._around.store.put_job(written)
        if version_of(written) != version_of(obj):
            self._around.store.expect(job.metadata.uid, version_of(written))
        log.info("%s: %s, attempt %d: %s", job.key, status.phase, status.attempt, status.message)
        for happening in happenings(job.status, status):
            self._around.tell(event_of(job, happening, self._around.now()))
            if happening.reason == "Restarting":
                self._around.restarted(str(status.attempts[-2].failure_class) if len(status.attempts) > 1 else "")
            if happening.reason == "Recovered":
                self._around.recovered(status.attempts[-1])

    def recovers(self, key: str) -> bool:
        """Whether a pass over the job may be a recovery, because its replicas have run: those go before jobs that start."""
        return bool(((self._around.store.job(key) or {}).get("status") or {}).get("startTime"))

    async def _carry_out(self, job: TrainingJob, decision: Decision) -> Made:
        """Raises the first ClusterError once all actions have ended."""
        uid = job.metadata.uid
        try:
            made = await self._carrier.carry_out(job, decision.actions)
        except RefusedError as error:
            self._refused[uid] = str(error)
            raise
        self._refused.pop(uid, None)
        return made

    def _later(self, job: TrainingJob, decision: Decision, *, made: Made, written: bool) -> float | None:
        if made.left:
            return 0.0
        wakes = [] if decision.wake is None else [max(0.0, (decision.wake - self._around.now()).total_seconds())]
        if made.replicas or written:
            wakes.append(STARTING_SECONDS)  # where somebody meddled with the status, one pass may not be enough
        if _asks(decision):
            wakes.append(self._around.policy.look_seconds)
        return min(wakes, default=None)

    def _forget_unless(self, key: str, obj: Object | None) -> None:
        """Forgets what is remembered of a job that is gone, or was replaced by another of its name."""
        uid = obj["metadata"]["uid"] if obj else ""
        known = self._uids.get(key, "")
        if known and known != uid:
            self._admission.forget(known)
            self._slots.release(key)
            self._refused.pop(known, None)
            self._looked.pop(key, None)
        if uid:
            self._uids[key] = uid
        else:
            self._uids.pop(key, None)


def _asks(decision: Decision) -> bool:
    return any(isinstance(action, LookLive) for action in decision.actions)
