"""Writes the samples of a bundled task into files: `python -m muster_trainer.tasks.write digits data --format CSV --files 4`.

Use it to try `config.data`, and as an example for writing your own files.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from muster_contract.errors import TrainerError
from muster_contract.text import escape_on_output
from muster_trainer.data import DataSet
from muster_trainer.data.files import FORMATS

WRITERS = {
    "TFRecord": ("tfrecord", "tfrecord"),
    "CSV": ("table", "csv"),
    "Arrays": ("arrays", "npz"),
    "Parquet": ("parquet", "parquet"),
    "Arrow": ("arrow", "arrow"),
}
"""For each format: the module of muster_trainer.data.files that writes it, and the ending of its files."""


def write(data: DataSet, folder: Path, split: str, *, form: str, files: int) -> list[Path]:
    """Writes a map-style data set of (inputs, targets) to `files` files with about the same number of samples, in its order."""
    module, ending = WRITERS[form]
    writer = importlib.import_module(f"muster_trainer.data.files.{module}").write
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, run in enumerate(np.array_split(np.arange(len(data)), files)):
        path = folder / f"{split}-{number:05d}-of-{files:05d}.{ending}"
        writer(path, _samples(data, run))
        paths.append(path)
    return paths


def _samples(data: DataSet, run: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    for index in run:
        inputs, targets = data[int(index)]
        yield {"inputs": np.asarray(inputs), "targets": np.asarray(targets)}


def main() -> None:
    from muster_trainer.tasks.config import read_config
    from muster_trainer.tasks.module import BUNDLED

    parser = argparse.ArgumentParser(prog="python -m muster_trainer.tasks.write", description="Write a bundled task's samples into files.")
    parser.add_argument("task", choices=sorted(BUNDLED))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", choices=FORMATS, default="TFRecord")
    parser.add_argument("--files", type=int, default=4, help="number of files of the train part (default 4); the test part is one file")
    escape_on_output()
    arguments = parser.parse_args()
    if arguments.files < 1:
        parser.error("--files: write 1 or more")
    task = BUNDLED[arguments.task]
    config = read_config({}, task.KEYS, others_allowed=False)
    try:
        for split, files in (("train", arguments.files), ("test", 1)):
            data = task.dataset(config, split)
            paths = write(data, arguments.folder, split, form=arguments.format, files=files)
            print(f"{len(data)} samples in {paths[0]}" + (f" and {files - 1} more" if files > 1 else ""))
    except (OSError, TrainerError) as error:
        sys.exit(f"cannot be written: {error}")


if __name__ == "__main__":
    main()
