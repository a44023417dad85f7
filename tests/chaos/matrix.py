"""Which fault befalls which strategy's job, where, and by which test: what `matrix.yaml` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

FILE = Path(__file__).with_name("matrix.yaml")
BACKENDS = ("local", "cluster")


@dataclass(frozen=True)
class Cell:
    """A job's fault on a backend. `test` runs it; without one, `reason` says why there is none."""

    backend: str
    fault: str
    job: str
    test: str | None
    reason: str = ""


@cache
def document() -> Mapping[str, Any]:
    read: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return read


def jobs() -> Mapping[str, Mapping[str, Any]]:
    """What is particular to the spec of each job of the matrix, `strategy` among it."""
    return {name: {"strategy": name, **spec} for name, spec in document()["jobs"].items()}


def cells() -> list[Cell]:
    """Every cell that the file names; one that it names twice is there twice."""
    cells: list[Cell] = []
    for backend in BACKENDS:
        for fault, row in document()[backend].items():
            cells += [Cell(backend, fault, job, row["test"]) for name in row.get("run", ()) for job in _members(name)]
            reasons = {**row.get("same", {}), **row.get("impossible", {}), **document()["nowhere"]}
            cells += [Cell(backend, fault, job, None, reason) for name, reason in reasons.items() for job in _members(name)]
    return cells


def is_rescued(fault: str, job: str) -> bool:
    """Whether a local job must not lose a finished step by the fault."""
    return job in document()["rescued"].get(fault, ())


def parametrised(test: str) -> pytest.MarkDecorator:
    """Gives a test, named as in the file, the `fault` and `job` of each cell that it runs. Those that the file does not name among its
    `cut` are marked `chaos`."""
    mine = [cell for cell in cells() if cell.test == test]
    cut = {(backend, fault, job) for backend, pairs in document()["cut"].items() for fault, job in pairs.items()}
    rows = [
        pytest.param(cell.fault, cell.job, marks=() if (cell.backend, cell.fault, cell.job) in cut else pytest.mark.chaos) for cell in mine
    ]
    return pytest.mark.parametrize(("fault", "job"), rows)


def _members(name: str) -> list[str]:
    """The jobs of a group; a job's own name stands for itself."""
    members: list[str] = document()["groups"].get(name, [name])
    return members
