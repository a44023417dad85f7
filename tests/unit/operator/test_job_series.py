"""The series of jobs in `/metrics`: their values, their bounds, and that no status breaks them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.api.status import AttemptRecord, Goodput, Phase, Phases, Reason, TrainingJobStatus
from muster.control.cluster import Unreadable
from muster.control.job_store import Store
from muster.operator.metrics import job_series
from muster.operator.metrics.counters import Metrics
from muster.operator.metrics.families import FAMILIES
from muster.operator.metrics.job_series import MOST_JOBS, MOST_JOBS_PER_NAMESPACE, MOST_NAMESPACES, MOST_UNREADABLE
from muster_contract.codes import FailureClass

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING: dict[str, Any] = {
    "phase": "Running",
    "attempt": 2,
    "roles": [{"name": "worker", "desired": 4, "ready": 3}, {"name": "ps", "desired": 1, "ready": 1}],
    "progress": {"step": 120, "percent": 12, "loss": "0.25", "samplesPerSecond": 10.5},
    "goodput": {"ratio": 0.5, "queuedSeconds": 3.0, "productiveSeconds": 60.0},
    "usage": {
        "countedUntil": "2026-01-01T00:00:02.000Z",
        "deviceSeconds": 90.0,
        "usefulSeconds": 60.0,
        "idleSeconds": 30.0,
        "cost": 1.5,
        "devices": [{"capacityClass": "spot", "device": "nvidia.com/gpu", "seconds": 90.0, "open": 8}],
    },
    "checkpoint": {"step": 100, "path": "x", "committedAt": "2026-01-01T00:00:00Z", "seconds": 2.5, "blockedSeconds": 0.5},
    "stragglers": [{"rank": 1}],
    "restarts": {"withoutProgress": 2},
    "attempts": [
        {"attempt": 0, "class": "Preemption", "reason": "Evicted", "endTime": "2025-12-31T23:00:00.000Z"},
        {"attempt": 1, "class": "Infrastructure", "reason": "Hang", "endTime": "2026-01-01T00:00:01.500Z"},
        {"attempt": 2},
    ],
}


def store(*jobs: tuple[str, dict[str, Any]]) -> Store:
    """A store with jobs, each created a second after the one before."""
    made = Store(time.monotonic)
    for index, (key, status) in enumerate(jobs):
        namespace, _, name = key.partition("/")
        created = f"{NOW + timedelta(seconds=index):%Y-%m-%dT%H:%M:%SZ}"
        metadata = {"namespace": namespace, "name": name, "uid": f"uid-{key}", "resourceVersion": "1", "creationTimestamp": created}
        made.put_job({"metadata": metadata, "spec": {}, "status": status})
    return made


def samples(source: Store) -> dict[str, float]:
    return {"/".join((family.name, *labels)): value for family, labels, value in job_series.samples(source)}


def test_a_job_has_series_for_the_values_of_its_status() -> None:
    values = samples(store(("team/digits", RUNNING)))
    assert values == {
        "muster_jobs/team/Running": 1,
        "muster_jobs_without_series": 0,
        "muster_job_phase/team/digits/Running": 1,
        "muster_job_attempt/team/digits": 2,
        "muster_job_replicas_desired/team/digits": 5,
        "muster_job_replicas_ready/team/digits": 4,
        "muster_job_step/team/digits": 120,
        "muster_job_progress_ratio/team/digits": 0.12,
        "muster_job_loss/team/digits": 0.25,
        "muster_job_samples_per_second/team/digits": 10.5,
        "muster_job_goodput_ratio/team/digits": 0.5,
        "muster_job_time_seconds/team/digits/queued": 3,
        "muster_job_time_seconds/team/digits/productive": 60,
        "muster_job_device_seconds/team/digits/useful": 60,
        "muster_job_device_seconds/team/digits/idle": 30,
        "muster_job_devices/team/digits/spot/nvidia.com/gpu": 8,
        "muster_job_cost/team/digits": 1.5,
        "muster_job_usage_timestamp_seconds/team/digits": NOW.timestamp() + 2,
        "muster_job_commit_timestamp_seconds/team/digits": NOW.timestamp(),
        "muster_job_save_seconds/team/digits": 2.5,
        "muster_job_save_blocked_seconds/team/digits": 0.5,
        "muster_job_stragglers/team/digits": 1,
        "muster_job_attempts_without_progress/team/digits": 2,
        "muster_job_failure_timestamp_seconds/team/digits/Infrastructure/Hang": NOW.timestamp() + 1.5,
    }


def test_an_ended_job_is_only_counted() -> None:
    values = samples(store(("team/digits", {**RUNNING, "phase": "Failed"})))
    assert values == {"muster_jobs/team/Failed": 1, "muster_jobs_without_series": 0}


JUNK: tuple[Any, ...] = (None, True, -1, "x", [], {}, [None], {"": None}, "NaN", 10**400)


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_invalid_values_in_a_status_do_not_break_the_metrics(junk: Any) -> None:
    nested = {key: [dict.fromkeys(value[0], junk)] if isinstance(value, list) else junk for key, value in RUNNING.items()}
    inside = {key: dict.fromkeys(value, junk) if isinstance(value, dict) else value for key, value in RUNNING.items()}
    for status in (junk, dict.fromkeys(RUNNING, junk), nested, inside):
        values = samples(store(("team/digits", status), ("team/good", RUNNING)))
        assert values["muster_job_step/team/good"] == 120
        labels = {label for name in values for label in name.split("/")[3:]}
        assert labels <= {
            "Pending",
            "Running",
            "queued",
            "productive",
            "Infrastructure",
            "Preemption",
            "Hang",
            "Evicted",
            "",
            "useful",
            "idle",
            "spot",
            "nvidia.com",
            "gpu",
        }


def test_a_flood_of_jobs_takes_no_series_from_other_namespaces_or_older_jobs() -> None:
    flood = [(f"flood/job-{number:05}", RUNNING) for number in range(MOST_JOBS * 2)]
    values = samples(store(("flood/old", RUNNING), *flood, ("team/late", RUNNING)))
    named = [name for name in values if name.startswith("muster_job_step/")]
    assert len(named) == MOST_JOBS_PER_NAMESPACE + 1
    assert {"muster_job_step/flood/old", "muster_job_step/team/late"} <= set(named)
    assert values["muster_jobs_without_series"] == len(flood) + 2 - len(named)
    assert values["muster_jobs/flood/Running"] == len(flood) + 1


def test_the_number_of_series_is_limited_for_any_jobs_of_tenants() -> None:
    namespaces = [f"ns-{number:05}" for number in range(MOST_NAMESPACES * 3)]
    source = store(*((f"{namespace}/job", RUNNING) for namespace in namespaces), (f"{namespaces[-1]}/second", RUNNING))
    source.unreadable = tuple(Unreadable("Pod", "team", f"odd-{number}", "uid", "") for number in range(MOST_UNREADABLE * 2))
    values = samples(source)
    count = {family.name: sum(1 for name in values if name.split("/")[0] == family.name) for family in FAMILIES}
    assert count["muster_jobs"] == MOST_NAMESPACES + 1
    assert f"muster_jobs/{namespaces[-1]}/Running" in values, "the largest namespaces keep their names"
    assert values["muster_jobs//Running"] == len(namespaces) - MOST_NAMESPACES
    assert count["muster_unreadable_objects"] == MOST_UNREADABLE
    assert max(count[family.name] for family in FAMILIES if family.scope == "job") == MOST_JOBS * 2  # two parts of the goodput


def attempt(number: int, **fields: Any) -> AttemptRecord:
    return AttemptRecord(attempt=number, start_time=NOW, **fields)


FAILED = attempt(0, end_time=NOW, reason=Reason.HANG, failure_class=FailureClass.INFRASTRUCTURE)


def counted(*statuses: TrainingJobStatus) -> dict[str, float]:
    """The lines of the page that are not 0, after writes of these statuses."""
    metrics = Metrics()
    for old, new in zip((TrainingJobStatus(), *statuses), statuses, strict=False):
        metrics.count_change(old, new)
    lines = (line.rpartition(" ") for line in metrics.page().decode().splitlines() if line.startswith("muster_") and "bucket" not in line)
    return {name: float(value) for name, _, value in lines if float(value) and "build_info" not in name}


def test_each_change_of_a_status_is_counted_once() -> None:
    started = TrainingJobStatus(phase=Phase.RUNNING, start_time=NOW, goodput=Goodput(queued_seconds=7.0), attempts=(attempt(0),))
    failed = TrainingJobStatus(phase=Phase.RECOVERING, start_time=NOW, attempts=(FAILED,))
    restarted = TrainingJobStatus(phase=Phase.RECOVERING, start_time=NOW, attempts=(FAILED, attempt(1)))
    phases = Phases(detect_seconds=1.0, schedule_seconds=2.0, first_step_seconds=0.5)
    recovered = TrainingJobStatus(
        phase=Phase.RUNNING, start_time=NOW, attempts=(FAILED, attempt(1, phases=phases, step_resumed=3, steps_lost=4))
    )
    ended = TrainingJobStatus(phase=Phase.SUCCEEDED, start_time=NOW, attempts=recovered.attempts)
    assert counted(started, failed, failed, restarted, restarted, recovered, recovered, ended, ended) == {
        "muster_job_queue_duration_seconds_count": 1,
        "muster_job_queue_duration_seconds_sum": 7,
        'muster_attempt_failures_total{class="Infrastructure",reason="Hang"}': 1,
        'muster_job_restarts_total{class="Infrastructure"}': 1,
        'muster_recoveries_total{class="Infrastructure"}': 1,
        'muster_recovery_seconds_total{class="Infrastructure",phase="detect"}': 1,
        'muster_recovery_seconds_total{class="Infrastructure",phase="schedule"}': 2,
        'muster_recovery_seconds_total{class="Infrastructure",phase="first_step"}': 0.5,
        'muster_steps_lost_total{class="Infrastructure"}': 4,
        'muster_ended_jobs_total{phase="Succeeded"}': 1,
    }


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert not {"job", "namespace", "instance", "le"} & set(family.labels), f"{family.name}: Prometheus sets these labels itself"
        assert bool(family.buckets) == (family.kind == "histogram")
