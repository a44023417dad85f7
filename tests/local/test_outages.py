"""The storage of checkpoints is away, full or read-only for some time: training goes on in the same processes, and saves when it can."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.local import proofs
from tests.support.bare_worlds import BareWorld, trainer, world
from tests.support.local_jobs import LocalJob, job

STRATEGIES = [
    pytest.param("DDP", marks=pytest.mark.torch),
    pytest.param("MultiWorkerMirrored", marks=pytest.mark.tensorflow),
    pytest.param("JAX", marks=[pytest.mark.jax, pytest.mark.thorough]),
    pytest.param("FSDP", marks=[pytest.mark.torch, pytest.mark.thorough]),
    pytest.param("ParameterServer", marks=[pytest.mark.tensorflow, pytest.mark.thorough]),
]


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """A file is in the place of the storage, inside the block."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


def wait_for_notice(run: BareWorld | LocalJob) -> dict[str, Any]:
    return run.wait_for_event("notice", lambda event: event["reason"] == "SaveFailed")


def check_went_on(running: BareWorld, strategy: str, *, size: int = 2) -> None:
    """All steps are those of an undisturbed run, and the last one is saved."""
    assert running.finish() == [0] * size, running.story()
    assert running.losses() == proofs.uninterrupted(strategy).losses()
    assert running.events("commit")[-1]["step"] == proofs.STEPS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_goes_on_while_the_storage_is_away(strategy: str, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    with world(strategy, trainer(storage, config=proofs.SLOWER)) as running:
        running.wait_for_commit(10)
        with away(storage):
            notice = wait_for_notice(running)
        saved = running.wait_for_event("commit", lambda event: event["time"] > notice["time"])
        check_went_on(running, strategy)
    assert saved["step"] < proofs.STEPS  # it did not wait for the end
    assert str(storage) in notice["message"]
    assert all((path / "COMMITTED").exists() for path in storage.glob("step-*"))
