"""The input of `muster explain`: plain JSON objects, as the API server returns them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A job and the objects around it, at one time."""

    now: datetime
    """Time of the snapshot, by the clock of the reader."""
    job: Object
    """The TrainingJob."""
    pods: tuple[Object, ...] = ()
    """The pods of the job."""
    events: tuple[Object, ...] = ()
    """Events of the namespace that are about the job, its pods or its claims."""
    nodes: tuple[Object, ...] | None = ()
    """Nodes. None if the user may not read them."""
    claims: tuple[Object, ...] | None = ()
    """The PersistentVolumeClaims of the namespace. None if the user may not read them."""
    quotas: tuple[Object, ...] | None = ()
    """The ResourceQuotas of the namespace. None if the user may not read them."""
    policies: tuple[Object, ...] | None = ()
    """The NetworkPolicies of the namespace. None if the user may not read them."""
    workload: Object | None = None
    """The Workload of a job that MultiKueue copies to another cluster. None for other jobs, if there is none, and if the user may not read
    it."""
    spec_fields: frozenset[str] | None = None
    """The fields of `spec` that the cluster's definition has. None if unknown."""
    unreadable: tuple[str, ...] = ()
    """What the user may not read, such as `nodes`."""
