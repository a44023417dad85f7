"""Every metric of the operator: name, type, meaning and labels. docs/reference/metrics.md is generated from this list.

Names follow the conventions of Prometheus (unit as a suffix, `_total` for counters). The names of queue metrics are those of client-go, so
existing dashboards work. No label is called `job` or `namespace`, because Prometheus adds these labels to every series that it scrapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muster.api.status import Phase

Kind = Literal["counter", "gauge", "histogram"]
Scope = Literal["operator", "jobs", "job"]

JOB_LABELS = ("job_namespace", "job_name")
PHASES = tuple(phase.value for phase in Phase)


@dataclass(frozen=True)
class Family:
    """One metric. `scope`: whether each operator exports it, or the leader for all jobs, or the leader for each job."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    scope: Scope = "operator"
    buckets: tuple[float, ...] = ()


PASS_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
QUEUE_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)

LEADER = Family("muster_leader", "gauge", "Whether this operator leads: 1 or 0.")
BUILD_INFO = Family("muster_build_info", "gauge", "Always 1. The label has the version of the operator.", ("version",))
SUPERVISORS = Family("muster_supervisors", "gauge", "Pods whose supervisors report.")
CONNECTIONS = Family("muster_channel_connections", "gauge", "Open connections of the coordination channel.")
REFUSALS = Family(
    "muster_channel_refused_total", "counter", "Reports and connections that the coordination channel refused, by reason.", ("reason",)
)
RESYNC_TIME = Family("muster_resync_timestamp_seconds", "gauge", "Unix time of the last complete listing of jobs and pods. 0: none yet.")
REQUESTS = Family(
    "muster_api_requests_total",
    "counter",
    "Requests to the API server by verb and HTTP status. Status 0 means no answer, and 429 that the API server limits the operator.",
    ("verb", "status"),
)
PASS_ERRORS = Family("muster_reconcile_errors_total", "counter", "Passes over jobs that failed, by type of error.", ("error",))
FAILING = Family("muster_failing_jobs", "gauge", "Jobs whose last pass failed. They are retried.")
QUEUE_DEPTH = Family("workqueue_depth", "gauge", "Jobs that are due for a pass.", ("name",))
QUEUE_WAIT = Family(
    "workqueue_queue_duration_seconds",
    "histogram",
    "Seconds from when a job was due to the start of its pass.",
    ("name",),
    buckets=PASS_BUCKETS,
)
QUEUE_WORK = Family("workqueue_work_duration_seconds", "histogram", "Seconds that a pass over a job took.", ("name",), buckets=PASS_BUCKETS)

JOBS = Family("muster_jobs", "gauge", "Jobs by phase and namespace.", ("job_namespace", "phase"), "jobs")
UNREADABLE = Family(
    "muster_unreadable_objects",
    "gauge",
    "1 for each object that the operator cannot read. It ignores the object until it is corrected.",
    ("kind", "object_namespace", "object_name"),
    "jobs",
)
WITHOUT_SERIES = Family("muster_jobs_without_series", "gauge", "Jobs that have not ended and have no series of their own.", (), "jobs")
ENDED = Family("muster_ended_jobs_total", "counter", "Jobs that ended, by phase: Succeeded or Failed.", ("phase",), "jobs")
JOB_QUEUE = Family(
    "muster_job_queue_duration_seconds",
    "histogram",
    "Seconds from the creation of a job until all of its replicas ran for the first time, without suspensions.",
    (),
    "jobs",
    QUEUE_BUCKETS,
)
FAILURES = Family(
    "muster_attempt_failures_total",
    "counter",
    "Attempts that failed, by failure class and reason, as first recorded.",
    ("class", "reason"),
    "jobs",
)
RESTARTS = Family("muster_job_restarts_total", "counter", "Restarts of jobs by failure class.", ("class",), "jobs")
RECOVERIES = Family(
    "muster_recoveries_total", "counter", "Attempts that reached a first step after a failure, by class of the failure.", ("class",), "jobs"
)
RECOVERY_SECONDS = Family(
    "muster_recovery_seconds_total",
    "counter",
    "Seconds from failures to the first step after, by class and phase of the recovery.",
    ("class", "phase"),
    "jobs",
)
STEPS_LOST = Family("muster_steps_lost_total", "counter", "Steps that had to be done again, by class of the failure.", ("class",), "jobs")

