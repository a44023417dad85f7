"""Every fault of the matrix on a job under `muster run`: it resumes, and ends as an undisturbed job does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.local_faults import FAULTS
from tests.chaos.local_job import check_ends, check_nothing_left, check_resumed, check_source, digits, running
from tests.chaos.matrix import is_rescued, parametrised


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[int, str]]:
    """The losses of an undisturbed job. Each job runs once."""

    @cache
    def curve(name: str) -> dict[int, str]:
        with running(tmp_path_factory.mktemp("undisturbed"), digits(name, delay=0)) as job:
            assert job.wait_for_end() == "Succeeded", job.story()
            return job.losses()

    return curve


@parametrised("tests/chaos/test_local.py::test_a_job_goes_on_after")
def test_a_job_goes_on_after(fault: str, job: str, tmp_path: Path, undisturbed: Callable[[str], dict[int, str]]) -> None:
    like, what = undisturbed(job), FAULTS[fault]
    with running(tmp_path, digits(job, **what.spec)) as disturbed:
        disturbed.wait_for_step(15)
        times = what.strike(disturbed)
        disturbed.check_succeeded(like)
    check_ends(disturbed, times=times, failure_class=what.failure_class, reasons=what.reasons)
    check_resumed(disturbed, most=0 if is_rescued(fault, job) else what.lost)
    check_source(disturbed, what.source, what.notices)
    check_nothing_left(disturbed)
    if what is not FAULTS["clock-jump"]:  # what is booked while the clock is wrong is wrong, too
        disturbed.check_goodput()
