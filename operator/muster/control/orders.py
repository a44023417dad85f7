"""What a supervisor is told in answer to its report. Pure: all of it is in the job's status, so that any leader tells the same."""

from __future__ import annotations

from muster.api.job import TrainingJob
from muster.api.reports import Reply, Report
from muster.api.spec import RoleName
from muster.api.status import Phase
from muster.lifecycle import hang, in_place, records
from muster.render.manifests import render_world
from muster.strategies.base import Addresses


def orders(job: TrainingJob, uid: str, report: Report, addresses: Addresses) -> Reply:
    """For the replica with this uid; `addresses` are those of the job's current attempt."""
    status = job.status
    attempt = in_place.attempt_of(status, uid)
    reply = Reply(
        attempt=attempt,
        grace_seconds=in_place.grace_seconds(job.spec, status),
        dump=hang.ended(records.ended(status)),
        end=status.phase.final or (records.awaits_verdict(status) and not report.waiting),
        succeeded=status.phase is Phase.SUCCEEDED,
    )
    member = in_place.handed_out(status, uid) if _ready(report, attempt) else None
    if member is None:
        return reply
    try:
        world = render_world(job, RoleName(member.role), index=member.index, attempt=attempt, addresses=addresses)
    except LookupError:  # the job has been made smaller since: the next pass removes this replica
        return reply
    return reply.model_copy(update={"world": world})


def _ready(report: Report, attempt: int) -> bool:
    """Whether it waits to start this attempt, and not for what follows it."""
    ended = report.last_words is not None and report.last_words.attempt == attempt
    return report.waiting and report.attempt == attempt and not ended
