"""The Grafana dashboards of the chart, as Python: a dashboard is rows of panels, and a panel is a title with queries.

`deploy/generate.py` writes them as JSON to charts/muster/files/dashboards.
"""

import json
from dataclasses import dataclass
from typing import Any

COLUMNS = 24
HEIGHT = 7
WIDTH = 8

Json = dict[str, Any]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_NAMESPACES = 'job_namespace=~"$namespace"'
_JOB = 'job_namespace="$namespace", job_name="$job"'
_NAME = "{{job_namespace}}/{{job_name}}"


@dataclass(frozen=True)
class Panel:
    """`queries` are expressions with the legends of their series. `unit` is a unit of Grafana."""

    title: str
    description: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    stacked: bool = False


def _counted(metric: str, label: str) -> str:
    return f"sum by ({label}) (increase({metric}[$__rate_interval]))"


def _quantile(quantile: float, metric: str) -> str:
    return f"histogram_quantile({quantile}, sum by (le) (rate({metric}_bucket[$__rate_interval])))"


def _most(metric: str) -> str:
    return f"topk(10, {metric}{{{_NAMESPACES}}})"


FLEET = {
    "Jobs": (
        Panel(
            "Jobs by phase",
            "Jobs of the namespaces above.",
            ((f"sum by (phase) (muster_jobs{{{_NAMESPACES}}})", "{{phase}}"),),
            kind="stat",
        ),
        Panel(
            "Jobs that have not ended",
            "By namespace.",
            ((f'sum by (job_namespace) (muster_jobs{{{_NAMESPACES}, phase!~"Succeeded|Failed"}})', "{{job_namespace}}"),),
            stacked=True,
        ),
        Panel("Ended jobs", "All namespaces.", ((_counted("muster_ended_jobs_total", "phase"), "{{phase}}"),)),
        Panel(
            "Time until jobs run",
            "From the creation of a job until all of its replicas run. All namespaces.",
            (
                (_quantile(0.5, "muster_job_queue_duration_seconds"), "median"),
                (_quantile(0.95, "muster_job_queue_duration_seconds"), "95 %"),
            ),
            "s",
        ),
        Panel(
            "Where the time goes",
            "The life of all jobs that have not ended.",
            ((f"sum by (part) (muster_job_time_seconds{{{_NAMESPACES}}})", "{{part}}"),),
            "s",
            stacked=True,
        ),
        Panel(
            "Devices in use",
            "By capacity class and kind of device.",
            ((f"sum by (capacity_class, device) (muster_job_devices{{{_NAMESPACES}}})", "{{capacity_class}} {{device}}"),),
            stacked=True,
        ),
        Panel(
            "Device-hours of the last day",
            "By capacity class and kind of device. All namespaces.",
            (("sum by (capacity_class, device) (increase(muster_device_seconds_total[1d])) / 3600", "{{capacity_class}} {{device}}"),),
        ),
        Panel(
            "Cost of the last day",
            "At the prices of the capacity classes. All namespaces.",
            (("sum(increase(muster_cost_total[1d]))", "cost"),),
        ),
        Panel("Lowest goodput", "Jobs.", ((f"bottomk(10, muster_job_goodput_ratio{{{_NAMESPACES}}})", _NAME),), "percentunit"),
    ),
    "Failures and recoveries": (
        Panel(
            "Failures",
            "By class and reason. All namespaces.",
            ((_counted("muster_attempt_failures_total", "class, reason"), "{{class}} {{reason}}"),),
        ),
        Panel("Restarts", "By failure class. All namespaces.", ((_counted("muster_job_restarts_total", "class"), "{{class}}"),)),
        Panel(
            "Recovery time",
            "By phase of the recovery. All namespaces.",
            ((_counted("muster_recovery_seconds_total", "phase"), "{{phase}}"),),
            "s",
            stacked=True,
        ),
        Panel("Steps lost", "By failure class. All namespaces.", ((_counted("muster_steps_lost_total", "class"), "{{class}}"),)),
        Panel("Attempts without progress", "In a row.", ((_most("muster_job_attempts_without_progress"), _NAME),)),
        Panel("Stragglers", "Ranks that are slower than the others.", ((_most("muster_job_stragglers"), _NAME),)),
        Panel("Time of a save", "The newest save of each job.", ((_most("muster_job_save_seconds"), _NAME),), "s"),
        Panel("Age of the newest commit", "", ((f"topk(10, time() - muster_job_commit_timestamp_seconds{{{_NAMESPACES}}})", _NAME),), "s"),
    ),
    "Operator": (
        Panel("Leaders", "Exactly one operator of an installation leads.", (("sum(muster_leader)", "leaders"),), kind="stat"),
        Panel("Version", "", (("count by (version) (muster_build_info)", "{{version}}"),), kind="stat"),
        Panel(
            "Jobs due, and jobs whose last pass failed",
            "",
            (('sum(workqueue_depth{name="trainingjobs"})', "due"), ("sum(muster_failing_jobs)", "failing")),
        ),
        Panel(
            "Passes",
            "99 % of the passes start this late, or take this long.",
            (
                (_quantile(0.99, "workqueue_queue_duration_seconds").replace("_bucket[", '_bucket{name="trainingjobs"}['), "delay"),
                (_quantile(0.99, "workqueue_work_duration_seconds").replace("_bucket[", '_bucket{name="trainingjobs"}['), "duration"),
            ),
            "s",
        ),
        Panel("Errors of passes", "", (("sum by (error) (rate(muster_reconcile_errors_total[$__rate_interval]))", "{{error}}"),), "ops"),
        Panel(
            "Requests to the API server",
            "By status.",
            (("sum by (status) (rate(muster_api_requests_total[$__rate_interval]))", "{{status}}"),),
            "reqps",
        ),
        Panel("Supervisors", "", (("sum(muster_supervisors)", "report"), ("sum(muster_channel_connections)", "connections"))),
        Panel(
            "Reports refused",
            "By reason.",
            (("sum by (reason) (rate(muster_channel_refused_total[$__rate_interval]))", "{{reason}}"),),
            "ops",
        ),
        Panel("Time since the last full listing", "", (("time() - max(muster_resync_timestamp_seconds)", "listing"),), "s"),
        Panel(
            "Unreadable objects", "", (("count by (object_namespace, kind) (muster_unreadable_objects)", "{{object_namespace}} {{kind}}"),)
        ),
        Panel("Memory", "", (("process_resident_memory_bytes and on (instance) muster_build_info", "{{instance}}"),), "bytes"),
        Panel(
            "CPU",
            "",
            (("rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) muster_build_info", "{{instance}}"),),
            "percentunit",
        ),
    ),
}

