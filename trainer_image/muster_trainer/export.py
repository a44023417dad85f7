"""The trained model as files of its own, written by the chief once a training is done (`config.export`).

They are made from the final checkpoint, which every strategy writes alike, read back, and compared with the model that was
trained, before they take their place. `python -m muster_trainer.export PATH` does the comparison again in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from muster_trainer.checkpoint import files, read_back
from muster_trainer.contract import (
    FRAMEWORK_OF_STRATEGY,
    BadConfiguration,
    CheckpointDamaged,
    Framework,
    TrainerError,
    TrainerSpec,
    UserError,
)
from muster_trainer.objects import Place
from muster_trainer.tasks.module import PACKAGES, Task, describe, load_task

RECORD = "export.json"
SAMPLES = 64
TOLERANCES = {"cpu": 1e-5, "gpu": 1e-3, "BFloat16": 2e-2}
"""Of the mean loss, relative where it is above 1: the check computes on the CPU in float32."""


class Exporter(Protocol):
    """What the module `export` of a framework's package does. Raises StorageUnavailable and UserError."""

    def write(self, task: Task, checkpoint: Path, directory: Path) -> list[str]:
        """Writes the model of `checkpoint`, whole, to `directory`; gives what the user should be told."""

    def measure(self, task: Task, directory: Path, data: Any, indices: np.ndarray) -> dict[str, dict[str, float]]:
        """For each form that `write` made, read anew: the mean loss and metrics over the samples `indices` of `data`."""


@dataclass(frozen=True)
class Export:
    """Where one job's model goes, and what it is."""

    task: Task
    strategy: str
    trainer: Mapping[str, Any]
    target: Path

    @classmethod
    def of(cls, task: Task, spec: TrainerSpec, strategy: str) -> Export | None:
        """None where the job asks for none. Raises BadConfiguration where it has no checkpoint to make it from."""
        if not task.config.export:
            return None
        if spec.checkpoint is None:
            raise BadConfiguration(
                "spec.trainer.config.export: the model is taken from the final checkpoint, and the job has no storage; "
                "write checkpoint.storage, or leave export out"
            )
        trainer = {"task": spec.task, "module": spec.module, "config": spec.config, "batch": {"globalSize": spec.batch.global_size}}
        below = spec.checkpoint.directory
        if isinstance(below, Path):
            return cls(task, strategy, trainer, below / task.config.export)
        if not Path(task.config.export).is_absolute():
            raise BadConfiguration(
                "spec.trainer.config.export: models are exported to folders, and the checkpoints lie in an object store; name "
                "an absolute path"
            )
        return cls(task, strategy, trainer, Path(task.config.export))

    @property
    def data(self) -> Any:
        return self.task.train if self.task.test is None else self.task.test

    @property
    def samples(self) -> int:
        """How many samples, the first ones of the test set, the models are compared on."""
        return min(len(self.data), SAMPLES)

    def claim(self) -> None:
        """Before the training: the place can be written, and holds nothing but an older export."""
        with files.storage(self.target):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            if self.target.exists() and not (self.target / RECORD).exists():
                raise BadConfiguration(f"spec.trainer.config.export: {self.target} is there, and is no export; name another folder")
            files.make_directory(self._staging)
            files.remove_tree(self._staging)

    @property
    def _staging(self) -> Path:
        return self.target.with_name(f"{self.target.name}.unfinished")

    def write(self, checkpoint: Place, *, step: int, trained: Mapping[str, float], devices: str) -> list[str]:
        """Writes, checks and puts in place; gives what the user should be told.

        `trained` is what the trained model itself came to on the samples; empty where there is no test set, and then the
        files are compared with themselves. `devices` is where it did, `cpu` or `gpu`.
        """
        exporter = _exporter(FRAMEWORK_OF_STRATEGY[self.strategy])
        with files.storage(self.target), self._staged():
            with read_back(checkpoint) as folder:
                notes = exporter.write(self.task, folder, self._staging)
            compared = bool(trained)
            if not compared:
                trained = next(iter(exporter.measure(self.task, self._staging, self.data, np.arange(self.samples)).values()))
            record = {
                "strategy": self.strategy,
                "trainer": self.trainer,
                "step": step,
                "checkpoint": checkpoint.name,
                "samples": self.samples,
                "trained": trained,
                "compared": compared,
                "tolerance": TOLERANCES["BFloat16" if self.task.config.precision == "BFloat16" else devices],
                "files": _hashes(self._staging),
            }
            files.write_file(self._staging / RECORD, json.dumps(record, indent=1).encode() + b"\n")
            files.sync_tree(self._staging)
            said = _check(self._staging, record, self.task)
            self._put_in_place()
        return [f"the trained model is exported to {self.target}; {said}", *notes]

    @contextmanager
    def _staged(self) -> Iterator[None]:
        """An empty folder, of which nothing stays where the writing fails: a full disk is not to be kept full."""
        files.remove_tree(self._staging)
        files.make_directory(self._staging)
        try:
            yield
        except (TrainerError, OSError):
            raise
        except Exception as error:
            raise UserError(f"{self.task.title}: the trained model cannot be exported: {describe(error)}") from error
        finally:
            files.remove_tree(self._staging)

    def _put_in_place(self) -> None:
        older = self.target.with_name(f"{self.target.name}.old")
        files.remove_tree(older)
        if self.target.exists():
            self.target.rename(older)
        self._staging.rename(self.target)
        files.sync_directory(self.target.parent)
        files.remove_tree(older)


