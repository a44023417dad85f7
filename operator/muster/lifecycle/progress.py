"""How far is it? What supervisors report, made into status: progress, newest commit, where the attempt resumed, notices."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from muster.api.reports import Evaluation, Report, ReportedCommit, ReportedProgress, Resumed
from muster.api.status import CheckpointStatus, Progress, TrainingJobStatus
from muster.lifecycle import conditions, failure, fingerprints, phases, records
from muster.lifecycle.moments import moment
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.situation import Situation, whole

_NOTICES_KEPT = 10
_LONGEST_NOTICE = 1024
_LONGEST_PATH = 1024
_MOST_METRICS = 64
_LONGEST_ETA = 10**9  # seconds; beyond it a total that is nonsense would not fit the status


def read(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status with what the current attempt's replicas say."""
    if status.world is None or status.world.attempt != status.attempt:
        return status
    heard = case.reports(status.attempt)
    status = _resumed(case, status, [report.resumed for _, report in heard if report.resumed])
    status = _stepped(case, status, [report for _, report in heard])
    status = _spoken(case, status)
    status = _evaluated(case, status)
    status = _committed(case, status)
    return _noticed(case, status, [report for _, report in heard])


def held_back(case: Situation, old: TrainingJobStatus, new: TrainingJobStatus) -> bool:
    """Whether only progress has changed, and it was written a short while ago."""
    next_write = due(case)
    return new != old and next_write is not None and case.now < next_write and _quiet(old, new) == old


def due(case: Situation) -> datetime | None:
    """When progress may be written again."""
    written = case.job.status.progress.updated_at if case.job.status.progress else None
    return written + timedelta(seconds=case.policy.progress_seconds) if written else None


def _quiet(old: TrainingJobStatus, new: TrainingJobStatus) -> TrainingJobStatus:
    """The new status with the old figures."""
    world = new.world
    if world and old.world:
        world = world.model_copy(update={"activity": old.world.activity, "saved_seconds": old.world.saved_seconds})
    return new.model_copy(update={"world": world, "progress": old.progress, "checkpoint": old.checkpoint, "notices": old.notices})


def _resumed(case: Situation, status: TrainingJobStatus, told: list[Resumed]) -> TrainingJobStatus:
    """Once per attempt: where it really went on from, and what of the attempt before must be redone."""
    record = records.current(status)
    if not told or record is None or record.step_resumed is not None:
        return status
    resumed = told[0]
    before = records.before(status)
    stood = max(status.progress.step if status.progress else 0, before.last_step or 0 if before else 0)
    found = resumed.found if resumed.found is not None and resumed.found >= 0 else record.step_found
    status = conditions.resume(case, status, resumed)
    status = records.amend(status, record.attempt, step_resumed=resumed.step, step_found=found, steps_lost=max(0, stood - resumed.step))
    changes: dict[str, object] = {"checkpoint": _read_back(case, status.checkpoint, resumed)}
    best = max(status.restarts.best_step, resumed.step)
    changes["restarts"] = status.restarts.model_copy(update={"best_step": best})
    known = status.progress or (Progress(updated_at=case.stamp) if resumed.step else None)
    if known and status.world and status.world.first_step_time is None:
        changes["progress"] = known.model_copy(update={"step": resumed.step})
    return status.model_copy(update=changes)


def _read_back(case: Situation, known: CheckpointStatus | None, resumed: Resumed) -> CheckpointStatus | None:
    """The newest commit after an attempt resumed: the one read, which is verified. A commit beyond it is void from now on (the fence), and
    one that nobody reported, as of a world that saved when it was asked to end, became valid by now, or by the time of the one beyond."""
    if resumed.step == 0:
        return None
    if known and resumed.step == known.step:
        return known.model_copy(update={"verified": True})
    path = PurePosixPath(resumed.path or "").name[:_LONGEST_PATH]
    latest = known.committed_at if known and resumed.step < known.step else whole(case.now)
    measured = known.measured_seconds if known else None
    return CheckpointStatus(step=resumed.step, path=path, committed_at=latest, verified=True, measured_seconds=measured)


def _stepped(case: Situation, status: TrainingJobStatus, reports: list[Report]) -> TrainingJobStatus:
    assert status.world is not None
    spoken = [report for report in reports if report.progress and report.progress.step > 0]
    newest = max(spoken, key=lambda report: report.progress.step if report.progress else 0, default=None)
    activity = next((report.phase[:32] for report in reports if report.phase), status.world.activity)
    if newest is None or newest.progress is None:
        return status.model_copy(update={"world": status.world.model_copy(update={"activity": activity})})
    record, first = records.current(status), status.world.first_step_time
    activity = newest.phase[:32] if newest.phase else activity
    if first is None and record and newest.progress.step <= (record.step_resumed or 0):
        return status.model_copy(update={"world": status.world.model_copy(update={"activity": activity})})
    if first is None:
        status = phases.measured(case, status, newest.marks)
    assert status.world is not None
    saved = max(status.world.saved_seconds, round(newest.saved_seconds, 3))
    status = status.model_copy(update={"world": status.world.model_copy(update={"activity": activity, "saved_seconds": saved})})
    old = status.progress
    if first is not None and old and newest.progress.step <= old.step:
        return status
    return status.model_copy(update={"progress": _progress(case, status, newest.progress)})


