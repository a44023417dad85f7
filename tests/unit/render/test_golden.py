"""Whole manifests of one job per strategy.

After a wanted change: pytest tests/unit/render/test_golden.py --update-golden, and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from muster.admission.validate import problems
from muster.cli.render import as_yaml
from muster.strategies.registry import STRATEGIES
from tests.support import golden_jobs as jobs

GOLDEN = Path(__file__).parent / "golden"
HEADER = """\
# The job is in tests/support/golden_jobs.py. Written by: pytest tests/unit/render/test_golden.py --update-golden
# Read the difference before it is committed.
"""


@pytest.mark.parametrize("name", list(jobs.JOBS))
def test_the_manifests_equal_the_reviewed_files(name: str, request: pytest.FixtureRequest) -> None:
    manifests = jobs.manifests_of(jobs.job_of(jobs.JOBS[name]))
    file = GOLDEN / f"{name}.yaml"
    if request.config.getoption("--update-golden"):
        file.write_text(HEADER + as_yaml(manifests), encoding="utf-8")
    assert manifests == list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def test_every_strategy_has_a_golden_file_and_its_job_is_valid() -> None:
    golden = [jobs.job_of(spec) for spec in jobs.JOBS.values()]
    assert {job.spec.strategy for job in golden} == set(STRATEGIES)
    assert [problems(job) for job in golden] == [[]] * len(golden)
    assert {file.stem for file in GOLDEN.iterdir()} == set(jobs.JOBS)


def test_rendering_twice_gives_the_same_text() -> None:
    for spec in jobs.JOBS.values():
        assert as_yaml(jobs.manifests_of(jobs.job_of(spec))) == as_yaml(jobs.manifests_of(jobs.job_of(spec)))
