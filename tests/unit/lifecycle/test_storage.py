"""The condition on whether all pods reach the checkpoints."""

from __future__ import annotations

import pytest

from muster.api.status import ConditionType
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import ClaimView, Observed
from tests.unit.lifecycle.lifecycle_cases import at, job

STORED = {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}}}


@pytest.mark.parametrize(
    ("modes", "workers", "holds", "reason"),
    [
        (("ReadWriteMany",), 2, "True", "ManyNodes"),
        (("ReadWriteOnce", "ReadWriteMany"), 2, "True", "ManyNodes"),
        (("ReadWriteOnce",), 1, "True", "OnePod"),
        (("ReadWriteOnce",), 2, "False", "OneNode"),
        (("ReadWriteOncePod",), 2, "False", "OnePod"),
        (("ReadOnlyMany",), 2, "False", "OneNode"),
        ((), 2, "False", "ClaimNotFound"),
    ],
)
def test_a_condition_shows_whether_all_pods_can_mount_the_claim(modes: tuple[str, ...], workers: int, holds: str, reason: str) -> None:
    status = decide(job(workers=workers, **STORED), Observed(claim=ClaimView(modes)), at(0)).status
    condition = status.condition(ConditionType.STORAGE_SHARED)
    assert condition is not None
    assert (condition.status, condition.reason) == (holds, reason)


def test_a_job_without_a_claim_or_an_observed_claim_has_no_condition() -> None:
    assert decide(job(**STORED), Observed(), at(0)).status.condition(ConditionType.STORAGE_SHARED) is None
    assert decide(job(), Observed(claim=ClaimView(("ReadWriteOnce",))), at(0)).status.condition(ConditionType.STORAGE_SHARED) is None
