"""The export of a trained model (`config.export`). The chief writes it when the training is done.

The chief writes the files from the final checkpoint into a temporary folder. It reads them back and compares them with the trained model.
If they agree, it moves them to their folder. `python -m muster_trainer.export PATH` repeats the comparison in a new process.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from muster_contract.errors import BadConfiguration, CheckpointDamaged, TrainerError, UserError
from muster_contract.strategy import Framework, StrategyRuntime
from muster_contract.text import escape_on_output
from muster_contract.trainer_spec import TrainerSpec
from muster_contract.wire import encode
from muster_trainer.checkpoint import files, read_back
from muster_trainer.checkpoint.objects import Location, location_of
from muster_trainer.data import DataSet
from muster_trainer.host.framework import module_of, set_quiet
from muster_trainer.tasks.module import Task, describe, load_task

RECORD = "export.json"
_LARGEST_RECORD = 16 << 20
SAMPLES = 64
TOLERANCES = {"cpu": 1e-5, "gpu": 1e-3, "BFloat16": 2e-2}
"""The largest difference of the mean loss that counts as equal: relative for a loss above 1, and absolute below.

There are several because the check always computes on the CPU in float32.
"""


class Exporter(Protocol):
    """The module `export` of a framework's package. Raises StorageUnavailable and UserError."""

    def write(self, task: Task, checkpoint: Path, directory: Path) -> list[str]:
        """Writes the whole model of `checkpoint` to `directory`. Returns messages for the user."""

    def measure(self, task: Task, directory: Path, data: DataSet, indices: np.ndarray) -> dict[str, dict[str, float]]:
        """Reads the model in each format that `write` wrote. Returns, for each format, the mean loss and metrics of these samples.

        `indices` are the samples of `data`: int64, shape (n,).
        """