DEVICE_SECONDS = Family(
    "muster_device_seconds_total",
    "counter",
    "Device-seconds that the pods of jobs have used, by capacity class and kind of device.",
    ("capacity_class", "device"),
    "jobs",
)
COST = Family("muster_cost_total", "counter", "Cost of the pods of jobs, at the prices of the capacity classes.", (), "jobs")

JOB_PHASE = Family("muster_job_phase", "gauge", "1 for the phase that the job is in.", (*JOB_LABELS, "phase"), "job")
JOB_ATTEMPT = Family("muster_job_attempt", "gauge", "Number of the current attempt, from 0.", JOB_LABELS, "job")
JOB_DESIRED = Family("muster_job_replicas_desired", "gauge", "Replicas that the current world needs.", JOB_LABELS, "job")
JOB_READY = Family("muster_job_replicas_ready", "gauge", "Running replicas.", JOB_LABELS, "job")
JOB_STEP = Family("muster_job_step", "gauge", "Steps done.", JOB_LABELS, "job")
JOB_PROGRESS = Family("muster_job_progress_ratio", "gauge", "Share of the steps that are done, 0 to 1.", JOB_LABELS, "job")
JOB_LOSS = Family("muster_job_loss", "gauge", "Loss of the last reported step.", JOB_LABELS, "job")
JOB_RATE = Family("muster_job_samples_per_second", "gauge", "Samples per second, over all devices.", JOB_LABELS, "job")
JOB_GOODPUT = Family(
    "muster_job_goodput_ratio", "gauge", "Productive share of the life of the job, without suspensions. 0 to 1.", JOB_LABELS, "job"
)
JOB_TIME = Family(
    "muster_job_time_seconds",
    "gauge",
    "Parts of the life of the job: queued, starting, unreported, productive, checkpoint, redone, recovering or suspended.",
    (*JOB_LABELS, "part"),
    "job",
)
JOB_DEVICE_SECONDS = Family(
    "muster_job_device_seconds",
    "gauge",
    "Device-seconds of the job until its usage time, by what they were used for: useful, unreported, checkpoint, redone, waiting, "
    "recovering or idle.",
    (*JOB_LABELS, "part"),
    "job",
)
JOB_DEVICES = Family(
    "muster_job_devices",
    "gauge",
    "Devices that the pods of the job held at its usage time, by capacity class and kind of device.",
    (*JOB_LABELS, "capacity_class", "device"),
    "job",
)
JOB_COST = Family("muster_job_cost", "gauge", "Cost of the job until its usage time. Absent without prices.", JOB_LABELS, "job")
JOB_USAGE_TIME = Family(
    "muster_job_usage_timestamp_seconds", "gauge", "Unix time until which the use of devices is counted.", JOB_LABELS, "job"
)
JOB_COMMIT_TIME = Family("muster_job_commit_timestamp_seconds", "gauge", "Unix time of the newest commit.", JOB_LABELS, "job")
JOB_SAVE = Family("muster_job_save_seconds", "gauge", "How long the newest save took.", JOB_LABELS, "job")
JOB_SAVE_BLOCKED = Family("muster_job_save_blocked_seconds", "gauge", "How long training waited for the newest save.", JOB_LABELS, "job")
JOB_STRAGGLERS = Family(
    "muster_job_stragglers", "gauge", "Ranks that are slower than the others. At most 8 are counted.", JOB_LABELS, "job"
)
JOB_NO_PROGRESS = Family(
    "muster_job_attempts_without_progress", "gauge", "Failed attempts in a row that did no new step.", JOB_LABELS, "job"
)
JOB_FAILURE_TIME = Family(
    "muster_job_failure_timestamp_seconds",
    "gauge",
    "Unix time at which the newest failed attempt ended, with its failure class and reason.",
    (*JOB_LABELS, "class", "reason"),
    "job",
)

FAMILIES = tuple(value for value in dict(globals()).values() if isinstance(value, Family))
"""All metrics, in the order of this file."""
