"""The planted bugs. Each is a mistake that somebody could make: it replaces functions of the lifecycle core by wrong ones.

A patch names a module below `muster.lifecycle` and a function in it, and gives the wrong one, which may call the original. A name that is
gone is an error: then the mutant must be changed to fit.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import muster.lifecycle.decide  # noqa: F401  all of the core must be imported before functions are replaced
from muster.api.spec import CleanPodPolicy
from muster.api.status import FailureClass, Phase, Reason
from muster.lifecycle.policy import Delays
from muster.lifecycle.state import Ended, record_of
from muster.lifecycle.transition import budget, elastic, in_place

CORE = "muster.lifecycle"


class MutantDoesNotFitError(Exception):
    """The function that a mutant replaces is not there."""


@dataclass(frozen=True)
class Patch:
    module: str
    """Below `muster.lifecycle`."""
    name: str
    """A function, a constant, or Class.member."""
    wrong: Callable[[Any], Any]
    """From the original to what takes its place."""


@dataclass(frozen=True)
class Mutant:
    name: str
    breaks: str
    """What goes wrong for the user."""
    patches: tuple[Patch, ...]

    def plant(self) -> None:
        """Replaces the functions in every module that has imported them."""
        for patch in self.patches:
            self._replace(patch)

    def _replace(self, patch: Patch) -> None:
        owner: Any = importlib.import_module(f"{CORE}.{patch.module}")
        *classes, name = patch.name.split(".")
        for each in classes:
            owner = getattr(owner, each, None)
        if name not in vars(owner):
            raise MutantDoesNotFitError(f"{self.name}: {CORE}.{patch.module} has no {patch.name}; change the mutant to fit")
        original = vars(owner)[name]
        wrong = patch.wrong(original)
        modules = [module for key, module in sys.modules.items() if key.startswith(CORE)]
        for holder in [owner, *modules]:
            for key in [key for key, value in vars(holder).items() if value is original]:
                setattr(holder, key, wrong)


def _mutant(name: str, breaks: str, module: str, function: str, wrong: Callable[[Any], Any]) -> Mutant:
    return Mutant(name, breaks, (Patch(module, function, wrong),))


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda *_, **__: value


def _kept_by_a_split_gang(original: Any) -> Any:
    def kept_pods(status: Any, facts: Any) -> Any:
        renamed = {Reason.GANG_REQUEUED: Reason.RESCHEDULED}
        attempts = tuple(replace(each, reason=renamed.get(each.reason, each.reason)) for each in status.attempts)
        return original(replace(status, attempts=attempts), facts)

    return kept_pods


def _unsure_without_missing_members(original: Any) -> Any:
    def must_look_live(status: Any, facts: Any) -> bool:
        return not facts.live and (facts.attempt_ahead(status) is not None or elastic.due_resize(status, facts) is not None)

    return must_look_live


def _any_success(original: Any) -> Any:
    def has_succeeded(status: Any, facts: Any) -> bool:
        return any(member.succeeded for member in status.world.members if member.role == facts.strategy.decisive)

    return has_succeeded


def _charged_twice(original: Any) -> Any:
    def with_charge_moved(status: Any, facts: Any, record: Any, *, to: FailureClass) -> Any:
        return budget.with_charge(status, facts, replace(record, failure_class=to))

    return with_charge_moved


def _verdict_unsettled(original: Any) -> Any:
    def verdict(status: Any, facts: Any, *, attempt: int) -> Any:
        return budget.verdict(status, facts, record_of(status, attempt))

    return verdict


def _failed_jobs_cleaned(original: Any) -> Any:
    def is_cleaned_up(status: Any, facts: Any, view: Any) -> bool:
        keeps = facts.spec.clean_pod_policy is CleanPodPolicy.NONE
        return status.phase is Phase.FAILED if keeps else original(status, facts, view)

    return is_cleaned_up


def _moved_twice(original: Any) -> Any:
    def moved(parts: Any, source: Any, target: Any, *, seconds: float) -> Any:
        after = original(parts, source, target, seconds=seconds)
        return {**after, target: after[target] + after[target] - parts[target]}

    return moved


def _handed_out_early(original: Any) -> Any:
    def member_to_start(status: Any, uid: str) -> Any:
        world = status.world
        return original(replace(status, world=replace(world, ready_time=world.created_time)) if world else status, uid)

    return member_to_start


def _not_awaited(original: Any) -> Any:
    def planned(*given: Any, **named: Any) -> Any:
        world = original(*given, **named)
        return replace(world, members=tuple(replace(member, awaited=False) for member in world.members))

    return planned


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "budget-off-by-one",
        "one restart more than the user allowed",
        "transition.budget",
        "_spent_before",
        lambda original: lambda *given, **named: original(*given, **named) - 1,
    ),
    _mutant(
        "window-forgotten",
        "a job that runs for weeks is given up for failures of long ago",
        "transition.budget",
        "_within_window",
        lambda original: lambda facts, times, *, until: tuple(times),
    ),
    _mutant(
        "unaffected-though-broken",
        "a replica that has ended is taken for one that trains on",
        "transition.in_place",
        "_is_well",
        lambda original: in_place.can_continue,
    ),
    _mutant(
        "unaffected-and-removed",
        "replicas that a restart should leave running lose their pods",
        "facts.facts",
        "Facts.in_world_of",
        lambda original: lambda facts, status: original(facts, facts.job.status),
    ),
    _mutant(
        "incarnation-misread",
        "the end of a unaffected replica is taken for one of an earlier attempt",
        "facts.membership",
        "_renumbered",
        lambda original: lambda view, incarnation, attempt: original(view, incarnation, incarnation),
    ),
    _mutant("fence-forgotten", "two attempts train at once", "transition.fence", "is_clear", _always(True)),
    _mutant(
        "live-flag-ignored",
        "replicas are created although the old ones are only missing in a stale cache",
        "transition.fence",
        "is_proved",
        lambda original: lambda facts, *, older, absent: facts.live or not older,
    ),
    Mutant(
        "absence-in-a-cache-believed",
        "a caller that has just started restarts every healthy job",
        (
            Patch("facts.failure", "_lost_members", lambda original: lambda status, facts: facts.missing_members(status)),
            Patch("transition.transition", "must_look_live", _unsure_without_missing_members),
        ),
    ),
    _mutant(
        "silence-taken-for-training",
        "a program that reported nothing is shown as one that trained",
        "transition.transition",
        "_completed",
        _always(Ended(Reason.COMPLETED, "completed")),
    ),
    _mutant(
        "final-phase-left",
        "a job that has ended starts again",
        "state",
        "state_of",
        lambda original: lambda status, *, suspend: original(replace(status, phase=Phase.RUNNING), suspend=suspend),
    ),
    _mutant("one-success-is-enough", "the job is complete while workers still train", "recording.members", "has_succeeded", _any_success),
    _mutant(
        "deletes-by-name",
        "a stale caller deletes a new attempt's replica, because it has the name of the old one",
        "actions",
        "deletion",
        lambda original: lambda *given, **named: tuple(replace(action, uid="") for action in original(*given, **named)),
    ),
    _mutant(
        "correction-counted-twice",
        "a restart whose class is corrected is charged to two budgets",
        "transition.budget",
        "with_charge_moved",
        _charged_twice,
    ),
    _mutant(
        "correction-forgotten",
        "a preemption that is recognised late is charged to another budget",
        "transition.budget",
        "with_charge_moved",
        lambda original: lambda status, *_, **__: status,
    ),
    _mutant(
        "restart-charged-again",
        "a pass that is repeated after a crash charges the restart again",
        "transition.attempts",
        "with_correction",
        lambda original: lambda status, facts, record: budget.with_charge(original(status, facts, record), facts, record),
    ),
    _mutant(
        "verdict-before-the-evidence",
        "the job is given up for a lost peer a second before a preemption of its node is reported",
        "transition.attempts",
        "verdict",
        _verdict_unsettled,
    ),
    _mutant(
        "suspension-forgets-replicas",
        "the job is called suspended while its replicas still hold their devices",
        "present.present",
        "_is_empty",
        _always(True),
    ),
    _mutant("back-off-ignored", "a crash loop restarts as fast as it can", "state", "is_held_back", _always(False)),
    _mutant(
        "preemptions-loop",
        "a program that ends as if it was preempted restarts as fast as it can, for ever",
        "policy",
        "_DELAYS",
        lambda original: {**original, FailureClass.PREEMPTION: Delays(0, 0)},
    ),
    _mutant(
        "log-lost-in-back-off",
        "the log of a failed attempt is gone before anybody can read it",
        "transition.pods",
        "keeps_its_log",
        _always(False),
    ),
    _mutant(
        "none-deletes",
        "cleanPodPolicy None deletes the pods of a job that has failed",
        "transition.clean_up",
        "_is_cleaned_up",
        _failed_jobs_cleaned,
    ),
    _mutant(
        "side-cars-hold-on",
        "a pod whose side-car runs on keeps its devices after the job has ended",
        "transition.clean_up",
        "_holds_resources",
        lambda original: lambda view: not view.phase.ended,
    ),
    _mutant(
        "order-matters",
        "names in a message change their order, and each change writes the status",
        "facts.membership",
        "_sorted",
        lambda original: tuple,
    ),
    _mutant(
        "own-deletions-blamed",
        "replicas that Muster stopped itself count as preempted",
        "facts.failure",
        "_cause_of_deletion",
        lambda original: lambda view, *, stopped: original(view, stopped=False),
    ),
    _mutant(
        "lost-peer-explains",
        "the first replica to notice is blamed, not the one that broke",
        "facts.failure",
        "Cause.precedence",
        lambda original: property(
            lambda cause: (
                original.fget(cause)
                if cause.failure_class is FailureClass.PREEMPTION
                else (1 if cause.reason is Reason.PEER_LOST else 2, cause.time, cause.replica)
            )
        ),
    ),
    _mutant(
        "device-glitch-believed",
        "a device whose health is back after a second restarts the job, and its node is avoided for an hour",
        "facts.devices",
        "lasts",
        _always(True),
    ),
    _mutant(
        "broken-device-kept",
        "a restart keeps the pod whose device is unhealthy, and fails again",
        "transition.in_place",
        "can_continue",
        lambda original: lambda view: original(replace(view, unhealthy_devices=())),
    ),
    _mutant(
        "number-used-again",
        "a new world has the number of the old one, so the fence cannot tell them apart",
        "transition.attempts",
        "_next_number",
        lambda original: lambda status: status.attempt,
    ),
    _mutant("seconds-booked-twice", "the parts of goodput do not add up to the job's life", "present.goodput", "_moved", _moved_twice),
    Mutant(
        "forgets-to-wake",
        "a job is held back for ever",
        (
            Patch("decide", "_world_times", _always(())),
            Patch("transition.elastic", "wake_time", _always(None)),
            Patch("transition.attempts", "settles_at", _always(None)),
        ),
    ),
    _mutant(
        "parameter-servers-leak",
        "parameter servers run on after the job is done",
        "transition.clean_up",
        "_is_cleaned_up",
        lambda original: lambda status, facts, view: facts.spec.clean_pod_policy is CleanPodPolicy.ALL,
    ),
    _mutant(
        "broken-text-in-status",
        "the API server changes the status, so that the job writes it for ever",
        "facts.times",
        "milliseconds",
        lambda original: lambda moment: moment,
    ),
    _mutant(
        "handed-out-too-early",
        "processes of the new world start beside those of the old",
        "transition.fence",
        "member_to_start",
        _handed_out_early,
    ),
    _mutant(
        "acknowledgement-not-awaited",
        "a world is taken for complete while old processes still run in it",
        "transition.attempts",
        "_planned_world",
        _not_awaited,
    ),
    _mutant(
        "kept-replicas-deleted",
        "a new leader without reports deletes the replicas of a world that trains",
        "facts.membership",
        "_joined",
        _always(0),
    ),
    _mutant(
        "last-words-of-the-kept-lost",
        "the lost peer is blamed although the replica that broke has reported it and goes on",
        "facts.failure",
        "_cause_in_last_words",
        _always(None),
    ),
    _mutant(
        "removed-by-force-while-it-runs",
        "a new world is created beside processes of the old one that nobody sees any more",
        "actions",
        "deletion",
        lambda original: lambda view, **_: original(view, grace_seconds=0),
    ),
    _mutant(
        "silence-taken-for-a-loss",
        "a node that is only cut off from the operator costs a restart, although its replicas train on",
        "facts.silence",
        "_stand_still",
        _always(True),
    ),
    _mutant(
        "left-behind-without-a-fence",
        "a program without a fence is replaced while it may still write",
        "facts.facts",
        "Facts.is_fenced",
        lambda original: property(lambda self: True),
    ),
    _mutant(
        "name-taken",
        "a replacement gets the name of the pod that does not answer, so that it cannot be created",
        "transition.replacing",
        "_renamed",
        lambda original: lambda member, status: replace(original(member, status), suffix=member.suffix),
    ),
    _mutant(
        "world-without-the-lost-worker",
        "a world with spares gets smaller if a worker is lost, so that the batch of a step changes",
        "transition.spares",
        "next_plan",
        lambda original: lambda status, facts: original(status, facts).part(in_place.kept_pods(status, facts)),
    ),
    _mutant(
        "split-gang-waits",
        "two gangs that have lost a node each wait for the nodes of the other, until both fail",
        "transition.requeueing",
        "due",
        _always(None),
    ),
    _mutant(
        "split-gang-keeps-pods",
        "a gang that gives its nodes back keeps most of them",
        "transition.in_place",
        "kept_pods",
        _kept_by_a_split_gang,
    ),
    _mutant(
        "spares-in-the-world",
        "spares train as members of a larger world",
        "transition.spares",
        "next_plan",
        lambda original: lambda status, facts: facts.pool,
    ),
)


def plant(name: str) -> None:
    """Plants the bug of this name."""
    next(mutant for mutant in MUTANTS if mutant.name == name).plant()
