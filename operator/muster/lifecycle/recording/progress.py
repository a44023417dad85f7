"""The progress of the training. Reports of supervisors become progress, the newest commit, the step resumed from, and notices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from muster.api.status import AttemptRecord, CheckpointStatus, Notice, Progress, SnapshotStatus, TrainingJobStatus
from muster.api.times import reported_time, whole_seconds
from muster.lifecycle.facts.facts import Facts
from muster.lifecycle.facts.failure import last_terminated_step, terminated_loss, termination_of
from muster.lifecycle.job_state import newest, with_record
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.recording.phases import with_phases
from muster.lifecycle.recording.ranks import differences
from muster_contract import reports as wire
from muster_contract.events import Commit, Evaluation, Resumed, ResumeSource
from muster_contract.notices import NoticeReason
from muster_contract.reports import Marks, Report

_MOST_NOTICES = 10
_LONGEST_NOTICE = 1024
_LONGEST_PATH = 1024
_MOST_METRICS = 64
_LONGEST_ETA = 10**9  # seconds; an absurd total must still fit the status
_NEVER = "Never"


def with_progress(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with what the current attempt's replicas report."""
    if status.world is None or status.world.attempt != status.attempt:
        return status
    reported = facts.reports(status.attempt)
    reports = [report for _, report in reported]
    starts = [report.resumed for view, report in reported if report.resumed and not view.start_is_recorded]
    status = _with_resumed_step(status, facts, starts)
    status = _with_steps(status, facts, reported)
    status = _with_step_of_terminations(status, facts)
    status = _with_evaluation(status, facts)
    status = _with_commit(status, facts)
    status = _with_snapshot(status, reports)
    return _with_notices(status, facts, reports)


def _with_resumed_step(status: TrainingJobStatus, facts: Facts, reported: list[Resumed]) -> TrainingJobStatus:
    """Records once per attempt the step that it resumed from, and the number of steps of the attempt before that must be redone."""
    record = newest(status)
    if not reported or record is None or record.step_resumed is not None:
        return status
    resumed = reported[0]
    status = _with_steps_before(status, resumed.step)
    done = max(status.progress.step if status.progress else 0, _step_before(status))
    record = replace(
        record,
        step_resumed=resumed.step,
        resumed_from=resumed.source,
        survivors=resumed.survivors or None,
        step_committed=record.step_committed if resumed.committed_step is None else resumed.committed_step,
        step_skipped=_skipped_step(status, facts, resumed),
        steps_lost=max(0, done - resumed.step),
    )
    progress = status.progress or (Progress(updated_at=facts.stamp) if resumed.step else None)
    if progress and status.world and status.world.first_step_time is None:
        progress = replace(progress, step=resumed.step)
    else:
        progress = status.progress
    return replace(
        with_record(status, record),
        checkpoint=_verified(status.checkpoint, facts, resumed),
        restarts=replace(status.restarts, best_step=max(status.restarts.best_step, resumed.step)),
        progress=progress,
    )


def _step_before(status: TrainingJobStatus) -> int:
    """The step that the attempts before the newest had reached, by their records."""
    record = _last_that_resumed(status)
    return max(record.last_step or 0, record.step_resumed or 0) if record else 0


def _with_steps_before(status: TrainingJobStatus, resumed: int) -> TrainingJobStatus:
    """The status after an attempt has resumed at this step. The attempts before it had reached the step, even if its supervisor was killed
    before it could report that."""
    record = _last_that_resumed(status)
    if record is None or resumed <= _step_before(status):
        return status
    return with_record(status, replace(record, last_step=resumed))


def _last_that_resumed(status: TrainingJobStatus) -> AttemptRecord | None:
    """The last attempt before the newest that has resumed. Attempts that ended before that have done no step."""
    before = reversed(status.attempts[:-1])
    return next((record for record in before if record.last_step is not None or record.step_resumed is not None), None)


