"""The planted bugs: each is a mistake that somebody could make, as a replacement of a text that occurs exactly once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    file: str
    """Below operator/muster/lifecycle."""
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    name: str
    breaks: str
    """What goes wrong for the user."""
    edits: tuple[Edit, ...]


def _one(name: str, breaks: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, breaks, (Edit(file, old, new),))


MUTANTS: tuple[Mutant, ...] = (
    _one(
        "budget-off-by-one",
        "one restart more than the user allowed",
        "budget.py",
        "- charged < limit:",
        "- charged <= limit:",
    ),
    _one(
        "window-forgotten",
        "a job that runs for weeks is given up for failures of long ago",
        "budget.py",
        "return [time for time in times if time > until - window]",
        "return [time for time in times if time > until - window * 1000]",
    ),
    _one(
        "spared-though-broken",
        "a replica that has ended is taken for one that trains on",
        "in_place.py",
        "if keepable(view) and not view.spent}",
        "if keepable(view)}",
    ),
    _one(
        "spared-and-removed",
        "replicas that a restart is to leave alone lose their pods",
        "decide.py",
        "    case = replace(case, observed=in_place.seen(observed, status))",
        "    case = replace(case, observed=in_place.seen(observed, old))",
    ),
    _one(
        "incarnation-misread",
        "what a spared replica says of its end is taken for news of an attempt long over",
        "in_place.py",
        "current - 1 if member.awaited else current)",
        "member.incarnation)",
    ),
    _one(
        "fence-forgotten",
        "two attempts at once",
        "world.py",
        "if older or not absent or",
        "if not absent or",
    ),
    _one(
        "live-flag-ignored",
        "replicas are made though a stale look only seemed to show that the old ones are gone",
        "world.py",
        "if not case.observed.live and (older or absent):",
        "if not case.observed.live and older:",
    ),
    Mutant(
        "absence-in-a-cache-believed",
        "a caller that has just started restarts every healthy job",
        (
            Edit("failure.py", "    if case.observed.live:\n        ends +=", "    if True:\n        ends +="),
            Edit("decide.py", "return records.is_open(status) and bool(failure.vanished(case, status))", "return False"),
        ),
    ),
    _one(
        "final-phase-left",
        "a job that has ended comes back to life",
        "decide.py",
        "status = old if old.phase.final else _advance(case, old)",
        "status = _advance(case, old)",
    ),
    _one(
        "one-success-is-enough",
        "the job is called done while workers still train",
        "success.py",
        "bool(decisive) and all(member.succeeded for member in decisive)",
        "bool(decisive) and any(member.succeeded for member in decisive)",
    ),
    _one(
        "deletes-by-name",
        "a stale caller deletes a new attempt's replica by the name of the old one's",
        "actions.py",
        "DeleteReplica(view.name, view.uid, ",
        'DeleteReplica(view.name, "", ',
    ),
    _one(
        "correction-counted-twice",
        "a restart whose class is corrected is paid by two budgets",
        "budget.py",
        "    status = _book(case, status, record.failure_class, by=-1, time=began)\n    return _book(case, status, to, by=1, time=began)",
        "    return _book(case, status, to, by=1, time=began)",
    ),
    _one(
        "correction-forgotten",
        "a preemption that is recognised late is paid by another budget",
        "attempts.py",
        "if cause.failure_class is not record.failure_class and record.attempt < status.attempt:",
        "if record.attempt > status.attempt:",
    ),
    _one(
        "restart-charged-again",
        "a pass that is repeated after a crash counts the restart once more",
        "attempts.py",
        "    status = budget.note_progress(case, status, done)\n",
        "    status = budget.charge(case, budget.note_progress(case, status, done), record)\n",
    ),
    _one(
        "verdict-before-the-evidence",
        "the job is given up for a lost peer a second before it turns out that a node was preempted",
        "attempts.py",
        "(record.settled or verdict.at_once)",
        "record",
    ),
    _one(
        "suspension-forgets-replicas",
        "the job is called suspended while its replicas still hold their devices",
        "phase.py",
        "gone = status.phase is Phase.SUSPENDED or suspend.emptied(case)",
        "gone = True",
    ),
    _one(
        "back-off-ignored",
        "a crash loop restarts as fast as it can",
        "world.py",
        "    if backoff.held(case, status):\n        return",
        "    if False:\n        return",
    ),
    _one(
        "preemptions-loop",
        "a program that ends as if it was preempted is started again as fast as it can be, for ever",
        "policy.py",
        "FailureClass.PREEMPTION: Delays(1, 60, free=2),",
        "FailureClass.PREEMPTION: Delays(0, 0),",
    ),
    _one(
        "log-lost-in-back-off",
        "the log of a failed attempt is gone before anybody can read it",
        "world.py",
        "if view not in kept and not _keeps_its_log(case, status, view))",
        "if view not in kept)",
    ),
    _one(
        "none-deletes",
        "cleanPodPolicy None deletes the pods of a job that has failed",
        "success.py",
        "        case CleanPodPolicy.NONE:\n            return False",
        "        case CleanPodPolicy.NONE:\n            return status.phase is Phase.FAILED",
    ),
    _one(
        "side-cars-hold-on",
        "a pod whose side-car runs on keeps its devices after the job has ended",
        "success.py",
        "return not view.phase.ended or view.lingers",
        "return not view.phase.ended",
    ),
    _one(
        "order-matters",
        "names in a message change places, and each change writes the status",
        "in_place.py",
        "return tuple(sorted(views, key=lambda view: (ORDER[view.role], view.index, view.uid)))",
        "return tuple(views)",
    ),
    _one(
        "own-deletions-blamed",
        "replicas that Muster stopped itself count as preempted",
        "failure.py",
        "return None if asked else _deleted(view)",
        "return _deleted(view)",
    ),
    _one(
        "lost-peer-explains",
        "the first to notice is blamed, not the one that broke",
        "failure.py",
        "(2 if self.reason is Reason.PEER_LOST else 1)",
        "(1 if self.reason is Reason.PEER_LOST else 2)",
    ),
    _one(
        "number-used-again",
        "a new world under the number of the old one: the fence cannot tell them apart",
        "attempts.py",
        "number = 0 if status.admitted_time is None else status.attempt + 1",
        "number = status.attempt",
    ),
    _one(
        "seconds-booked-twice",
        "the parts of goodput no longer add up to the job's life",
        "goodput.py",
        "target: round(_seconds(books, target) + moved, 3)",
        "target: round(_seconds(books, target) + 2 * moved, 3)",
    ),
    _one(
        "forgets-to-wake",
        "a job is held back for ever",
        "decide.py",
        "            world.due(case, status),\n            elastic.due(case, status),\n            attempts.settles(case, status),\n",
        "",
    ),
    _one(
        "parameter-servers-leak",
        "parameter servers run on after the job is done",
        "success.py",
        "return _holds_resources(view) and not ends_by_itself",
        "return False",
    ),
    _one(
        "broken-text-in-status",
        "the API server refuses the status, so that the job stands still",
        "situation.py",
        "return moment.replace(microsecond=moment.microsecond // 1000 * 1000)",
        "return moment",
    ),
    _one(
        "handed-out-too-early",
        "processes of the new world start beside those of the old",
        "in_place.py",
        "if world is None or world.ready_time is None or not",
        "if world is None or not",
    ),
    _one(
        "acknowledgement-not-awaited",
        "a world is taken for complete while old processes still run in it",
        "world.py",
        "uid=uid, awaited=bool(uid), ",
        "uid=uid, ",
    ),
    _one(
        "kept-replicas-deleted",
        "a new leader, who has heard nobody yet, deletes the replicas of a world that trains",
        "in_place.py",
        "attempt = max(view.attempt, current if member and not member.awaited else 0, told)",
        "attempt = max(view.attempt, told)",
    ),
    _one(
        "last-words-of-the-kept-lost",
        "the lost peer is blamed though the replica that broke has said so, and goes on",
        "failure.py",
        "if words is None or words.attempt != attempt or words.code == 0:",
        "if True:",
    ),
    _one(
        "removed-by-force-while-it-runs",
        "a new world is made beside processes of the old that nobody sees any more",
        "actions.py",
        "0 if view.empty else grace_seconds",
        "0",
    ),
)
