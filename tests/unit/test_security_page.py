"""The security page names a test for each promise, and that test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
PROMISES = [line for line in PAGE.partition("## What is promised")[2].partition("## What is not")[0].splitlines() if line.startswith("| ")]
ROWS = [line for line in PROMISES if not line.startswith(("| promise |", "| --- |"))]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_every_promise_names_a_test() -> None:
    assert ROWS
    assert [row for row in ROWS if not re.search(r"`tests/[\w/]+\.py::test_\w+`", row)] == []


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_each_named_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^ *(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
