"""Where a job is that MultiKueue copies to another cluster. Its Workload says so. Its status is that of the copy, which has the pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from muster.api.constants import MULTIKUEUE
from muster.api.status import FINAL_PHASES
from muster.api.unchecked import items, mapping, mappings
from muster.explain.evidence import Evidence, Source, condition_of, phase_of
from muster.explain.snapshot import Object, Snapshot

WORKLOADS = "workloads"
"""What `Snapshot.unreadable` calls Workloads."""


def is_copied(job: Object) -> bool:
    """Whether MultiKueue copies the job to another cluster."""
    return bool(job["spec"].get("managedBy") == MULTIKUEUE)


def has_no_copy(snapshot: Snapshot) -> bool:
    """Whether the job has no copy now, so that its status is that of the last one."""
    if not is_copied(snapshot.job) or phase_of(snapshot.job) in FINAL_PHASES or WORKLOADS in snapshot.unreadable:
        return False
    return not _status(snapshot).get("clusterName")


def evidence_of_copies(snapshot: Snapshot) -> Iterator[Evidence]:
    """What the Workload says about the copy of a job that has not ended."""
    job, status = snapshot.job, _status(snapshot)
    if not is_copied(job) or phase_of(job) in FINAL_PHASES or job["spec"].get("suspend"):
        return
    evicted, reserved = (condition_of(snapshot.workload or {}, kind) for kind in ("Evicted", "QuotaReserved"))
    checks = [each for _, each in mappings(status.get("admissionChecks"))]
    refused = next((each for each in checks if each.get("state") == "Rejected"), None)
    if snapshot.workload is None and WORKLOADS not in snapshot.unreadable:
        queue = (job["spec"].get("scheduling") or {}).get("queue")
        yield _state(job, "WorkloadAbsent", "" if queue else "scheduling.queue is empty")
    elif refused is not None:
        yield _state(job, "CopyRefused", str(refused.get("message") or ""))
    elif evicted.get("status") == "True" and reserved.get("status") == "True":
        yield _state(job, "TakenBack", str(evicted.get("message") or ""))
    elif status.get("clusterName") or snapshot.workload is None:
        yield _state(job, "InWorkerCluster", str(status.get("clusterName") or ""))
    elif reserved.get("status") == "True":
        offered = ", ".join(str(each) for each in items(status.get("nominatedClusterNames")))
        words = next((str(each["message"]) for each in checks if each.get("message")), "")
        yield _state(job, "WorkersWait", "; ".join(each for each in (offered, words) if each))
    else:
        words = str(reserved.get("message") or "Kueue has not processed its Workload yet")
        yield Evidence(Source.SCHEDULING, "InManagerQueue", words, str(job["metadata"]["name"]))


def _status(snapshot: Snapshot) -> Mapping[str, Any]:
    return mapping((snapshot.workload or {}).get("status"))


def _state(job: Object, reason: str, message: str) -> Evidence:
    return Evidence(Source.STATE, reason, message, str(job["metadata"]["name"]))