def _skipped_step(status: TrainingJobStatus, facts: Facts, resumed: Resumed) -> int | None:
    """The step of the newest commit, if the attempt should have resumed there and did not. An attempt may skip a damaged commit and report
    that. It must not begin at step 0."""
    committed = max(status.checkpoint.step if status.checkpoint else 0, resumed.committed_step or 0)
    if committed == 0 or facts.spec.checkpoint.resume == _NEVER:
        return None
    regressed = resumed.step == 0 or (resumed.step < committed and not resumed.skipped)
    return committed if regressed else None


def _verified(newest_commit: CheckpointStatus | None, facts: Facts, resumed: Resumed) -> CheckpointStatus | None:
    """The newest commit after an attempt has resumed: the one that it read. The fence makes later commits void. A commit that no report
    named, such as one of a world that saved before a stop, gets the current time, or the time of the later commit that it replaces."""
    if resumed.source in (ResumeSource.MEMORY, ResumeSource.SURVIVORS):
        return newest_commit
    if resumed.step == 0:
        return None
    if newest_commit and resumed.step == newest_commit.step:
        return replace(newest_commit, verified=True)
    return CheckpointStatus(
        step=resumed.step,
        path=PurePosixPath(resumed.path or "").name[:_LONGEST_PATH],
        committed_at=newest_commit.committed_at if newest_commit and resumed.step < newest_commit.step else whole_seconds(facts.now),
        verified=True,
        measured_seconds=newest_commit.measured_seconds if newest_commit else None,
    )


def _with_steps(status: TrainingJobStatus, facts: Facts, reported: Sequence[tuple[ReplicaView, Report]]) -> TrainingJobStatus:
    world, record = status.world, newest(status)
    assert world is not None
    stepping = [(report.progress, view, report) for view, report in reported if report.progress and report.progress.step > 0]
    progress, view, report = max(stepping, key=lambda each: each[0].step, default=(None, None, None))
    activity = next((each.phase for each in (report, *(report for _, report in reported)) if each and each.phase), world.activity)
    status = replace(status, world=replace(world, activity=activity[:32] if activity else activity))
    is_first = world.first_step_time is None
    if progress is None or view is None or report is None or (is_first and record and progress.step <= (record.step_resumed or 0)):
        return status
    if is_first:
        status = with_phases(status, facts, Marks() if view.start_is_recorded else report.marks)
    assert status.world is not None
    saved = max(status.world.saved_seconds, round(report.saved_seconds, 3))
    status = replace(status, world=replace(status.world, saved_seconds=saved))
    if not is_first and status.progress and progress.step <= status.progress.step:
        return status
    return replace(status, progress=_progress(status, facts, progress))


