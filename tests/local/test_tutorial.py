"""The tutorial for a laptop works as it is written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import tutorials
from tests.support.tutorials import ROOT, Command

SET_UP = ("make setup", "source .venv/bin/activate")
"""The environment of the tests is what these make."""


@pytest.mark.torch
@pytest.mark.thorough
def test_the_commands_of_the_tutorial_for_a_laptop_work_and_print_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = []
    for step in tutorials.steps(ROOT / "docs/tutorials/laptop.md"):
        assert isinstance(step, Command), step
        if step.text in SET_UP:
            continue
        stops = any(line.startswith("stopping:") for line in step.shown)
        output = tutorials.run(step, tmp_path, env, interrupt_at="running: step" if stops else None)
        tutorials.assert_as_shown(step, output)
        done.append(step.text.split()[1])
    assert done == ["validate", "run", "run", "report", "run"]
    assert (tmp_path / "runs/digits-ddp/attempts/1/worker-0/log.txt").exists()
    assert (tmp_path / "runs/digits-ddp/report.html").exists()