def _spoken(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The last step may be known from last words alone."""
    step = failure.spoken_step(case.trainers(status.attempt))
    old = status.progress or Progress()
    if step is None or step <= old.step:
        return status
    percent = min(100, 100 * step // old.total_steps) if old.total_steps else None
    loss = _loss(failure.spoken_loss(case.trainers(status.attempt), step)) or old.loss
    update = {"step": step, "percent": percent, "eta_seconds": None, "updated_at": case.stamp, "loss": loss}
    return status.model_copy(update={"progress": old.model_copy(update=update)})


def _progress(case: Situation, status: TrainingJobStatus, told: ReportedProgress) -> Progress:
    """The report's figures; what a status may not hold (a rate that is no number, say) is left out."""
    old = status.progress or Progress()
    total = told.total_steps if told.total_steps and told.total_steps > 0 else old.total_steps
    return old.model_copy(
        update={
            "step": told.step,
            "total_steps": total,
            "percent": min(100, 100 * told.step // total) if total else None,
            "epoch": told.epoch if told.epoch is not None and told.epoch >= 0 else None,
            "loss": _loss(told.loss),
            "samples_per_second": _rate(told.samples_per_second),
            "eta_seconds": _eta(case, status, step=told.step, total=total),
            "updated_at": case.stamp,
        }
    )


def _loss(told: str | None) -> str | None:
    """For people, to six digits: every digit is in the replica's log. NaN and what is no number stay as they are."""
    try:
        return f"{float(told):.6g}" if told is not None else None
    except ValueError:
        return told[:32] if told else None


def _rate(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _eta(case: Situation, status: TrainingJobStatus, *, step: int, total: int | None) -> int | None:
    """From the mean time of this attempt's steps; None until two of its steps were seen."""
    record = records.current(status)
    if total is None or record is None or status.world is None or status.world.first_step_time is None:
        return None
    done = step - (record.step_resumed or 0)
    spent = (case.now - status.world.first_step_time).total_seconds()
    return min(_LONGEST_ETA, int(max(0, total - step) * spent / done)) if done > 1 and spent > 0 else None


def _evaluated(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    views = case.replicas(status.attempt)
    told = [view.report.evaluation for view in views if view.report and view.report.attempt == status.attempt]
    told += [words.evaluation for words in map(failure.last_words, views) if words]
    newest: Evaluation | None = max((evaluation for evaluation in told if evaluation), key=lambda each: each.step, default=None)
    if newest is None:
        return status
    metrics = {name[:64]: value for name, value in sorted(newest.metrics.items())[:_MOST_METRICS] if math.isfinite(value)}
    old = status.progress or Progress(updated_at=case.stamp)
    return status.model_copy(update={"progress": old.model_copy(update={"metrics": metrics})}) if metrics != old.metrics else status


def _committed(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The newest commit; a report that comes late says less than is known."""
    told = [commit for view in case.trainers(status.attempt) for commit in _commits(view, status.attempt)]
    newest = max(told, key=lambda commit: commit.step, default=None)
    known = status.checkpoint
    if newest is None or (known and newest.step <= known.step):
        return status
    when: datetime = whole(moment(newest.committed_at, fallback=case.now))
    seconds = _rounded(newest.seconds)
    measured = _measured(known.measured_seconds if known else None, seconds)
    times = {"seconds": seconds, "measured_seconds": measured, "blocked_seconds": _rounded(newest.blocked_seconds)}
    checkpoint = CheckpointStatus(step=newest.step, path=newest.path[:_LONGEST_PATH], committed_at=when, **times)
    return status.model_copy(update={"checkpoint": checkpoint})


def _measured(before: float | None, seconds: float | None) -> float | None:
    """One on request may be far shorter than one that training went on beside; and last words do not tell how long it took."""
    if before is None or seconds is None:
        return before if seconds is None else seconds
    return max(seconds, round(before / 2, 3))


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None and 0 <= seconds < math.inf else None


def _commits(view: ReplicaView, attempt: int) -> list[ReportedCommit]:
    words = failure.last_words(view)
    reported = view.report.checkpoint if view.report and view.report.attempt == attempt else None
    return [commit for commit in (reported, words.commit if words else None) if commit]


def _noticed(case: Situation, status: TrainingJobStatus, reports: list[Report]) -> TrainingJobStatus:
    """Environments are compared once all have told theirs: what most of them have is not known before."""
    told = [notice for report in reports for notice in report.notices]
    if len(reports) == len(case.trainers(status.attempt)) and all(report.fingerprints for report in reports):
        told += [f"environments differ: {difference}" for difference in fingerprints.differences(reports)]
    kept = list(dict.fromkeys(notice[:_LONGEST_NOTICE] for notice in told))[-_NOTICES_KEPT:]
    return status.model_copy(update={"notices": kept}) if kept else status
