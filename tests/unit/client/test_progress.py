"""The end of waiting for a job, and the progress of a job as plain values."""

from __future__ import annotations

import math
from typing import Any

import pytest

from muster.api.job import TrainingJob
from muster.api.status import Phase, TrainingJobStatus
from muster.client.errors import JobFailedError
from muster.client.progress import is_over, progress_of
from tests.support.texts import absent


def job(status: dict[str, Any], *, generation: int = 1) -> TrainingJob:
    document = {"metadata": {"name": "digits", "generation": generation}, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}}
    return TrainingJob.model_validate(document).with_status(TrainingJobStatus.from_wire(status))


@pytest.mark.parametrize(
    ("phase", "observed", "until", "expected"),
    [
        ("Pending", None, "Succeeded", False),
        ("Running", 2, "Succeeded", False),
        ("Succeeded", 2, "Succeeded", True),
        ("Succeeded", 2, "Running", True),
        ("Running", 2, "Running", True),
        ("Running", 1, "Running", False),  # the phase of the previous spec
        ("Suspended", 2, "Suspended", True),
        ("Suspended", None, "Suspended", False),
        ("Failed", 2, "Failed", True),
    ],
)
def test_waiting_ends_in_the_phase_of_the_newest_spec_or_at_the_end(phase: str, observed: int | None, until: str, expected: bool) -> None:
    status = {"phase": phase, **({} if observed is None else {"observedGeneration": observed})}
    assert is_over(job(status, generation=2), Phase(until)) is expected


def test_a_failed_job_raises_an_error_with_reason_message_and_status() -> None:
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": "ApplicationLimitExceeded",
        "message": "m",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }
    with pytest.raises(JobFailedError) as raised:
        is_over(job({"phase": "Failed", "message": "worker-0 divided by zero", "conditions": [condition]}), Phase.SUCCEEDED)
    assert (raised.value.reason, raised.value.message) == ("ApplicationLimitExceeded", "worker-0 divided by zero")
    assert raised.value.status.phase is Phase.FAILED
    assert absent(str(raised.value), "digits", "worker-0 divided by zero", "explain()") == []


def test_progress_has_the_figures_of_the_status_as_numbers() -> None:
    status = {
        "phase": "Running",
        "attempt": 3,
        "restarts": {"total": 2},
        "progress": {"step": 30, "totalSteps": 40, "loss": "0.25", "etaSeconds": 9},
    }
    progress = progress_of(job(status))
    assert (progress.step, progress.total_steps, progress.loss, progress.eta_seconds) == (30, 40, 0.25, 9)
    assert (progress.phase, progress.attempt, progress.restarts, progress.fraction) == (Phase.RUNNING, 3, 2, 0.75)
    assert math.isnan(progress_of(job({"progress": {"step": 1, "loss": "nan"}})).loss or 0.0)
    assert progress_of(job({"progress": {"step": 1, "loss": "none"}})).loss is None
    assert (progress_of(job({})).step, progress_of(job({})).fraction) == (0, None)
