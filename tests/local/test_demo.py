"""The demo of the README."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.mark.torch
def test_all_that_the_demo_claims_is_true(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(DEMO)], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("[ok]") == 4, done.stdout
    assert (tmp_path / "runs" / "demo" / "killed" / "report.html").is_file()
