"""Jobs as text: tables for people, and JSON, YAML or names for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from muster.admission.yaml_text import write_yaml
from muster.api.constants import GROUP, PLURAL, RUN_DIRECTORY_ANNOTATION
from muster.api.times import parse_time
from muster.client.async_job import RankProcess
from muster.kubernetes.objects import Object
from muster_contract.text import printable

FORMATS = ("table", "wide", "json", "yaml", "name")
_MANAGED = "managedFields"


def jobs_as(output: str, jobs: Sequence[Object], *, now: datetime, namespaced: bool = False, single: bool = False) -> str:
    """The jobs in one of FORMATS, with a line break at the end. `namespaced`: the table has a column for the namespace."""
    if output == "name":
        return "".join(f"{run_directory(job) or f'{PLURAL}.{GROUP}/' + job['metadata']['name']}\n" for job in jobs)
    if output in ("table", "wide"):
        return table(_HEADER if namespaced else _HEADER[1:], [_row(job, now)[0 if namespaced else 1 :] for job in jobs])
    plain = [_without_managed_fields(job) for job in jobs]
    document: Any = plain[0] if single else {"apiVersion": "v1", "kind": "List", "items": plain}
    return document_as(output, document)


def run_directory(job: Object) -> str:
    """The run directory of a local run. Empty for a job of a cluster, which has a namespace, whatever its annotations are."""
    metadata = job["metadata"]
    return "" if "namespace" in metadata else str((metadata.get("annotations") or {}).get(RUN_DIRECTORY_ANNOTATION) or "")


def document_as(output: str, document: Any) -> str:
    """Plain data as JSON or YAML."""
    return write_yaml(document) if output == "yaml" else json.dumps(document, indent=2) + "\n"


_HEADER = ("NAMESPACE", "NAME", "STRATEGY", "PHASE", "QUEUED", "WORKERS", "STEP", "%", "LOSS", "RESTARTS", "AGE", "MESSAGE")
_LONGEST_MESSAGE = 60


def _row(job: Object, now: datetime) -> list[str]:
    """The columns of `kubectl get`, and the beginning of the status message."""
    metadata, status = job["metadata"], job.get("status") or {}
    progress = status.get("progress") or {}
    created = parse_time(metadata["creationTimestamp"])
    message = str(status.get("message") or "")
    values = (
        metadata.get("namespace") or "-",
        run_directory(job) or metadata["name"],
        job["spec"].get("strategy"),
        status.get("phase") or "Pending",
        (status.get("queue") or {}).get("summary"),
        status.get("workers"),
        progress.get("step"),
        progress.get("percent"),
        progress.get("loss"),
        (status.get("restarts") or {}).get("total"),
        age(now - created),
        message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…",
    )
    return ["" if value is None else printable(str(value)) for value in values]


_PROCESS_HEADER = ("JOB", "REPLICA", "RANK", "PID", "STATE", "ATTEMPT", "SUPERVISOR", "NODE")


def processes_as_table(processes: Iterable[tuple[str, RankProcess]]) -> str:
    """Training processes, each with the name of its job."""
    values = ((name, each.replica, each.rank, each.pid, each.state, each.attempt, each.supervisor, each.node) for name, each in processes)
    return table(_PROCESS_HEADER, [["" if cell is None else printable(str(cell)) for cell in row] for row in values])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that are as wide as their widest value, with three spaces between them."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    lines = ("   ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip() for line in (header, *rows))
    return "".join(f"{line}\n" for line in lines)


def age(passed: Any) -> str:
    """A duration as kubectl shows it: the one or two largest units."""
    seconds = max(0, int(passed.total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 180:
        return f"{minutes}m"
    return f"{hours}h" if hours < 48 else f"{days}d"


def _without_managed_fields(job: Object) -> Object:
    return {**job, "metadata": {name: value for name, value in job["metadata"].items() if name != _MANAGED}}
