"""The matrix names every cell once, and each cell that it says is run is run."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from muster.strategies.registry import STRATEGIES
from tests.chaos.matrix import BACKENDS, cells, document, jobs

ROOT = Path(__file__).resolve().parents[2]


def test_every_job_of_every_strategy_meets_every_fault_on_every_backend_or_says_why_not() -> None:
    assert {job["strategy"] for job in jobs().values()} == set(STRATEGIES)
    named = Counter((cell.backend, cell.fault, cell.job) for cell in cells())
    wanted = [(backend, fault, job) for backend in BACKENDS for fault in document()["faults"] for job in jobs()]
    assert named == Counter(wanted)
    assert all(bool(cell.test) != bool(cell.reason) for cell in cells())


def test_each_test_that_the_matrix_names_runs_just_the_cells_that_it_names_there() -> None:
    named = {f"{cell.test}[{cell.fault}-{cell.job}]" for cell in cells() if cell.test}
    tests = sorted({cell.test for cell in cells() if cell.test})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    completed = subprocess.run(command, cwd=ROOT, env={"PATH": "", "MUSTER_CHAOS_SEEDS": "1"}, capture_output=True, text=True, timeout=300)
    collected = {line.replace("[0-", "[") for line in completed.stdout.splitlines() if "::" in line}
    assert collected == named, completed.stderr


def test_what_make_test_runs_of_it_are_cells_that_can_be_run() -> None:
    run = {(cell.backend, cell.fault, cell.job) for cell in cells() if cell.test}
    assert {(backend, fault, job) for backend, cut in document()["cut"].items() for fault, job in cut.items()} <= run
