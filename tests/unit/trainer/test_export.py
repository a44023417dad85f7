"""Exports: checked first, complete or absent, and never over other files."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_contract.errors import BadConfiguration, StorageUnavailable, UserError
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer import export
from muster_trainer.export import Export
from muster_trainer.tasks.module import load_task
from tests.support import descriptors

pytestmark = pytest.mark.torch


class Exporter:
    """Writes one file. Its content is the loss of the model."""

    def __init__(self, loss: float, failure: Exception | None = None) -> None:
        self.loss, self.failure = loss, failure

    def write(self, task: Any, checkpoint: Path, directory: Path) -> list[str]:
        (directory / "model").write_text(str(self.loss))
        if self.failure:
            raise self.failure
        return []

    def measure(self, task: Any, directory: Path, data: Any, indices: Any) -> dict[str, dict[str, float]]:
        assert len(indices) == 64
        return {"model": {"loss": float((directory / "model").read_text())}}


def exporting(directory: Path) -> Export:
    document = {
        "strategy": descriptors.document(),
        "task": "digits",
        "config": {"export": "model"},
        "batch": {},
        "checkpoint": {"directory": str(directory)},
    }
    spec = TrainerSpec.from_json(json.dumps({"strategy": descriptors.document(), **document}))
    made = Export.of(load_task(spec), spec)
    assert made is not None
    return made


def written(wanted: Export, exporter: Exporter, monkeypatch: pytest.MonkeyPatch, *, trained: float) -> str:
    monkeypatch.setattr(export, "module_of", lambda framework, name: exporter)
    return wanted.write(Path("step-1"), step=1, trained={"loss": trained}, devices="cpu")[0]


@pytest.mark.parametrize(
    ("exporter", "kind", "message"),
    [
        (Exporter(0.51), UserError, "0.51 .*64 .*0.5"),
        (Exporter(0.5, RuntimeError("no such device")), UserError, "RuntimeError: no such device"),
        (Exporter(0.5, OSError(errno.ENOSPC, "full")), StorageUnavailable, "no space"),
    ],
)
def test_a_failed_export_leaves_only_the_older_one(
    exporter: Exporter, kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = exporting(tmp_path)
    assert "loss 0.7000" in written(wanted, Exporter(0.7), monkeypatch, trained=0.7)
    with pytest.raises(kind, match=message):
        written(wanted, exporter, monkeypatch, trained=0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "model").read_text() == "0.7"
    assert "0.6000" in written(wanted, Exporter(0.6), monkeypatch, trained=0.6)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_with_nan_as_loss_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "loss nan" in written(exporting(tmp_path), Exporter(float("nan")), monkeypatch, trained=float("nan"))


def test_a_folder_that_is_not_an_export_is_neither_overwritten_nor_checked(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(BadConfiguration, match=r"is not an export.*another folder"):
        exporting(tmp_path).claim()
    with pytest.raises(BadConfiguration, match=r"export\.json"):
        export.check(tmp_path / "model")


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text('{"files": 3, "trainer": {}}'),
    ],
)
def test_a_record_that_others_have_written_is_refused(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "export.json")
    with pytest.raises(BadConfiguration, match="is not an export"):
        export.check(tmp_path)
