"""A copy of a data set as arrays on a local disk. The first process on each machine decodes it."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_trainer.data.files.arrays import Arrays, paths_beside
from muster_trainer.data.files.columns import assembled, columns_of
from muster_trainer.data.files.fileset import FileSet
from muster_trainer.data.files.opened import OpenFile, opened

_ROWS = 1024  # rows that are decoded together


def cached(data: object, folder: Path, *, title: str) -> FileSet:
    """Returns a copy of `data` in `folder`.

    Raises BadConfiguration if the data are not in files, and StorageUnavailable if the folder cannot be written.
    """
    if not isinstance(data, FileSet):
        raise BadConfiguration(
            f"spec.trainer.input.cache: the samples of {title} are not in files that Muster reads (muster_trainer.data.files); leave it out"
        )
    copy = folder / _name(data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with copy.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not copy.is_dir():
                _decode(data, copy)
    except OSError as error:
        raise StorageUnavailable(f"spec.trainer.input.cache: {folder} cannot be written: {error.strerror}") from error
    numbers = iter(range(len(data.columns)))
    parts = assembled(data.parts, lambda column: replace(column, names=str(next(numbers))))
    first = OpenFile(copy / "0.npy")
    beside = {key: opened(path) for key, path in paths_beside(first.path, columns_of(parts)).items()}
    return Arrays([first], parts, beside=beside)


def _name(data: FileSet) -> str:
    """The name of the copy. It depends on the files, their content and the columns."""
    identity = [repr(data.columns), *(f"{file.path.resolve()} {file.size} {file.changed}" for file in data.files)]
    return hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]


def _decode(data: FileSet, copy: Path) -> None:
    """Writes a .npy file for each column into a temporary folder, and renames that to `copy` at the end."""
    unfinished = copy.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    paths = [unfinished / f"{number}.npy" for number in range(len(data.columns))]
    for path, column in zip(paths, data.columns, strict=True):
        with path.open("wb") as file:
            shape = (len(data), *column.shape)
            np.lib.format.write_array_header_1_0(file, {"descr": column.type.str, "fortran_order": False, "shape": shape})
    for begin in range(0, len(data), _ROWS):
        arrays = data.arrays(np.arange(begin, min(begin + _ROWS, len(data))))
        for path, array in zip(paths, arrays, strict=True):
            with path.open("ab") as file:
                file.write(array.tobytes())
    unfinished.rename(copy)
