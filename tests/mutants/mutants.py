"""The planted bugs. Each is a mistake that somebody could make: it replaces functions by wrong ones.

Most are in the lifecycle core, `muster.lifecycle`, and its property tests must find them. The others name the unit tests that must. A patch
names a module and a function in it, and gives the wrong one, which may call the original. A name that is gone is an error: then the mutant
must be changed to fit.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from muster.api.spec import CleanPodPolicy
from muster.api.status import ConditionType, FailureClass, Phase, Reason
from muster.kubernetes.backoff import Delays
from muster.lifecycle import decide  # all of the core must be imported before functions are replaced
from muster.lifecycle.job_state import Ended, record_of
from muster.lifecycle.transition import budget, elastic, in_place
from muster_contract.errors import PeerLost

CORE = "muster.lifecycle"
PROPERTY = "tests/property/test_lifecycle.py"


class MutantDoesNotFitError(Exception):
    """The function that a mutant replaces is not there."""


@dataclass(frozen=True)
class Patch:
    module: str
    """Below the root of the mutant."""
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
    tests: tuple[str, ...] = (PROPERTY,)
    """The files that must find it."""
    root: str = CORE
    """The package whose modules are changed."""

    def plant(self) -> None:
        """Replaces the functions in every module that has imported them."""
        for patch in self.patches:
            self._replace(patch)

    def _replace(self, patch: Patch) -> None:
        owner: Any = importlib.import_module(f"{self.root}.{patch.module}")
        *classes, name = patch.name.split(".")
        for each in classes:
            owner = getattr(owner, each, None)
        if name not in vars(owner):
            raise MutantDoesNotFitError(f"{self.name}: {self.root}.{patch.module} has no {patch.name}; change the mutant to fit")
        original = vars(owner)[name]
        wrong = patch.wrong(original)
        is_number = isinstance(original, int | float)  # equal numbers may be one object
        modules = [] if is_number else [module for key, module in sys.modules.items() if key.startswith(self.root)]
        for holder in [owner, *modules]:
            for key in [key for key, value in vars(holder).items() if value is original]:
                setattr(holder, key, wrong)
        decide.LIFE = tuple(_with_part(move, original, wrong) for move in decide.LIFE)


def _with_part(move: decide.Move[Any], original: Any, wrong: Any) -> decide.Move[Any]:
    """The move with the wrong function wherever it has the original."""
    return replace(move, **{part.name: wrong for part in fields(move) if getattr(move, part.name) is original})


def _mutant(name: str, breaks: str, module: str, function: str, wrong: Callable[[Any], Any]) -> Mutant:
    return Mutant(name, breaks, (Patch(module, function, wrong),))


def _unit(name: str, breaks: str, path: str, wrong: Callable[[Any], Any], *tests: str) -> Mutant:
    """A bug that unit tests must find. `path` is "package.module:name"."""
    module, _, function = path.partition(":")
    root, _, below = module.partition(".")
    return Mutant(name, breaks, (Patch(below, function, wrong),), tests=tuple(f"tests/unit/{test}.py" for test in tests), root=root)


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda *_, **__: value


def _kept_by_a_split_gang(original: Any) -> Any:
    def reused_pods(status: Any, facts: Any) -> Any:
        renamed = {Reason.GANG_REQUEUED: Reason.RESCHEDULED}
        attempts = tuple(replace(each, reason=renamed.get(each.reason, each.reason)) for each in status.attempts)
        return original(replace(status, attempts=attempts), facts)

    return reused_pods


def _unsure_without_missing_members(original: Any) -> Any:
    def must_look_live(status: Any, facts: Any) -> bool:
        return not facts.live and (facts.attempt_ahead(status) is not None or elastic.due_resize(status, facts) is not None)

    return must_look_live


def _any_success(original: Any) -> Any:
    def has_succeeded(status: Any, facts: Any) -> bool:
        return any(member.succeeded for member in status.world.members if member.role == facts.strategy.decisive)

    return has_succeeded


def _charged_twice(original: Any) -> Any:
    def with_charge_moved(status: Any, facts: Any, record: Any, *, to: Any) -> Any:
        return budget.with_charge(status, facts, to) if to.failure_class is not record.failure_class else status

    return with_charge_moved


def _since_ready(original: Any) -> Any:
    def not_running_since(status: Any, facts: Any) -> Any:
        ready = status.condition(ConditionType.READY)
        return ready.last_transition_time if original(status, facts) else None

    return not_running_since


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
        "_charged_before",
        lambda original: lambda *given, **named: original(*given, **named) - 1,
    ),
    _mutant(
        "window-forgotten",
        "a job that runs for weeks fails because of failures of long ago",
        "transition.budget",
        "_within_window",
        lambda original: lambda facts, times, *, until: tuple(times),
    ),
    _mutant(
        "unaffected-though-broken",
        "a replica that has ended is taken for one that trains on",
        "transition.in_place",
        "_is_well",
        lambda original: lambda view: view.can_continue,
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
        "observed",
        "ReplicaView.about",
        lambda original: lambda view, reported: reported,
    ),
    _mutant(
        "moves-before-the-replacement-is-ready",
        "a notice of a node restarts the world again and again",
        "transition.moving",
        "replacements",
        lambda original: lambda status, facts: [view.uid for view in facts.standing_by],
    ),
    Mutant(
        "replacement-on-the-node-that-expires",
        "the scheduler places the replacement of a worker on the node of this worker, which Karpenter takes away",
        (Patch("facts.node_notices", "pods_that_karpenter_moves", _always(())),),
        tests=("tests/unit/lifecycle/test_moving.py",),
    ),
    _mutant(
        "falls-back-at-once",
        "pods use the expensive class of nodes as soon as one of them waits",
        "facts.capacity",
        "fallback_time",
        lambda original: lambda role, status, facts: facts.now if original(role, status, facts) else None,
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
            Patch("decide", "must_look_live", _unsure_without_missing_members),
        ),
    ),
    _mutant(
        "silence-taken-for-training",
        "a program that reported nothing is shown as one that trained",
        "decide",
        "_completed",
        lambda original: lambda *given: (original(*given)[0], Ended(Reason.COMPLETED, "completed")),
    ),
    _mutant(
        "final-phase-left",
        "a job that has ended starts again",
        "job_state",
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
    Mutant(
        "stalled-from-its-suspension",
        "a job that was suspended for long counts as stalled as soon as it is resumed",
        (Patch("facts.stalled", "not_running_since", _since_ready),),
        tests=("tests/unit/lifecycle/test_stalled.py",),
    ),
    Mutant(
        "the-same-error-forgotten",
        "an error that a repeat cannot mend uses up the whole budget, because its message has another pid",
        (Patch("transition.budget", "same_error", lambda _: lambda one, other: one == other),),
        tests=("tests/unit/lifecycle/test_budget.py",),
    ),
    _mutant(
        "correction-forgotten",
        "a preemption that is recognised late is charged to another budget",
        "transition.budget",
        "with_charge_moved",
        lambda original: lambda status, *_, **__: status,
    ),
    _mutant(
        "announced-loss-charged",
        "the loss of a node that had announced its end uses up a budget",
        "transition.budget",
        "charged_class",
        lambda original: lambda record: record.failure_class,
    ),
    _mutant(
        "notice-of-a-loss-forgotten",
        "the loss of a node counts as announced only if the job has moved",
        "facts.node_notices",
        "announced",
        lambda original: lambda status, facts: frozenset(),
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
        "the job fails because of a lost peer a second before a preemption of its node is reported",
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
    _mutant("back-off-ignored", "a crash loop restarts as fast as it can", "job_state", "is_backing_off", _always(False)),
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
        "facts.leaving",
        "holds_resources",
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
        "observed",
        "ReplicaView.can_continue",
        lambda original: property(lambda self: original.fget(replace(self, unhealthy_devices=()))),
    ),
    _mutant(
        "number-used-again",
        "a new world has the number of the old one, so the fence cannot tell them apart",
        "transition.attempts",
        "_next_number",
        lambda original: lambda status: status.attempt,
    ),
    _mutant("seconds-booked-twice", "the parts of goodput do not add up to the job's life", "present.goodput", "_moved", _moved_twice),
    _mutant(
        "devices-counted-again",
        "each write counts the devices of a pod from its beginning",
        "facts.facts",
        "account",
        lambda original: (
            lambda before, observed, now: original(
                before and replace(before, counted_until=datetime(2026, 1, 1, tzinfo=UTC)), observed, now
            )
        ),
    ),
    Mutant(
        "forgets-to-wake",
        "a job is held back for ever",
        (
            Patch("wake", "_world_times", _always(())),
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
    Mutant(
        "broken-text-in-status",
        "the API server changes the status, so that the job writes it for ever",
        (Patch("api.times", "milliseconds", lambda original: lambda moment: moment),),
        root="muster",
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
    _unit(
        "silence-of-a-pod-overslept",
        "a pod that lacks a volume says so only after an event that has nothing to do with it",
        "muster.lifecycle.wake:silence_due",
        _always(None),
        "lifecycle/test_status",
    ),
    _unit(
        "save-after-a-deadline-ignored",
        "the status of a job that a deadline has ended lacks its last commit",
        "muster.lifecycle.decide:with_progress",
        lambda original: lambda status, facts: status,
        "lifecycle/test_deadline",
    ),
    _unit(
        "termination-messages-acknowledge-all",
        "a world is taken for complete while processes of the attempt before run in it",
        "muster.lifecycle.facts.membership:_reported",
        lambda original: lambda view, status: status.attempt if view.report and view.report.termination else original(view, status),
        "lifecycle/test_in_place",
    ),
    _mutant(
        "kept-replicas-deleted",
        "a new leader without reports deletes the replicas of a world that trains",
        "facts.membership",
        "_joined",
        _always(0),
    ),
    _mutant(
        "termination-messages-of-the-kept-lost",
        "the lost peer is blamed although the replica that broke has reported it and goes on",
        "facts.failure",
        "_cause_in_termination",
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
        "side-cars-of-init-containers-stay",
        "a job that has ended holds its devices as long as a side-car ignores the kubelet",
        "facts.leaving",
        "closed_at",
        _always(None),
    ),
    _mutant(
        "orphaned-without-a-fence",
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
        lambda original: lambda status, facts: original(status, facts).part(in_place.reused_pods(status, facts)),
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
        "reused_pods",
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

SILENCE = "lifecycle/test_replacing"
SURVIVORS = "trainer/test_survivors"
GOING_ON = "trainer/test_going_on"


def _split_gang(changed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of a status that is changed before it is looked at."""
    return lambda original: lambda status, facts: original(changed(status), facts)


