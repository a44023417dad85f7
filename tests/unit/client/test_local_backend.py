"""The Python client's runs on this machine: what others have put into their folder leads to no other file, and holds nothing up."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.client import errors
from muster.client.local_backend import LocalBackend
from muster.local.rundir import Place
from tests.unit.local.local_jobs import job

PLACE = Place("/jobs/job.yaml", "/jobs", "30000-30100")
MAKERS = [os.mkfifo, lambda path: path.symlink_to("other"), Path.mkdir]
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    backend = LocalBackend(tmp_path, detach=True)
    backend.directory("run").mkdir()
    return backend


@pytest.mark.parametrize("make", MAKERS)
def test_the_place_of_a_run_is_a_regular_file(make: Callable[[Path], object], backend: LocalBackend) -> None:
    file = backend.directory("run") / "client.json"
    file.write_text(json.dumps(vars(PLACE)))
    assert backend.place("run") == PLACE
    file.rename(file.with_name("other"))
    make(file)
    assert backend.place("run") != PLACE


@pytest.mark.parametrize("make", MAKERS)
def test_the_output_of_a_run_goes_to_a_regular_file(make: Callable[[Path], object], tmp_path: Path, backend: LocalBackend) -> None:
    name = job().metadata.name
    make(tmp_path / f"{name}.out")
    with pytest.raises(errors.RefusedError, match=rf"{name}\.out: "):
        asyncio.run(backend.start(name, job(), PLACE, resume=False))
    assert not (tmp_path / "other").exists()
