"""Lets the tests of this folder import what they share with others."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # tests are not installed: `tests.chaos` is found from here

pytest.register_assert_rewrite("tests.chaos.local_job")
