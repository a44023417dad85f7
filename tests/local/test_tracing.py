"""The trace of a job under `muster run`, as a collector receives it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collector import Collector, collecting
from tests.support.local_jobs import TRAIN, LocalJob, finish, job

SLOW = TRAIN.replace("    if step % 5 == 0:", "    if step % 50 == 0:")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "train.py").write_text(TRAIN)
    return LocalJob(tmp_path)


def test_a_run_with_a_killed_worker_is_one_trace(local_job: LocalJob, collector: Collector) -> None:
    local_job.write(job())
    with local_job.running("job.yaml", env=collector.environment) as run:
        local_job.wait_for_commit()
        os.kill(local_job.pid_of("worker-1"), signal.SIGKILL)
        code, output = finish(run)
    assert code == 0, output
    for s in sorted(collector.spans, key=lambda s: s.begin):
        print(s)