def _with_step_of_terminations(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The status with the last step, which is often only in termination messages."""
    views = facts.trainers(status.attempt)
    step, old = last_terminated_step(views), status.progress or Progress()
    if step is None or step <= old.step:
        return status
    percent = min(100, 100 * step // old.total_steps) if old.total_steps else None
    loss = _short_loss(terminated_loss(views, step)) or old.loss
    progress = replace(old, step=step, percent=percent, eta_seconds=None, updated_at=facts.stamp, loss=loss)
    return replace(status, progress=progress)


def _progress(status: TrainingJobStatus, facts: Facts, reported: wire.Progress) -> Progress:
    """The figures of the report, without values that a status may not hold, such as a rate that is not a number."""
    old = status.progress or Progress()
    total = reported.total_steps if reported.total_steps and reported.total_steps > 0 else old.total_steps
    rate = reported.samples_per_second
    return replace(
        old,
        step=reported.step,
        total_steps=total,
        percent=min(100, 100 * reported.step // total) if total else None,
        epoch=reported.epoch if reported.epoch is not None and reported.epoch >= 0 else None,
        loss=_short_loss(reported.loss),
        samples_per_second=rate if rate is not None and math.isfinite(rate) and rate >= 0 else None,
        eta_seconds=_eta(status, facts, reported, total=total),
        updated_at=facts.stamp,
    )


def _short_loss(loss: str | None) -> str | None:
    """The loss with six digits. The log of the replica has all digits. NaN and text that is not a number stay as they are."""
    try:
        return f"{float(loss):.6g}" if loss is not None else None
    except ValueError:
        return loss[:32] if loss else None


def _eta(status: TrainingJobStatus, facts: Facts, reported: wire.Progress, *, total: int | None) -> int | None:
    """The estimate of the program, or else one from the mean time of this attempt's steps. None until the attempt has done two steps."""
    if reported.remaining_seconds is not None:
        return min(_LONGEST_ETA, int(reported.remaining_seconds))
    step = reported.step
    record = newest(status)
    if total is None or record is None or status.world is None or status.world.first_step_time is None:
        return None
    done = step - (record.step_resumed or 0)
    passed = (facts.now - status.world.first_step_time).total_seconds()
    return min(_LONGEST_ETA, int(max(0, total - step) * passed / done)) if done > 1 and passed > 0 else None


def _with_evaluation(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    views = facts.replicas_of(status.attempt)
    reported = [report.evaluation for view in views if (report := view.report_about(status.attempt))]
    reported += [termination.evaluation for termination in map(termination_of, views) if termination]
    newest_one: Evaluation | None = max((each for each in reported if each), key=lambda each: each.step, default=None)
    if newest_one is None:
        return status
    metrics = {name[:64]: value for name, value in sorted(newest_one.metrics.items())[:_MOST_METRICS] if math.isfinite(value)}
    old = status.progress or Progress(updated_at=facts.stamp)
    return status if metrics == old.metrics else replace(status, progress=replace(old, metrics=metrics))


def _with_commit(status: TrainingJobStatus, facts: Facts) -> TrainingJobStatus:
    """The newest commit. A late report does not replace a newer commit."""
    commits = [commit for view in facts.trainers(status.attempt) for commit in _commits(view, status.attempt)]
    commit, old = max(commits, key=lambda each: each.step, default=None), status.checkpoint
    if commit is None or (old and commit.step <= old.step):
        return status
    seconds = _rounded(commit.seconds)
    checkpoint = CheckpointStatus(
        step=commit.step,
        path=commit.path[:_LONGEST_PATH],
        committed_at=whole_seconds(reported_time(commit.time or None, fallback=facts.now)),
        seconds=seconds,
        measured_seconds=_measured(old.measured_seconds if old else None, seconds),
        blocked_seconds=_rounded(commit.blocked_seconds),
        interval_seconds=_rounded(commit.interval_seconds),
    )
    return replace(status, checkpoint=checkpoint)


def _with_snapshot(status: TrainingJobStatus, reports: list[Report]) -> TrainingJobStatus:
    """The newest snapshot of this attempt."""
    reported = next((report.snapshot for report in reports if report.snapshot), None)
    if reported is None:
        return status
    return replace(status, snapshot=SnapshotStatus(step=reported.step, bytes=reported.bytes, copies=reported.copies))


def _commits(view: ReplicaView, attempt: int) -> Iterable[Commit]:
    termination = termination_of(view)
    report = view.report_about(attempt)
    return (commit for commit in (report.checkpoint if report else None, termination.commit if termination else None) if commit)


def _measured(before: float | None, seconds: float | None) -> float | None:
    """The estimated duration of a save: the newest duration, or half of the one before if that is more.

    A save on request may be far shorter than one during the training. A termination message does not have the duration of a save.
    """
    if before is None or seconds is None:
        return before if seconds is None else seconds
    return max(seconds, round(before / 2, 3))


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None and 0 <= seconds < math.inf else None


def _with_notices(status: TrainingJobStatus, facts: Facts, reports: list[Report]) -> TrainingJobStatus:
    """The status with notices. Environments are compared after every replica has reported its own."""
    notices = [Notice(reason=notice.reason, message=notice.message[:_LONGEST_NOTICE]) for report in reports for notice in report.notices]
    if len(reports) == len(facts.trainers(status.attempt)) and all(report.fingerprints for report in reports):
        messages = (f"environments differ: {difference}"[:_LONGEST_NOTICE] for difference in differences(reports))
        notices += [Notice(reason=NoticeReason.ENVIRONMENTS_DIFFER, message=message) for message in messages]
    latest = tuple(dict.fromkeys(notices))[-_MOST_NOTICES:]
    return replace(status, notices=latest) if latest else status