JOB = {
    "Progress": (
        Panel("Phase", "", ((f"muster_job_phase{{{_JOB}}}", "{{phase}}"),), kind="stat"),
        Panel("Done", "", ((f"muster_job_progress_ratio{{{_JOB}}}", "done"),), "percentunit", kind="stat"),
        Panel(
            "Goodput",
            "Productive share of the life of the job.",
            ((f"muster_job_goodput_ratio{{{_JOB}}}", "goodput"),),
            "percentunit",
            kind="stat",
        ),
        Panel("Step", "", ((f"muster_job_step{{{_JOB}}}", "step"),)),
        Panel("Loss", "", ((f"muster_job_loss{{{_JOB}}}", "loss"),)),
        Panel("Throughput", "Samples per second.", ((f"muster_job_samples_per_second{{{_JOB}}}", "samples/s"),)),
    ),
    "Use of devices": (
        Panel(
            "Device-hours",
            "By what they were used for.",
            ((f"muster_job_device_seconds{{{_JOB}}} / 3600", "{{part}}"),),
            stacked=True,
        ),
        Panel("Devices held", "By capacity class.", ((f"muster_job_devices{{{_JOB}}}", "{{capacity_class}} {{device}}"),)),
        Panel("Cost", "At the prices of the capacity classes.", ((f"muster_job_cost{{{_JOB}}}", "cost"),)),
    ),
    "World and failures": (
        Panel("Replicas", "", ((f"muster_job_replicas_desired{{{_JOB}}}", "desired"), (f"muster_job_replicas_ready{{{_JOB}}}", "ready"))),
        Panel("Attempt", "", ((f"muster_job_attempt{{{_JOB}}}", "attempt"),)),
        Panel(
            "Time since the newest failure",
            "With its class and reason.",
            ((f"time() - muster_job_failure_timestamp_seconds{{{_JOB}}}", "{{class}} {{reason}}"),),
            "s",
        ),
        Panel("Where the time goes", "", ((f"muster_job_time_seconds{{{_JOB}}}", "{{part}}"),), "s", stacked=True),
        Panel("Attempts without progress", "In a row.", ((f"muster_job_attempts_without_progress{{{_JOB}}}", "attempts"),)),
        Panel("Stragglers", "Ranks that are slower than the others.", ((f"muster_job_stragglers{{{_JOB}}}", "ranks"),)),
    ),
    "Checkpoints": (
        Panel(
            "Time of the newest save",
            "",
            ((f"muster_job_save_seconds{{{_JOB}}}", "save"), (f"muster_job_save_blocked_seconds{{{_JOB}}}", "training waited")),
            "s",
        ),
        Panel("Age of the newest commit", "", ((f"time() - muster_job_commit_timestamp_seconds{{{_JOB}}}", "age"),), "s"),
    ),
}


def dashboards() -> dict[str, str]:
    """The JSON of each dashboard by file name."""
    every = _variable("namespace", "Namespace", "label_values(muster_jobs, job_namespace)", several=True)
    namespace = _variable("namespace", "Namespace", "label_values(muster_job_phase, job_namespace)")
    job = _variable("job", "Job", 'label_values(muster_job_phase{job_namespace="$namespace"}, job_name)')
    made = {
        "muster-fleet": _dashboard("muster-fleet", "Muster / Fleet", FLEET, [every]),
        "muster-job": _dashboard("muster-job", "Muster / Job", JOB, [namespace, job]),
    }
    return {f"{name}.json": json.dumps(content, indent=1) + "\n" for name, content in made.items()}


def _dashboard(uid: str, title: str, rows: dict[str, tuple[Panel, ...]], variables: list[Json]) -> Json:
    panels: list[Json] = []
    top = 0
    for name, row in rows.items():
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": name, "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top}, "panels": []}
        )
        top += 1
        for index, panel in enumerate(row):
            line, column = divmod(index, COLUMNS // WIDTH)
            place = {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": top + line * HEIGHT}
            panels.append({"id": len(panels) + 1, **_panel(panel), "gridPos": place})
        top += -(-len(row) // (COLUMNS // WIDTH)) * HEIGHT
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["muster"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "panels": panels,
    }


def _panel(panel: Panel) -> Json:
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 40} if panel.stacked else {}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _variable(name: str, label: str, query: str, *, several: bool = False) -> Json:
    everything = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}} if several else {}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        **everything,
    }