def _any_report(original: Any) -> Any:
    def silent_after(limit: Any, view: Any, facts: Any) -> Any:
        report = None if view.report is None else replace(view.report, waiting=False)
        return original(limit, replace(view, report=report), facts)

    return silent_after


def _without_lower_limit(original: Any) -> Any:
    def fraction(policy: Any, gap_seconds: Any) -> float:
        return float(original(replace(policy, shortest_silence_seconds=0), gap_seconds))

    return fraction


def _one_window(original: Any) -> Any:
    def turn(self: Any, now: Any) -> None:
        original(self, now)
        self._before = (0, 0.0)

    return turn


def _first_window(original: Any) -> Any:
    def turn(self: Any, now: Any) -> None:
        self._began = self._began or now

    return turn


def _saves_afterwards(original: Any) -> Any:
    def hand_over(self: Any, launches: Any) -> Any:
        end, self.end = self.end, lambda: None
        try:
            return original(self, launches)
        finally:
            self.end = end

    return hand_over


def _once_more(original: Any) -> Any:
    def next_world(self: Any, **named: Any) -> Any:
        world = original(self, **named)
        self._world = world
        return world

    return next_world


def _with_any_run(**fields: Any) -> Callable[[Any], Any]:
    """A method of a part of a training, which takes the run to be in another state than it is."""

    def wrong(original: Any) -> Any:
        def method(self: Any, *given: Any) -> Any:
            before = {name: getattr(self._run, name) for name in fields}
            try:
                vars(self._run).update(fields)
                return original(self, *given)
            finally:
                vars(self._run).update(before)

        return method

    return wrong