@dataclass(frozen=True)
class Export:
    """The export of one job: what is exported, and to which folder."""

    task: Task
    strategy: StrategyRuntime
    trainer: Mapping[str, Any]
    target: Path

    @classmethod
    def of(cls, task: Task, spec: TrainerSpec) -> Export | None:
        """The export of a job; None if `config.export` is empty. Raises BadConfiguration if the job has no checkpoints."""
        if not task.config.export:
            return None
        if spec.checkpoint is None:
            raise BadConfiguration(
                "spec.trainer.config.export: the model is taken from the final checkpoint, and the job has no storage; "
                "write checkpoint.storage, or leave export out"
            )
        strategy = spec.strategy
        trainer = {
            "strategy": encode(strategy),
            "task": spec.task,
            "module": spec.module,
            "config": spec.config,
            "batch": {"globalSize": spec.batch.global_size},
        }
        below = location_of(spec.checkpoint.directory)
        if isinstance(below, Path):
            return cls(task, strategy, trainer, below / task.config.export)
        if not Path(task.config.export).is_absolute():
            raise BadConfiguration(
                "spec.trainer.config.export: models are exported to folders, and the checkpoints lie in an object store; name "
                "an absolute path"
            )
        return cls(task, strategy, trainer, Path(task.config.export))

    @property
    def data(self) -> DataSet:
        return self.task.train if self.task.test is None else self.task.test

    @property
    def samples(self) -> int:
        """The number of samples on which the models are compared: the first ones of `data`."""
        return min(len(self.data), SAMPLES)

    def claim(self) -> None:
        """Checks, before the training, that the folder can be written, and that it does not exist or has an older export.

        Raises BadConfiguration and StorageUnavailable.
        """
        with files.storage(self.target):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            if self.target.exists() and not (self.target / RECORD).exists():
                raise BadConfiguration(f"spec.trainer.config.export: {self.target} exists and is not an export; name another folder")
            files.make_directory(self._staging)
            files.remove_tree(self._staging)

    @property
    def _staging(self) -> Path:
        return self.target.with_name(f"{self.target.name}.unfinished")

    def write(self, checkpoint: Location, *, step: int, trained: Mapping[str, float], devices: str) -> list[str]:
        """Writes and checks the export, and moves it to its folder. Returns messages for the user.

        `trained` has the mean loss and metrics of the trained model on the samples. It is empty if there is no test set. The
        files are then compared with what they predict when they are first read. `devices` says where the trained model
        computed `trained`: `cpu` or `gpu`.
        """
        exporter: Exporter = module_of(self.strategy.framework, "export")
        with files.storage(self.target), self._staged():
            with read_back(checkpoint) as folder:
                notes = exporter.write(self.task, folder, self._staging)
            compared = bool(trained)
            if not compared:
                trained = next(iter(exporter.measure(self.task, self._staging, self.data, np.arange(self.samples)).values()))
            record = {
                "strategy": self.strategy.name,
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
            result = _check(self._staging, record, self.task, framework=self.strategy.framework)
            self._move_to_target()
        return [f"the trained model is exported to {self.target}; {result}", *notes]

    @contextmanager
    def _staged(self) -> Iterator[None]:
        """An empty folder, which is removed at the end, so that a full disk does not stay full."""
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

    def _move_to_target(self) -> None:
        older = self.target.with_name(f"{self.target.name}.old")
        files.remove_tree(older)
        if self.target.exists():
            self.target.rename(older)
        self._staging.rename(self.target)
        files.sync_directory(self.target.parent)
        files.remove_tree(older)


def check(directory: Path) -> str:
    """Reads the export in `directory` and predicts with it. Returns the result as a sentence.

    Raises CheckpointDamaged if a file has changed, UserError if the predictions differ, and BadConfiguration if it is no export.
    """
    try:
        record = json.loads(files.read(directory / RECORD, limit=_LARGEST_RECORD))
        listed, trainer = dict(record["files"]), TrainerSpec.from_json(json.dumps(record["trainer"]))
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise BadConfiguration(f"{directory} is not an export: its {RECORD} cannot be read ({error})") from error
    for name, digest in listed.items():
        if not (directory / name).is_file() or files.sha256(directory / name) != digest:
            raise CheckpointDamaged(f"export {directory}: {name} is not as it was written (its SHA-256 differs, or it is missing)")
    set_quiet(trainer.strategy.framework)
    return _check(directory, record, load_task(trainer), framework=trainer.strategy.framework)


def _check(directory: Path, record: Mapping[str, Any], task: Task, *, framework: Framework) -> str:
    data = task.train if task.test is None else task.test
    expected, tolerance = record["trained"]["loss"], record["tolerance"]
    exporter: Exporter = module_of(framework, "export")
    measured = exporter.measure(task, directory, data, np.arange(record["samples"]))
    for name, metrics in measured.items():
        both_broken = math.isnan(metrics["loss"]) and math.isnan(expected)  # nanLoss: Continue
        if not both_broken and not math.isclose(metrics["loss"], expected, rel_tol=tolerance, abs_tol=tolerance):
            raise UserError(
                f"export {directory}: {name} has the loss {metrics['loss']} on {record['samples']} samples, but the trained model "
                f"has {expected}; does build_model depend on more than its config, or does the model change while it predicts?"
            )
    shown = ", ".join(f"{name} {value:.4f}" for name, value in next(iter(measured.values())).items())
    alike = " as the trained model does" if record["compared"] else ""
    return f"read again, it predicts{alike}: {shown} on {record['samples']} samples ({', '.join(measured)})"


def _hashes(directory: Path) -> dict[str, str]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): files.sha256(path) for path in paths}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m muster_trainer.export PATH-OF-AN-EXPORT", file=sys.stderr)
        return BadConfiguration.code
    escape_on_output()
    sys.path.insert(0, os.getcwd())
    try:
        print(check(Path(arguments[0])))
    except TrainerError as error:
        if isinstance(error, UserError) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"{error.reason}: {error}", file=sys.stderr)
        return error.code
    except Exception as error:  # noqa: BLE001 (the user's code can raise anything)
        traceback.print_exc()
        print(f"{UserError.code.reason}: {describe(error)}", file=sys.stderr)
        return UserError.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
