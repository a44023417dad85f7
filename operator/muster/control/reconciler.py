"""One pass over one job: observe it, decide, write the status, carry out the actions.

`lifecycle.decide` makes the decision (docs/architecture/operator.md, "Writes"). The status is written first, with the resourceVersion of
the job that the decision was based on. If that write fails, no action is carried out. A restart of the operator loses nothing, because
the state kept here only saves requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from muster.api.constants import ATTEMPT_LABEL
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.api.status import FINAL_PHASES, ConditionType, Reason, TrainingJobStatus
from muster.api.unchecked import items, mapping, mappings
from muster.channel.pacing import delay_seconds
from muster.control.admission import Admission, Admitted
from muster.control.cluster import Child
from muster.control.dependencies import Dependencies
from muster.control.executor import Created, Executor
from muster.control.job_slots import JobSlots
from muster.control.kubernetes_events import JobEvent, event_of
from muster.control.queues import Queues
from muster.control.status_writer import write_status
from muster.explain.brief import brief
from muster.explain.evidence import Source
from muster.kubernetes.errors import ConflictError, NotFoundError, RefusedError
from muster.kubernetes.objects import Object, key_of, version_of
from muster.lifecycle.actions import CreateReplica, Decision, LookLive
from muster.lifecycle.decide import decide
from muster.lifecycle.facts.facts import read
from muster.lifecycle.facts.membership import latest_attempt
from muster.lifecycle.observed import ClaimView, Observed, ReplicaView
from muster.render.trainer import image_of
from muster.strategies.registry import strategy_of

CALM_SECONDS = 0.5
"""Seconds in which the operator gathers changes that no recovery waits for, so that a world of many pods does not cost one write per
pod."""
STARTING_SECONDS = 5.0
"""The same while replicas start. All replicas that start in this time share one status write."""

log = logging.getLogger("muster.reconciler")


class Reconciler:
    """Brings the cluster to the state that each job asks for. Never runs two passes over the same key at once."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._admission = Admission(dependencies.images, dependencies.defaults, dependencies.job_policy, presets=dependencies.presets)
        self._slots = JobSlots(dependencies.job_policy.max_jobs_per_namespace, dependencies.store, dependencies.enqueue)
        self._executor = Executor(dependencies)
        self._queues = Queues(
            dependencies.cluster,
            dependencies.kueue,
            dependencies.positions,
            controller=dependencies.policy.controller,
            now=dependencies.now,
        )
        self._listed_at: dict[str, datetime] = {}
        self._refused: dict[str, str] = {}
        self._uids: dict[str, str] = {}

    def job_of(self, obj: Object) -> TrainingJob:
        """The job as a pass sees it: with defaults, and with the last valid spec if the current one is invalid."""
        return self._admission.admit(obj).job

    async def reconcile(self, key: str) -> float | None:
        """Runs one pass. Returns the seconds until the next pass, or None if only a change makes one necessary.

        Raises ClusterError if the pass could not be finished. The next pass continues from what this one has done.
        """
        obj = self._dependencies.store.job(key)
        self._forget_unless(key, obj)
        if obj is None or self._at_rest(key, obj):
            return None
        admitted = self._with_slot(self._with_gang(self._admission.admit(obj)))
        job = admitted.job
        quota = await self._queues.look(job)
        observed = replace(await self._cached(admitted), quota=quota)
        decision = self._decide(admitted, observed)
        looks_live = _needs_live_look(decision) and self._worth_a_look(job, observed)
        if looks_live:
            observed = replace(await self._look_live(admitted), quota=quota)
            decision = self._decide(admitted, observed)
        status = self._pinned(admitted, decision.status)
        if status.phase.final:
            self._slots.release(key)
        written = status != job.status
        try:
            if written:
                await write_status(self._dependencies, obj, job, status=status, observed=observed)
            elif looks_live and decision.actions:
                await self._confirm(obj)
        except NotFoundError:
            self._dependencies.store.drop_job(obj)
            return None
        self._warn_of_unknown_attempts(job, observed)
        created = await self._carry_out(replace(admitted, job=job.with_status(status)), decision)
        again = await self._settle(admitted, status, observed)
        return self._later(decision, created=created, written=written, again=again)

    def _decide(self, admitted: Admitted, observed: Observed) -> Decision:
        """The gang scheduler is chosen first, because it decides which pods are created."""
        job, children = admitted.job, self._dependencies.store.children(admitted.job.key)
        has_pods = any(child.owner == job.metadata.uid for child in children)
        scheduler = self._dependencies.gangs.scheduler_of(job, has_pods=has_pods)
        job = job.with_status(replace(job.status, gang_scheduler=scheduler))
        return decide(job, observed, self._dependencies.now(), problems=admitted.problems, policy=self._dependencies.policy)

    def _with_gang(self, admitted: Admitted) -> Admitted:
        """Adds a problem if the job requires a gang scheduler or a queue and the cluster has none."""
        gangs = self._dependencies.gangs
        queue = self._dependencies.kueue.problems(admitted.job, gangs.served)
        return replace(admitted, problems=(*admitted.problems, *gangs.problems(admitted.job), *queue, *self._price_problems(admitted.job)))

    def _price_problems(self, job: TrainingJob) -> list[Problem]:
        """A problem if the cost of a new job is limited and the installation has no prices."""
        limits = job.spec.usage_limits
        is_limited = limits is not None and limits.cost is not None and job.status.admitted_time is None
        if not is_limited or any(each.has_price for each in self._dependencies.classes.values()):
            return []
        message = "cannot be kept, because no capacity class of this installation has a price; write spec.usageLimits.deviceHours instead"
        return [Problem("spec.usageLimits.cost", message)]

    def _with_slot(self, admitted: Admitted) -> Admitted:
        """Adds a problem if the namespace already has as many jobs as the installation allows."""
        job = admitted.job
        ours = job.spec.managed_by == self._dependencies.policy.controller and job.metadata.deletion_timestamp is None
        rejected = admitted.problems and job.status.admitted_time is None
        if not ours or rejected or job.status.phase.final:
            self._slots.release(job.key)
            return admitted
        return replace(admitted, problems=(*admitted.problems, *self._slots.take(job)))

    def _at_rest(self, key: str, obj: Object) -> bool:
        """Whether the job has ended and needs no further pass. This is true of most jobs, so it is checked first."""
        status = obj.get("status") or {}
        has_no_ttl = obj.get("spec", {}).get("ttlSecondsAfterFinished") is None
        return (
            has_no_ttl
            and status.get("phase") in FINAL_PHASES
            and not self._dependencies.store.children(key)
            and not _holds_devices(status)
            and self._queues.is_settled(obj)
        )

    # observing

    async def _cached(self, admitted: Admitted) -> Observed:
        job = admitted.job
        shared = job.status.condition(ConditionType.STORAGE_SHARED)
        waits_for_claim = shared is not None and shared.reason is Reason.CLAIM_NOT_FOUND
        claim = await self._claim(job) if waits_for_claim else None
        return self._observed(admitted, self._dependencies.store.children(job.key), claim=claim, live=False)

    async def _claim(self, job: TrainingJob) -> ClaimView | None:
        """The claim for checkpoints. None if the job has none, or if this installation may not read it."""
        storage = job.spec.checkpoint.storage
        if storage is None or storage.persistent_volume_claim is None:
            return None
        with suppress(RefusedError):
            return await self._dependencies.cluster.read_claim(job.metadata.namespace, storage.persistent_volume_claim.claim_name)
        return None

    async def _look_live(self, admitted: Admitted) -> Observed:
        """The pods of the job as the API server has them now.

        The job itself comes from the cache. The pass detects a stale job, because a status is written only to this version of the job, and
        `_confirm` reads the job if no status is written. So a job without attempts has no pods, and needs no list.
        """
        store, job = self._dependencies.store, admitted.job
        if not job.status.attempts and not store.children(job.key):
            return self._observed(admitted, (), claim=await self._claim(job), live=True)
        cached = {child.view.uid: child for child in store.children(job.key)}
        listing = self._dependencies.cluster.list_children(job.metadata.namespace, job.metadata.name, cached)
        children, claim = await asyncio.gather(listing, self._claim(job))
        store.replace_children(job.key, children, cached_before=frozenset(cached))
        self._listed_at[job.key] = self._dependencies.now()
        return self._observed(admitted, children, claim=claim, live=True)

    async def _confirm(self, obj: Object) -> None:
        """Raises ConflictError if the job has changed since the decision, and NotFoundError if it is gone."""
        now = await self._dependencies.cluster.read_job(obj["metadata"]["namespace"], obj["metadata"]["name"])
        self._dependencies.store.put_job(now)
        if version_of(now) != version_of(obj):
            raise ConflictError(f"{key_of(obj)} has changed meanwhile")

    def _observed(self, admitted: Admitted, children: Iterable[Child], *, claim: ClaimView | None, live: bool) -> Observed:
        job, uid = admitted.job, admitted.job.metadata.uid
        replicas = tuple(self._with_report(child.view) for child in children if child.owner == uid)
        refused = self._refused.get(uid, "")
        return Observed(
            replicas,
            live,
            service=self._dependencies.store.has_service(job.key, uid),
            refused=refused,
            refusal=brief(Source.REFUSED, "ReplicasRefused", refused) if refused else "",
            claim=claim,
            template_hash=admitted.template_hash,
            expects_reports=True,
            gap_seconds=self._dependencies.reports.longest_gap(self._dependencies.now()),
            report_delay_seconds=delay_seconds(len(self._dependencies.reports)),
            notices=self._dependencies.notices(),
            capacity_classes=self._dependencies.capacity_classes(),
            departed=self._dependencies.store.departed(job.key),
            classes=self._dependencies.classes,
            knows_nodes=self._dependencies.knows_nodes(),
        )

    def _warn_of_unknown_attempts(self, job: TrainingJob, observed: Observed) -> None:
        """Events for pods that no operator has created. The lifecycle core has them deleted."""
        now = self._dependencies.now()
        latest = latest_attempt(job, now)
        for view in observed.replicas:
            if view.attempt > latest and view.deleting is None:
                message = f"pod {view.name} is removed: its label {ATTEMPT_LABEL} is {view.attempt}, and no such attempt can have begun"
                self._dependencies.publish(event_of(job, JobEvent("PodRemoved", message, mark=view.uid, warning=True), now))

    def _with_report(self, view: ReplicaView) -> ReplicaView:
        """The replica with its newest report, if there is one."""
        reports = self._dependencies.reports
        received = reports.of(view.uid)
        if received is None:
            return view
        if received.report.inputs:  # a report of the fetcher: nothing trains yet
            return replace(view, inputs=received.report.inputs)
        return view.with_report(
            received.report,
            time=received.time,
            missed_seconds=reports.missed_since(received),
            disconnected=reports.disconnected_since(view.uid),
        )

    def _worth_a_look(self, job: TrainingJob, cached: Observed) -> bool:
        """Whether a live list of pods can show more than the cache. While the cache shows replicas of an older attempt, a live list would
        show the same replicas. So one list every `look_seconds` is enough."""
        has_older = bool(read(job, cached, self._dependencies.now()).older_than(job.status.attempt))
        last = self._listed_at.get(job.key)
        return not has_older or last is None or self._dependencies.now() - last >= timedelta(seconds=self._dependencies.policy.look_seconds)

    # writing

    def _pinned(self, admitted: Admitted, status: TrainingJobStatus) -> TrainingJobStatus:
        """The status with the trainer image that the job had at its admission. A new default of the installation or preset does not change
        the image. A job that is not admitted has neither an image nor a gang scheduler."""
        job = admitted.job
        if status.admitted_time is None:
            return replace(status, gang_scheduler=job.status.gang_scheduler)
        default = admitted.images.trainers[strategy_of(job.spec.strategy).framework.name]
        return replace(status, image=image_of(job.with_status(status), default))

    def recovers(self, key: str) -> bool:
        """Whether a pass over the job may be part of a recovery, because its replicas have run. Such passes go before those of new jobs."""
        return bool(((self._dependencies.store.job(key) or {}).get("status") or {}).get("startTime"))

    async def _carry_out(self, admitted: Admitted, decision: Decision) -> Created:
        """Carries out the actions. Raises the first ClusterError after all of them have ended."""
        uid = admitted.job.metadata.uid
        creates = any(isinstance(action, CreateReplica) for action in decision.actions)
        placements = await self._queues.placements(admitted.job) if creates else {}
        try:
            created = await self._executor.carry_out(admitted, decision.actions, placements)
        except (RefusedError, InvalidJobError) as error:  # a strategy may fail for a later replica
            self._refused[uid] = str(error)
            raise
        self._refused.pop(uid, None)
        return created

    async def _settle(self, admitted: Admitted, status: TrainingJobStatus, observed: Observed) -> float | None:
        try:
            again = await self._queues.settle(admitted, status, observed)
            await self._executor.pod_groups.follow(admitted.job.with_status(status))
            return again
        except RefusedError as error:
            self._refused[admitted.job.metadata.uid] = str(error)
            raise

    def _later(self, decision: Decision, *, created: Created, written: bool, again: float | None) -> float | None:
        if created.remaining:
            return 0.0
        wakes = [] if again is None else [again]
        if decision.wake is not None:
            wakes.append(max(0.0, (decision.wake - self._dependencies.now()).total_seconds()))
        if created.replicas or written:
            wakes.append(STARTING_SECONDS)  # another client may change the status, so one pass may not be enough
        if _needs_live_look(decision):
            wakes.append(self._dependencies.policy.look_seconds)
        return min(wakes, default=None)

    def _forget_unless(self, key: str, obj: Object | None) -> None:
        """Drops the state of a job that is gone, or that was replaced by another job of the same name."""
        uid = obj["metadata"]["uid"] if obj else ""
        previous = self._uids.get(key, "")
        if previous and previous != uid:
            self._admission.forget(previous)
            self._queues.forget(key, previous)
            self._executor.pod_groups.forget(previous)
            self._slots.release(key)
            self._refused.pop(previous, None)
            self._listed_at.pop(key, None)
        if uid:
            self._uids[key] = uid
        else:
            self._uids.pop(key, None)


def _holds_devices(status: Mapping[str, Any]) -> bool:
    """Whether the status still counts devices of pods, so that it is due for a last count."""
    return any(each.get("open") for _, each in mappings(items(mapping(status.get("usage")).get("devices"))))


def _needs_live_look(decision: Decision) -> bool:
    return any(isinstance(action, LookLive) for action in decision.actions)
