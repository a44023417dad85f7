"""The choice of the gang scheduler of a job, and the jobs that are refused without one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, Phase, TrainingJobStatus
from muster.control.gangs import Gangs

NATIVE = "scheduling.k8s.io"
BEGUN = (AttemptRecord(attempt=0, start_time=datetime(2026, 11, 21, tzinfo=UTC)),)


def job(mode: str = "Auto", **status: Any) -> TrainingJob:
    spec = {"strategy": "DDP", "trainer": {"task": "digits"}, "scheduling": {"gang": mode}}
    made = TrainingJob.model_validate({"metadata": {"name": "digits", "uid": "u"}, "spec": spec})
    return made.with_status(replace(TrainingJobStatus(), **status))


@pytest.mark.parametrize(
    ("status", "mode", "has_pods", "served", "expected"),
    [
        ({}, "Auto", False, (NATIVE,), NATIVE),
        ({}, "Auto", False, (), ""),
        ({}, "Never", False, (NATIVE,), ""),
        ({"attempts": BEGUN, "gang_scheduler": ""}, "Auto", False, (NATIVE,), ""),  # its pods are not members
        ({"attempts": BEGUN, "gang_scheduler": NATIVE}, "Never", True, (), NATIVE),  # its pods are members
        ({"attempts": BEGUN}, "Auto", True, (NATIVE,), None),  # of an operator without gangs
        ({}, "Auto", True, (NATIVE,), None),  # its status was wiped
        ({"attempts": BEGUN, "gang_scheduler": "", "phase": Phase.SUSPENDED}, "Auto", False, (NATIVE,), NATIVE),
        ({"attempts": BEGUN, "gang_scheduler": NATIVE, "phase": Phase.SUSPENDED}, "Never", False, (NATIVE,), ""),
    ],
)
def test_the_scheduler_is_chosen_when_no_pod_of_the_job_exists(
    status: dict[str, Any], mode: str, has_pods: bool, served: tuple[str, ...], expected: str | None
) -> None:
    assert Gangs(served).scheduler_of(job(mode, **status), has_pods=has_pods) == expected


@pytest.mark.parametrize(
    ("mode", "served", "status", "refused"),
    [
        ("Required", (), {}, True),
        ("Required", (NATIVE,), {}, False),
        ("Auto", (), {}, False),
        ("Never", (), {}, False),
        ("Required", (), {"attempts": BEGUN}, False),
        ("Required", (), {"attempts": BEGUN, "phase": Phase.SUSPENDED}, True),
    ],
)
def test_a_new_job_that_requires_a_gang_scheduler_is_refused_without_one(
    mode: str, served: tuple[str, ...], status: dict[str, Any], refused: bool
) -> None:
    problems = Gangs(served).problems(job(mode, **status))
    assert [(each.field, each.reason) for each in problems] == ([("spec.scheduling.gang", "GangUnavailable")] if refused else [])
