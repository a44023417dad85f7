"""Faults at random moments, which a seed draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.walk import schedule, walk


def test_a_seed_draws_the_same_faults_at_the_same_moments_again() -> None:
    assert schedule(3, "DDP", 20) == schedule(3, "DDP", 20) != schedule(4, "DDP", 20)
    assert len({fault for _, fault in schedule(3, "DDP", 20)}) > 8


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", ["DDP", "MultiWorkerMirrored", "ParameterServer"])
def test_a_job_outlives_a_walk_of_a_minute(job: str, tmp_path: Path) -> None:
    walk(tmp_path, seed=1, job=job, minutes=1)
