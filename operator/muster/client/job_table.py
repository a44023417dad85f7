"""Jobs from the Tables of the API server, which have the columns of `kubectl get` and not the specs. Pure."""

from __future__ import annotations

from typing import Any

from muster.admission.definitions import COLUMNS
from muster.kubernetes.objects import Object

LONGEST_CELL = 2048
_PATHS = {name: path.removeprefix(".").split(".") for name, kind, path, _, _ in COLUMNS if kind != "date"}
_METADATA = ("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp")
_STATUS = "status"


def jobs_in(table: Object) -> list[Object]:
    """The jobs of a Table: their names and times, when they were written, and the fields that have a column."""
    columns = [str(column.get("name")) for column in table.get("columnDefinitions") or ()]
    return [_job(columns, row) for row in table.get("rows") or ()]


def _job(columns: list[str], row: Object) -> Object:
    """The columns of a cluster are those of its definition, so some may be missing or unknown here."""
    metadata = row["object"]["metadata"]
    own = {name: metadata[name] for name in _METADATA if name in metadata}
    job: Object = {"metadata": {**own, "managedFields": _last_writes(metadata)}, "spec": {}, "status": {}}
    for column, cell in zip(columns, row.get("cells") or (), strict=False):
        if column in _PATHS and cell is not None:
            _put(job, _PATHS[column], cell[:LONGEST_CELL] if isinstance(cell, str) else cell)
    return job


def _last_writes(metadata: Object) -> list[Object]:
    """The last write of the status and that of the rest. A user can make thousands of entries."""
    times: dict[bool, str] = {}
    for each in metadata.get("managedFields") or ():
        of_status = each.get("subresource") == _STATUS
        times[of_status] = max(times.get(of_status, ""), str(each.get("time") or ""))
    return [{"time": time, **({"subresource": _STATUS} if of_status else {})} for of_status, time in times.items()]


def _put(job: Object, path: list[str], value: Any) -> None:
    *parts, last = path
    for part in parts:
        job = job.setdefault(part, {})
    job[last] = value
