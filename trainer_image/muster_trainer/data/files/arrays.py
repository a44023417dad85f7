"""Arrays of numpy: `.npz` files with an array for each column, or one `.npy` file for each column. Each row is a sample.

Write `.npz` files with `np.savez` and not with `savez_compressed`, because rows are read at their offset.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from muster_contract.errors import BadConfiguration, TrainerError
from muster_trainer.checkpoint.objects import Location
from muster_trainer.data.files.columns import Column, Part, converted
from muster_trainer.data.files.fileset import FileSet
from muster_trainer.data.files.opened import OpenFile, Stream

_ZIP_HEADER = 30  # bytes of a local file header before its name (PKWARE APPNOTE, 4.3.7)


@dataclass(frozen=True)
class Rows:
    """The rows of an array, and their position in a file."""

    file: OpenFile
    begin: int
    count: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def length(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def read(self, rows: Sequence[int]) -> np.ndarray:
        content = b"".join(self.file.read(self.begin + row * self.length, self.length) for row in rows)
        return np.frombuffer(content, dtype=self.dtype).reshape(len(rows), *self.shape)


class Arrays(FileSet):
    """Each row is a sample. `beside` has the .npy file of each further column, by the .npy file of the first column and the name."""

    def __init__(self, files: Sequence[OpenFile], parts: Sequence[Part], *, beside: Mapping[tuple[Location, str], OpenFile]) -> None:
        self._beside = beside
        self._rows: list[list[Rows]] = []
        super().__init__(files, parts)

    def _index(self, file: OpenFile) -> int:
        rows = []
        for column in self.columns:
            if file.path.suffix == ".npz":
                array = _rows(file, _member(file, column.name))
            else:
                array = _rows(self._beside[file.path, column.name], 0)
            _check(array, column)
            rows.append(array)
        counts = {array.count for array in rows}
        if len(counts) > 1:
            each = ", ".join(f"{column.name} {array.count}" for column, array in zip(self.columns, rows, strict=True))
            raise BadConfiguration(f"data file {file.path}: its arrays differ in their number of rows: {each}")
        self._rows.append(rows)
        return counts.pop()

    def arrays(self, indices: np.ndarray) -> list[np.ndarray]:
        records = self._located(indices)
        arrays = [np.empty((len(indices), *column.shape), dtype=column.type) for column in self.columns]
        numbers = np.array([number for number, _ in records])
        for number in set(numbers.tolist()):
            own = np.flatnonzero(numbers == number)
            rows = [records[position][1] for position in own]
            for column, array, source in zip(self.columns, arrays, self._rows[number], strict=True):
                try:
                    array[own] = converted(source.read(rows), column.type)
                except ValueError as error:
                    raise BadConfiguration(
                        f"data file {source.file.path}: {column.name} cannot be read as {column.dtype}: {error}"
                    ) from None
        return arrays


def paths_beside(first: Location, columns: Sequence[Column]) -> dict[tuple[Location, str], Location]:
    """The .npy file of each column. The names differ in their endings only, as in train-inputs.npy and train-targets.npy."""
    stem = first.name.removesuffix(f"{columns[0].name}.npy")
    return {(first, column.name): first.with_name(f"{stem}{column.name}.npy") for column in columns}


def _member(file: OpenFile, name: str) -> int:
    """The offset of an array's .npy file within an .npz."""
    try:
        with zipfile.ZipFile(cast(IO[bytes], Stream(file))) as archive:
            entry = archive.getinfo(f"{name}.npy")
    except TrainerError:
        raise
    except KeyError:
        there = ", ".join(one.removesuffix(".npy") for one in archive.namelist())
        raise BadConfiguration(f"data file {file.path} has no array {name!r}; it has {there}") from None
    except Exception as error:  # of many kinds, if the file is damaged
        raise _incomplete(file, error) from error
    if entry.compress_type != zipfile.ZIP_STORED:
        raise BadConfiguration(f"data file {file.path} is compressed, and rows are read at random; write it with np.savez")
    if not 0 <= entry.header_offset <= file.size:
        raise _incomplete(file, f"its array {name} is outside")
    header = file.read(entry.header_offset, _ZIP_HEADER)
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return entry.header_offset + _ZIP_HEADER + names


def _rows(file: OpenFile, begin: int) -> Rows:
    """Reads the header of the .npy file that begins at `begin` in `file`."""
    head = io.BytesIO(file.read(begin, max(0, min(file.size - begin, 1 << 16))))
    try:
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[np.lib.format.read_magic(head)]
        shape, fortran, dtype = read(head)
    except Exception as error:  # of many kinds, because numpy reads the header with ast and tokenize
        reason = f"{error!s:.200}" or type(error).__name__
        raise BadConfiguration(f"data file {file.path} is not an array of numpy ({reason}); write it with np.save or np.savez") from error
    if not shape or dtype.hasobject or (fortran and len(shape) > 1):
        raise BadConfiguration(
            f"data file {file.path}: an array of numbers with a row per sample, in C order, is needed; it has {dtype} {shape}"
        )
    begin += head.tell()
    if min(shape) < 0 or max(*shape, begin + math.prod(shape) * dtype.itemsize) > file.size:
        raise BadConfiguration(
            f"data file {file.path} is truncated or damaged: its array of {dtype} {shape!s:.100} is not within its {file.size} bytes; "
            "write it again"
        )
    return Rows(file, begin, shape[0], tuple(shape[1:]), dtype)


def _incomplete(file: OpenFile, problem: object) -> BadConfiguration:
    return BadConfiguration(f"data file {file.path} is not a complete .npz file ({problem!s:.200}); it may be truncated: write it again")


def _check(rows: Rows, column: Column) -> None:
    if rows.shape != column.shape:
        raise BadConfiguration(
            f"data file {rows.file.path}: a row of {column.name} has the shape {rows.shape}, and {column.shape} is needed"
        )
    if not np.can_cast(rows.dtype, column.type, "same_kind") or rows.dtype.kind not in "biuf":
        raise BadConfiguration(f"data file {rows.file.path}: {column.name} is of {rows.dtype}, and {column.dtype} is needed")


def write(path: Path, samples: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes samples, which are arrays by name, to an .npz file. Needs memory for all of them."""
    rows = list(samples)
    arrays: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    np.savez(path, **arrays)
