"""The series that each job has of its own in `/metrics`, while it has not ended.

Tenants decide how many jobs there are, so the number of jobs with series is limited per namespace and in total. The oldest jobs come first,
so that a flood of new jobs takes no series from running jobs. Users with rights to a status may write nonsense into it, so a value of an
unexpected type has no series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.api.status import FINAL_PHASES, MAX_DEVICE_KINDS, Reason
from muster.api.unchecked import items, mapping, mappings
from muster.control.job_store import Store
from muster.lifecycle.observed import CLAIM, POD
from muster.operator.metrics import families
from muster.operator.metrics.families import Family
from muster.strategies.accelerators import ACCELERATORS
from muster_contract.codes import FailureClass

MOST_JOBS = 1000
MOST_JOBS_PER_NAMESPACE = 100
MOST_NAMESPACES = 500
MOST_UNREADABLE = 100

_PARTS = ("queued", "starting", "unreported", "productive", "checkpoint", "redone", "recovering", "suspended")
_USES = ("useful", "unreported", "checkpoint", "redone", "waiting", "recovering", "idle")
_DEVICES = (*ACCELERATORS, CLAIM, POD)
_REASONS = tuple(reason.value for reason in Reason)  # tuples, because a looked-up value may be an unhashable list
_CLASSES = tuple(each.value for each in FailureClass)

Labels = tuple[str, ...]
Sample = tuple[Family, Labels, float]


@dataclass(frozen=True)
class _Job:
    namespace: str
    name: str
    created: str
    status: Mapping[str, Any]

    @property
    def labels(self) -> Labels:
        return self.namespace, self.name

    @property
    def phase(self) -> str:
        phase = self.status.get("phase")
        return phase if phase in families.PHASES else "Pending"


def samples(store: Store) -> Iterator[Sample]:
    """The series of all jobs together, then those of each job."""
    jobs = [_job(key, store.job(key) or {}) for key in store.keys]
    yield from _phases(jobs)
    for each in store.unreadable[:MOST_UNREADABLE]:
        yield families.UNREADABLE, (each.kind, each.namespace, each.name), 1.0
    live = [job for job in jobs if job.phase not in FINAL_PHASES]
    chosen = list(_chosen(live))
    yield families.WITHOUT_SERIES, (), float(len(live) - len(chosen))
    for job in chosen:
        yield from _of_job(job)


def _job(key: str, obj: Mapping[str, Any]) -> _Job:
    namespace, _, name = key.partition("/")
    return _Job(namespace, name, str(mapping(obj.get("metadata")).get("creationTimestamp", "")), mapping(obj.get("status")))


def _phases(jobs: Iterable[_Job]) -> Iterator[Sample]:
    """Jobs by namespace and phase. Namespaces beyond the largest are counted together, without the label."""
    jobs = list(jobs)
    largest = {namespace for namespace, _ in Counter(job.namespace for job in jobs).most_common(MOST_NAMESPACES)}
    counts = Counter((job.namespace if job.namespace in largest else "", job.phase) for job in jobs)
    for labels, count in sorted(counts.items()):
        yield families.JOBS, labels, float(count)


def _chosen(jobs: Iterable[_Job]) -> Iterator[_Job]:
    """The jobs with series of their own, oldest first."""
    counts: Counter[str] = Counter()
    for job in sorted(jobs, key=lambda job: (job.created, job.labels)):
        if counts[job.namespace] < MOST_JOBS_PER_NAMESPACE and counts.total() < MOST_JOBS:
            counts[job.namespace] += 1
            yield job


def _of_job(job: _Job) -> Iterator[Sample]:
    yield families.JOB_PHASE, (*job.labels, job.phase), 1.0
    for family, value in _figures(job.status):
        if value is not None:
            yield family, job.labels, value
    goodput = mapping(job.status.get("goodput"))
    for part in _PARTS:
        seconds = _number(goodput.get(f"{part}Seconds"))
        if seconds is not None:
            yield families.JOB_TIME, (*job.labels, part), seconds
    yield from _usage(job)
    failure = _last_failure(job.status)
    if failure is not None:
        labels, ended = failure
        yield families.JOB_FAILURE_TIME, (*job.labels, *labels), ended


def _usage(job: _Job) -> Iterator[Sample]:
    usage = mapping(job.status.get("usage"))
    for part in _USES:
        seconds = _number(usage.get(f"{part}Seconds"))
        if seconds is not None:
            yield families.JOB_DEVICE_SECONDS, (*job.labels, part), seconds
    for _, each in mappings(items(usage.get("devices"))[:MAX_DEVICE_KINDS]):
        name, device, count = each.get("capacityClass", ""), each.get("device"), _number(each.get("open"))
        if isinstance(name, str) and device in _DEVICES and count is not None:
            yield families.JOB_DEVICES, (*job.labels, name, device), count


def _figures(status: Mapping[str, Any]) -> Iterator[tuple[Family, float | None]]:
    progress, checkpoint, goodput = (mapping(status.get(name)) for name in ("progress", "checkpoint", "goodput"))
    roles = [role for _, role in mappings(status.get("roles"))]
    percent = _number(progress.get("percent"))
    yield families.JOB_ATTEMPT, _number(status.get("attempt"))
    yield families.JOB_DESIRED, sum(_number(role.get("desired")) or 0.0 for role in roles)
    yield families.JOB_READY, sum(_number(role.get("ready")) or 0.0 for role in roles)
    yield families.JOB_STEP, _number(progress.get("step"))
    yield families.JOB_PROGRESS, None if percent is None else percent / 100
    yield families.JOB_LOSS, _float(progress.get("loss"))
    yield families.JOB_RATE, _number(progress.get("samplesPerSecond"))
    yield families.JOB_GOODPUT, _number(goodput.get("ratio"))
    yield families.JOB_COST, _number(mapping(status.get("usage")).get("cost"))
    yield families.JOB_USAGE_TIME, _time(mapping(status.get("usage")).get("countedUntil"))
    yield families.JOB_COMMIT_TIME, _time(checkpoint.get("committedAt"))
    yield families.JOB_SAVE, _number(checkpoint.get("seconds"))
    yield families.JOB_SAVE_BLOCKED, _number(checkpoint.get("blockedSeconds"))
    yield families.JOB_STRAGGLERS, float(len(items(status.get("stragglers"))))
    yield families.JOB_NO_PROGRESS, _number(mapping(status.get("restarts")).get("withoutProgress")) or 0.0


def _last_failure(status: Mapping[str, Any]) -> tuple[Labels, float] | None:
    """Class and reason of the newest failed attempt, and the Unix time of its end."""
    for _, record in reversed(mappings(status.get("attempts"))):
        failure_class, ended = record.get("class"), _time(record.get("endTime"))
        if failure_class in _CLASSES and ended is not None:
            reason = record.get("reason")
            return (failure_class, reason if reason in _REASONS else ""), ended
    return None


def _number(value: object) -> float | None:
    return _float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _float(value: object) -> float | None:
    """A number, or the text of one, such as a loss. NaN is a value, and so are infinities."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _time(value: object) -> float | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment.timestamp() if moment is not None and moment.tzinfo is not None else None
