"""Opens the data files of a job's `config.data`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster_contract.errors import BadConfiguration
from muster_trainer.checkpoint.objects import Location
from muster_trainer.data.files.arrays import Arrays, paths_beside
from muster_trainer.data.files.columns import Part, columns_of
from muster_trainer.data.files.fileset import FileSet
from muster_trainer.data.files.opened import OpenFile, matching, open_all, opened
from muster_trainer.data.files.table import Table
from muster_trainer.data.files.tfrecord import TFRecords

FORMATS = ("TFRecord", "CSV", "Arrays", "Parquet", "Arrow")


def open_files(settings: Mapping[str, Any], split: str, *parts: Part, where: str = "spec.trainer.config.data") -> FileSet | None:
    """The samples of a split, read from files. None if the settings do not name the split.

    `settings` are, for example, {"format": "CSV", "train": "data/train-*.csv", "test": "data/test.csv"}. `parts` are the inputs, the
    targets, and the weights if there are any. `where` is the path of the settings, for messages. Raises BadConfiguration if files are
    missing, damaged, or do not fit the parts.
    """
    if not isinstance(settings, Mapping) or settings.get("format") not in FORMATS:
        actual = settings.get("format") if isinstance(settings, Mapping) else settings
        raise BadConfiguration(f"{where}.format: one of {', '.join(FORMATS)} is needed, found {actual!r}")
    if settings.get(split) is None:
        if split == "train":
            raise BadConfiguration(f"{where}.train: the files to train on are needed, such as data/train-*")
        return None
    paths = matching(settings[split], f"{where}.{split}")
    samples = _arrays(paths, parts) if settings["format"] == "Arrays" else _format(settings["format"])(open_all(paths), parts)
    if not len(samples):
        raise BadConfiguration(f"{where}.{split}: the files hold no samples: {', '.join(map(str, paths[:5]))}")
    return samples


def _format(name: str) -> Callable[[Sequence[OpenFile], Sequence[Part]], FileSet]:
    if name == "TFRecord":
        return TFRecords
    if name == "CSV":
        return Table
    try:  # imported only for the formats that need it, because the import of pyarrow takes a third of a second
        from muster_trainer.data.files.arrow import Arrow
        from muster_trainer.data.files.parquet import Parquet
    except ImportError as error:
        raise BadConfiguration(f"format {name} needs pyarrow: {error}; pip install pyarrow, or use the bundled image") from error
    return Arrow if name == "Arrow" else Parquet


def _arrays(paths: list[Location], parts: tuple[Part, ...]) -> FileSet:
    columns = columns_of(parts)
    first = [path for path in paths if path.suffix == ".npz" or path.name.endswith(f"{columns[0].name}.npy")]
    if not first:
        raise BadConfiguration(
            f"data file {paths[0]}: Arrays are .npz files, or .npy files whose names end in {columns[0].name}.npy and {columns[1].name}.npy"
        )
    beside: dict[tuple[Location, str], OpenFile] = {}
    for path in first:
        if path.suffix == ".npy":
            beside |= {key: opened(other) for key, other in paths_beside(path, columns).items()}
    return Arrays(open_all(first), parts, beside=beside)
