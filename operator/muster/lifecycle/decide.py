"""The lifecycle of a job, as a table of contents: what each line decides is in the module of its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from muster.api.constants import ORPHAN_FINALIZER
from muster.api.job import TrainingJob
from muster.api.problems import Problem
from muster.api.status import Phase, Reason, TrainingJobStatus
from muster.lifecycle import (
    attempts,
    budget,
    conditions,
    deadline,
    elastic,
    failure,
    goodput,
    grace,
    hang,
    in_place,
    messages,
    nodes,
    phase,
    progress,
    records,
    storage,
    stragglers,
    stuck,
    success,
    suspend,
    ttl,
    world,
)
from muster.lifecycle.actions import Action, Decision, LookLive, removal
from muster.lifecycle.budget import Verdict
from muster.lifecycle.observed import Observed
from muster.lifecycle.policy import DEFAULT_POLICY, Policy
from muster.lifecycle.situation import Situation


def decide(
    job: TrainingJob, observed: Observed, now: datetime, *, problems: Sequence[Problem] = (), policy: Policy = DEFAULT_POLICY
) -> Decision:
    """What the job's status should be and what is to be done, from what is seen now. Pure, and a fixpoint: when the status is written, the
    actions are carried out and nothing else happens, it decides the same status and no action.

    `observed` holds replicas of this very job (by uid) only. `problems` is what admission finds wrong with the spec: nothing is made for
    such a job, and what runs goes on. The caller's part of the contract is in `docs/architecture.md`, "The lifecycle core".
    """
    old = job.status
    if job.spec.managed_by != policy.controller:
        return Decision(old)
    if job.metadata.deletion_timestamp is not None:
        return Decision(old, _end(job, observed))
    if not job.spec.trainer.supervised:
        observed = failure.without_words(observed)
    case = Situation(job, in_place.seen(observed, old), now, problems, policy)
    if _unsure(case, old):
        return Decision(old, (LookLive(),))
    status = old if old.phase.final else _advance(case, old)
    case = replace(case, observed=in_place.seen(observed, status))  # a new world may have taken replicas over as they are
    status = messages.describe(case, phase.count(case, status))
    held_back = progress.held_back(case, old, status)
    written = old if held_back else goodput.account(case, old, status)
    return Decision(written, _actions(case, status), _wake(case, status, held_back=held_back))


def _end(job: TrainingJob, observed: Observed) -> tuple[Action, ...]:
    """Removes the pods of a job that is being deleted.

    The garbage collector does that only once the job is gone, and a finalizer of the user can hold it back for ever. A deletion with
    `--cascade=orphan` keeps the pods.
    """
    if ORPHAN_FINALIZER in job.metadata.finalizers:
        return ()
    return tuple(action for view in observed.replicas for action in removal(view))


def _unsure(case: Situation, status: TrainingJobStatus) -> bool:
    """Whether a cached look contradicts the status, so that only a live one can be judged by."""
    if case.observed.live or status.phase.final:
        return False
    if world.ahead(case, status) >= 0 or elastic.change(case, status):
        return True
    return records.is_open(status) and bool(failure.vanished(case, status))


def _advance(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """One pass over the policies, for a job that has not ended."""
    status = storage.shared(case, conditions.valid(case, status))
    status = attempts.catch_up(case, status)
    status = world.recognise(case, status)
    status = attempts.heard_out(case, progress.read(case, status))
    status = grace.asked(case, stragglers.compared(case, status))
    if records.is_open(status) and success.succeeded(case, status):
        return _complete(case, status)
    status, verdict = _judge(case, status)
    ended = status if verdict else _end_attempt(case, status)
    if ended is not status:
        status, verdict = attempts.close(case, ended, records.unsettled(status))
        if verdict is None:
            status, verdict = _judge(case, status)
    status = grace.ended(case, status)
    verdict = verdict or deadline.missed(case, status)
    if verdict:
        return _give_up(case, status, verdict)
    if _wants_attempt(case, status):
        status = attempts.begin(case, status)
    return conditions.standing(case, phase.place(case, nodes.noted(case, status)))


def _judge(case: Situation, status: TrainingJobStatus) -> tuple[TrainingJobStatus, Verdict | None]:
    """What is seen now of a failure that is provisional, and whether the job is given up for it."""
    pending = records.unsettled(status)
    status = attempts.correct(case, status)
    return status, attempts.given_up(case, status, pending)


def _end_attempt(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The open attempt ends if the user suspends the job, if its world broke or hangs, or if another world is asked for."""
    if not records.is_open(status):
        return status
    if case.spec.suspend:
        return attempts.end(case, status, Reason.SUSPENDED)
    cause = failure.broken(case, status) or hang.hung(case, status)
    if cause:
        return attempts.fail(case, status, cause)
    if world.outgrown(case, status):
        return attempts.end(case, status, Reason.SCALED)
    told = elastic.change(case, status)
    return attempts.end(case, status, Reason.SCALED, message=told) if told else status


def _wants_attempt(case: Situation, status: TrainingJobStatus) -> bool:
    if case.spec.suspend or case.problems or records.is_open(status):
        return False
    record = records.unsettled(status)
    return record is None or budget.verdict(case, status, record) is None


def _complete(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    status = success.complete(case, status)
    return conditions.ended(case, status, reason=Reason.COMPLETED, message=status.message)


def _give_up(case: Situation, status: TrainingJobStatus, verdict: Verdict) -> TrainingJobStatus:
    status = attempts.abandon(case, status, verdict)
    return conditions.ended(case, status, reason=verdict.reason, message=verdict.message)


def _actions(case: Situation, status: TrainingJobStatus) -> tuple[Action, ...]:
    return (*_wanted(case, status), *stuck.actions(case))


def _wanted(case: Situation, status: TrainingJobStatus) -> tuple[Action, ...]:
    if status.phase.final:
        return (*success.clean_up(case, status), *ttl.actions(case, status))
    if suspend.holds(case, status):
        return suspend.actions(case, confirmed=status.phase is Phase.SUSPENDED)
    if not records.is_open(status):
        return world.stop_running(case, status)
    return (*elastic.actions(case, status), *world.actions(case, status))


def _wake(case: Situation, status: TrainingJobStatus, *, held_back: bool) -> datetime | None:
    """The earliest moment at which time alone changes something."""
    if status.phase.final:
        times = [ttl.due(case, status), success.due(case, status), *(stuck.removed_at(case, view) for view in case.observed.replicas)]
    else:
        times = [
            world.due(case, status),
            elastic.due(case, status),
            attempts.settles(case, status),
            deadline.due(case, status),
            nodes.due(status),
            progress.due(case) if held_back else None,
        ]
    return min((time for time in times if time and time > case.now), default=None)
