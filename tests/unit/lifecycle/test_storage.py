"""The condition on whether all pods reach the checkpoints."""

from __future__ import annotations

import pytest

from muster.api.status import ConditionType
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import ClaimView, Observed
from tests.unit.lifecycle.lifecycle_cases import at, job

STORED = {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}}}


@pytest.mark.parametrize(
    ("modes", "workers", "holds", "reason", "named"),
    [
        (("ReadWriteMany",), 2, "True", "ManyNodes", "ReadWriteMany"),
        (("ReadWriteOnce", "ReadWriteMany"), 2, "True", "ManyNodes", "ReadWriteMany"),
        (("ReadWriteOnce",), 1, "True", "OnePod", "one pod"),
        (("ReadWriteOnce",), 2, "False", "OneNode", "all 2 pods must be on one node"),
        (("ReadWriteOncePod",), 2, "False", "OnePod", "one pod at a time"),
        (("ReadOnlyMany",), 2, "False", "OneNode", "nothing can be saved"),
        ((), 2, "False", "ClaimNotFound", "there is no claim ckpt"),
    ],
)
def test_a_condition_shows_whether_all_pods_can_mount_the_claim(
    modes: tuple[str, ...], workers: int, holds: str, reason: str, named: str
) -> None:
    status = decide(job(workers=workers, **STORED), Observed(claim=ClaimView(modes)), at(0)).status
    condition = status.condition(ConditionType.STORAGE_SHARED)
    assert condition is not None
    assert (condition.status, condition.reason) == (holds, reason)
    assert named in condition.message


def test_a_job_without_a_claim_or_an_observed_claim_has_no_condition() -> None:
    assert decide(job(**STORED), Observed(), at(0)).status.condition(ConditionType.STORAGE_SHARED) is None
    assert decide(job(), Observed(claim=ClaimView(("ReadWriteOnce",))), at(0)).status.condition(ConditionType.STORAGE_SHARED) is None