BY_UNIT_TESTS: tuple[Mutant, ...] = (
    # silence
    _unit(
        "gaps-of-all-replicas",
        "a job that starts makes the operator wait longer for lost nodes of all jobs",
        "muster.channel.reports:_trains",
        _always(True),
        "channel/test_reports",
    ),
    _unit(
        "few-reports-are-enough",
        "a few quick reports make a busy replica look lost",
        "muster.channel.report_gaps:FEWEST",
        lambda original: 1,
        "channel/test_reports",
    ),
    _unit(
        "gap-kept-for-ever",
        "one busy minute makes the operator slow to notice lost nodes for the rest of its life",
        "muster.channel.report_gaps:ReportGaps._turn",
        _first_window,
        "channel/test_reports",
    ),
    _unit(
        "gaps-forgotten-too-soon",
        "reports that have just come late do not count, so that healthy replicas look lost",
        "muster.channel.report_gaps:ReportGaps._turn",
        _one_window,
        "channel/test_reports",
    ),
    _unit(
        "frozen-node-makes-a-gap",
        "after a node was frozen, the next lost node is noticed late",
        "muster.channel.report_gaps:LONGEST_SECONDS",
        lambda original: 1e9,
        "channel/test_reports",
    ),
    _unit(
        "own-pause-is-silence",
        "an operator that stood still takes its replicas for lost",
        "muster.channel.reports:Reports.missed_since",
        _always(0.0),
        "channel/test_reports",
    ),
    _unit(
        "regular-reports-ignored",
        "a lost node is noticed after 8 seconds, although 3 would do",
        "muster.lifecycle.policy:_fraction",
        _always(1.0),
        SILENCE,
    ),
    _unit(
        "no-lower-limit-of-silence",
        "a replica whose report comes a second late looks lost",
        "muster.lifecycle.policy:_fraction",
        _without_lower_limit,
        SILENCE,
    ),
    _unit(
        "standstill-shorter-than-a-step",
        "a job with long steps restarts when a node is cut off from the operator",
        "muster.lifecycle.facts.silence:_standstill_seconds",
        lambda original: lambda facts, reports: facts.policy.shortest_standstill_seconds,
        SILENCE,
    ),
    _unit(
        "any-commit-is-a-fence",
        "a program that writes its own checkpoints is replaced while it may still write",
        "muster.lifecycle.facts.facts:parse_checkpoint_name",
        _always(True),
        SILENCE,
    ),
    _unit(
        "own-loop-without-a-fence",
        "a program that saves with the library waits for five minutes if a node is lost",
        "muster.lifecycle.facts.facts:parse_checkpoint_name",
        _always(None),
        SILENCE,
    ),
    _unit(
        "held-report-is-silence",
        "a spare that waits as it should takes no place",
        "muster.lifecycle.facts.silence:_silent_after",
        _any_report,
        "lifecycle/test_spares",
    ),
    _unit(
        "silent-world-is-lost",
        "a node that is only cut off from the operator costs a restart, although the whole world trains on there",
        "muster.lifecycle.facts.silence:_is_node_lost",
        _always(True),
        "lifecycle/test_spares",
    ),
    _unit(
        "shortened-while-it-saves",
        "a replica that is asked to stop gets ten seconds for a save that takes a minute",
        "muster.lifecycle.observed:ReplicaView.only_side_cars_run",
        lambda original: property(lambda self: self.deleting is not None),
        "lifecycle/test_success",
    ),
    # spares
    _unit(
        "any-spare-taken",
        "a spare beside the rest of the world takes a place, so that the loss of one node stops the whole world",
        "muster.lifecycle.transition.spares:_nodes",
        lambda original: lambda uids, facts: set(),
        "lifecycle/test_spares",
    ),
    _unit(
        "silent-spare-taken",
        "a lost worker is replaced by a spare on a lost node",
        "muster.lifecycle.transition.spares:is_silent",
        _always(False),
        "lifecycle/test_spares",
    ),
    _unit(
        "unready-spare-taken",
        "the world waits for a spare that has yet to start",
        "muster.lifecycle.observed:ReplicaView.is_ready",
        lambda original: property(lambda self: self.can_continue),
        "lifecycle/test_spares",
    ),
    _unit(
        "smaller-job-keeps-its-spares",
        "a world that has a spare keeps it after the job was given fewer workers",
        "muster.lifecycle.transition.spares:is_outgrown",
        _always(False),
        "lifecycle/test_spares",
    ),
    _unit(
        "spare-not-awaited",
        "a world is taken for complete before its spare has joined it",
        "muster.lifecycle.transition.spares:_member_of",
        lambda original: lambda spare: replace(original(spare), awaited=False),
        "lifecycle/test_spares",
    ),
    Mutant(
        "spare-with-its-own-index",
        "a spare joins a TensorFlow world as a task that the cluster does not have",
        (
            Patch(
                "tf_config",
                "_cluster",
                lambda original: lambda key, **more: (original(key, **more)[0], {name: name[1] for name in original(key, **more)[1]}),
            ),
        ),
        tests=("tests/unit/strategies/test_environment.py",),
        root="muster.strategies",
    ),
    # split gangs
    _unit(
        "split-gang-waits-as-long-again",
        "a scheduler that places pods one by one never starts a large gang",
        "muster.lifecycle.transition.requeueing:_splits_before",
        lambda original: lambda status: min(original(status), 1),
        "lifecycle/test_requeueing",
    ),
    _unit(
        "started-world-requeued",
        "a world that has started loses its pods when one of them is to be placed again",
        "muster.lifecycle.transition.requeueing:_split",
        _split_gang(lambda status: replace(status, world=replace(status.world, ready_time=None)) if status.world else status),
        "lifecycle/test_requeueing",
    ),
    _unit(
        "unaffected-requeued",
        "parameter servers lose their state because a worker waits for a node",
        "muster.lifecycle.transition.requeueing:_split",
        _split_gang(
            lambda status: (
                replace(
                    status, world=replace(status.world, members=tuple(replace(member, incarnation=None) for member in status.world.members))
                )
                if status.world
                else status
            )
        ),
        "lifecycle/test_requeueing",
    ),
    _unit(
        "no-gang-requeued",
        "pods of a job without gang scheduling are deleted because one of them waits for a node",
        "muster.lifecycle.transition.requeueing:_split",
        _split_gang(lambda status: replace(status, gang_scheduler="scheduling.k8s.io")),
        "lifecycle/test_requeueing",
    ),
    _unit(
        "smallest-world-not-enough",
        "an elastic gang gives back the nodes of a world that could start",
        "muster.lifecycle.facts.gang:size",
        lambda original: lambda spec, status: 10**6,
        "lifecycle/test_requeueing",
    ),
    # the startup deadline
    _unit(
        "reasons-of-the-wait-forgotten",
        "a job that never started does not show why, because its pods are gone",
        "muster.lifecycle.transition.deadline:with_awaited",
        lambda original: lambda status, facts: status,
        "lifecycle/test_deadline",
    ),
    # survivors
    _unit(
        "oldest-state-counts",
        "steps that a survivor holds are done again",
        "muster_trainer.training.survivor:SurvivorSteps.newest",
        lambda original: property(lambda survivor_steps: min((step for step in survivor_steps.steps if step is not None), default=None)),
        SURVIVORS,
    ),
    _unit(
        "first-rank-sends",
        "ranks get the state of a new process, and training begins again",
        "muster_trainer.training.survivor:SurvivorSteps.source",
        lambda original: property(lambda survivor_steps: 0),
        SURVIVORS,
    ),
    _unit(
        "older-state-goes-on",
        "ranks with different states train together, and the losses are wrong",
        "muster_trainer.training.survivor:SurvivorSteps.receivers",
        lambda original: property(lambda survivor_steps: [rank for rank, step in enumerate(survivor_steps.steps) if step is None]),
        SURVIVORS,
    ),
    _unit(
        "goes-on-in-another-world",
        "a process goes on with its old rank in a world of another size",
        "muster_trainer.supervisor.survivors:can_continue",
        _always(True),
        SURVIVORS,
    ),
    _unit(
        "order-without-addresses",
        "a survivor connects to the rank 0 of the world before",
        "muster_trainer.supervisor.survivors:moved",
        lambda original: lambda env: {name: value for name, value in original(env).items() if name == "MUSTER_ATTEMPT"},
        SURVIVORS,
    ),
    _unit(
        "saves-after-the-start",
        "a world of another shape begins before the survivors of the last one have saved, and does their steps again",
        "muster_trainer.supervisor.survivors:Survivors.hand_over",
        _saves_afterwards,
        GOING_ON,
    ),
    _unit(
        "dead-process-goes-on",
        "a process that died while it waited is not started again",
        "muster_trainer.supervisor.processes:Process.running",
        lambda original: property(lambda process: True),
        GOING_ON,
    ),
    _unit(
        "one-that-waits-has-completed",
        "an attempt that has lost a member counts as completed",
        "muster_trainer.supervisor.survivors:ends_of_survivors",
        _always([]),
        GOING_ON,
    ),
    _unit(
        "one-that-waits-is-ended",
        "a survivor is ended with a sibling that does not leave",
        "muster_trainer.supervisor.survivors:to_end",
        lambda original: lambda processes, reply, *, stopped: list(processes),
        GOING_ON,
    ),
    _unit(
        "world-joined-twice",
        "a survivor joins a world that is over, and does not wait for the next one",
        "muster_trainer.host.orders:Orders.next_world",
        _once_more,
        SURVIVORS,
    ),
    _unit(
        "stop-ignored-in-the-wait",
        "a suspended job waits for survivors for a minute",
        "muster_trainer.training.survivor:Survivor._next_world",
        lambda original: lambda self, seconds: self._orders.next_world(seconds=seconds, until=lambda: False),
        GOING_ON,
    ),
    _unit(
        "waits-for-a-broken-world",
        "a survivor connects to a lost peer until it is killed, with its state",
        "muster_trainer.training.survivor:Survivor._leave",
        _always(None),
        GOING_ON,
    ),
    _unit(
        "no-rescue-in-a-long-wait",
        "all steps since the last commit are lost if a survivor that waits is lost",
        "muster_trainer.training.survivor:Survivor.wait",
        lambda original: lambda self, *, rescue, **named: original(self, rescue=lambda: None, **named),
        GOING_ON,
    ),
    _unit(
        "waits-without-end",
        "a process goes on in world after world until its descriptors are used up",
        "muster_trainer.training.survivor:MOST_SURVIVALS",
        lambda original: 10**6,
        GOING_ON,
    ),
    _unit(
        "goes-on-after-any-error",
        "a survivor that cannot join a world tries it in all further worlds",
        "muster_contract.errors:ConnectionLost",
        lambda original: PeerLost,
        GOING_ON,
    ),
    _unit(
        "goes-on-in-a-stop",
        "a job that stops trains on",
        "muster_trainer.training.recovery.survivors:Survivors.keep",
        _with_any_run(is_stopping=False),
        GOING_ON,
    ),
    _unit(
        "goes-on-without-a-state",
        "a process goes on with parameters that are half those of a checkpoint",
        "muster_trainer.training.recovery.survivors:Survivors.keep",
        _with_any_run(done=1),
        GOING_ON,
    ),
    _unit(
        "older-than-the-commit",
        "survivors do steps again that are committed",
        "muster_trainer.training.resume_point:newest_step",
        _always(0),
        GOING_ON,
    ),
    _unit(
        "void-commit-counts",
        "survivors give their state up for a commit that does not count",
        "muster_trainer.checkpoint.selection:is_void",
        _always(False),
        GOING_ON,
    ),
)

MUTANTS += BY_UNIT_TESTS


def plant(name: str) -> None:
    """Plants the bug of this name."""
    next(mutant for mutant in MUTANTS if mutant.name == name).plant()