def check(directory: Path) -> str:
    """Reads the export in `directory` and predicts with it; gives what to say. Raises TrainerError where it is not as it was."""
    try:
        record = json.loads((directory / RECORD).read_bytes())
    except (OSError, ValueError) as error:
        raise BadConfiguration(f"{directory} is no export: its {RECORD} cannot be read ({error})") from error
    for name, digest in record["files"].items():
        if not (directory / name).is_file() or files.sha256(directory / name) != digest:
            raise CheckpointDamaged(f"export {directory}: {name} is not as it was written (its SHA-256 differs, or it is missing)")
    spec = TrainerSpec.from_json(json.dumps(record["trainer"]))
    return _check(directory, record, load_task(spec, FRAMEWORK_OF_STRATEGY[record["strategy"]]))


def _check(directory: Path, record: Mapping[str, Any], task: Task) -> str:
    data = task.train if task.test is None else task.test
    wanted, tolerance = record["trained"]["loss"], record["tolerance"]
    measured = _exporter(FRAMEWORK_OF_STRATEGY[record["strategy"]]).measure(task, directory, data, np.arange(record["samples"]))
    for name, metrics in measured.items():
        both_broken = math.isnan(metrics["loss"]) and math.isnan(wanted)  # nanLoss: Continue
        if not both_broken and not math.isclose(metrics["loss"], wanted, rel_tol=tolerance, abs_tol=tolerance):
            raise UserError(
                f"export {directory}: {name} has the loss {metrics['loss']} on {record['samples']} samples, where the trained model "
                f"has {wanted}; does build_model depend on more than its config, or does the model change while it predicts?"
            )
    shown = ", ".join(f"{name} {value:.4f}" for name, value in next(iter(measured.values())).items())
    alike = " as the trained model does" if record["compared"] else ""
    return f"read anew it predicts{alike}: {shown} on {record['samples']} samples ({', '.join(measured)})"


def _exporter(framework: Framework) -> Exporter:
    exporter: Any = importlib.import_module(f"muster_trainer.{PACKAGES[framework]}.export")
    return exporter  # type: ignore[no-any-return]


def _hashes(directory: Path) -> dict[str, str]:
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): files.sha256(path) for path in found}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m muster_trainer.export PATH-OF-AN-EXPORT", file=sys.stderr)
        return BadConfiguration.code
    sys.path.insert(0, os.getcwd())
    try:
        print(check(Path(arguments[0])))
    except TrainerError as error:
        print(f"{error.reason}: {error}", file=sys.stderr)
        return error.code
    except Exception as error:  # noqa: BLE001 (what the user's code raises is one line)
        print(f"{UserError.code.reason}: {describe(error)}", file=sys.stderr)
        return UserError.code
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main(sys.argv[1:]))
