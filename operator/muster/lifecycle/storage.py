"""Can all pods of the job reach its checkpoints? What a claim's access modes mean for them.

Source: "Access Modes" in the Kubernetes documentation of persistent volumes.
"""

from __future__ import annotations

from muster.api.status import ConditionType, Reason, TrainingJobStatus
from muster.lifecycle import conditions
from muster.lifecycle.situation import Situation


def shared(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status with condition StorageShared, where the claim was looked at."""
    claim, storage = case.observed.claim, case.spec.checkpoint.storage
    if claim is None or storage is None or storage.persistent_volume_claim is None or case.problems:
        return status
    name, pods = storage.persistent_volume_claim.claim_name, len(case.strategy.plan(case.spec).replicas)
    holds, reason, message = _judged(name, claim.access_modes, pods, limit=case.spec.startup_deadline_seconds)
    return conditions.put(case, status, ConditionType.STORAGE_SHARED, holds=holds, reason=reason, message=message)


def _judged(name: str, modes: tuple[str, ...], pods: int, *, limit: int) -> tuple[bool, Reason, str]:
    if not modes:
        told = f"there is no claim {name} in this namespace: the pods wait for it, {limit} s at most; make it, ReadWriteMany"
        return False, Reason.CLAIM_NOT_FOUND, told
    if "ReadWriteMany" in modes:
        return True, Reason.MANY_NODES, f"claim {name} is ReadWriteMany"
    kinds = ", ".join(modes)
    if pods == 1:
        return (
            True,
            Reason.ONE_POD,
            f"claim {name} is {kinds}, and the job has one pod: on a lost node the volume is free once that pod is gone",
        )
    if "ReadWriteOnce" in modes:
        told = (
            f"claim {name} is {kinds}: all {pods} pods must be on one node, and those put elsewhere wait, {limit} s at most; "
            "use a ReadWriteMany claim, or keep the pods together with a podAffinity in roles.*.template"
        )
        return False, Reason.ONE_NODE, told
    if "ReadWriteOncePod" in modes:
        return (
            False,
            Reason.ONE_POD,
            f"claim {name} is {kinds}: one pod at a time can mount it, and the job has {pods}; use a ReadWriteMany claim",
        )
    return False, Reason.ONE_NODE, f"claim {name} is {kinds}: nothing can be saved there; use a ReadWriteMany claim"
