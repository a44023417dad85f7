"""Jobs from the Tables of the API server, which have the columns of `kubectl get` and not the specs. Pure."""

from __future__ import annotations

from typing import Any

from muster.admission.definitions import COLUMNS
from muster.kubernetes.objects import Object

LONGEST_CELL = 2048
_PATHS = {name: path.removeprefix(".").split(".") for name, kind, path, _, _ in COLUMNS if kind != "date"}
_METADATA = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
_WRITE = ("subresource", "time")


def jobs_in(table: Object) -> list[Object]:
    """The jobs of a Table: their names and times, when they were written, and the fields that have a column."""
    columns = [str(column.get("name")) for column in table.get("columnDefinitions") or ()]
    return [_job(columns, row) for row in table.get("rows") or ()]


def _job(columns: list[str], row: Object) -> Object:
    """The columns of a cluster are those of its definition, so some may be missing or unknown here."""
    metadata = row["object"]["metadata"]
    writes = [{name: each[name] for name in _WRITE if name in each} for each in metadata.get("managedFields") or ()]
    own = {name: metadata[name] for name in _METADATA if name in metadata}
    job: Object = {"metadata": {**own, "managedFields": writes}, "spec": {}, "status": {}}
    for column, cell in zip(columns, row.get("cells") or (), strict=False):
        if column in _PATHS and cell is not None:
            _put(job, _PATHS[column], cell[:LONGEST_CELL] if isinstance(cell, str) else cell)
    return job


def _put(job: Object, path: list[str], value: Any) -> None:
    *parts, last = path
    for part in parts:
        job = job.setdefault(part, {})
    job[last] = value
