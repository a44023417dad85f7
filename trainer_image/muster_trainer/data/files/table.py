"""CSV files: a header with the names of the columns, then a line of numbers for each sample (RFC 4180)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from muster_contract.errors import BadConfiguration
from muster_trainer.data.files.columns import Column, Part
from muster_trainer.data.files.fileset import Records
from muster_trainer.data.files.opened import OpenFile

_WINDOW = 1 << 22  # bytes that are read at once in the search for lines


class Table(Records):
    """Each line is a sample."""

    def __init__(self, files: Sequence[OpenFile], parts: Sequence[Part]) -> None:
        self._header: list[str] = []
        self._positions: list[list[int]] = []
        super().__init__(files, parts)

    def _index(self, file: OpenFile) -> int:
        """Finds the lines. A newline within quotes does not end a line."""
        ends, quotes = [], 0
        for offset in range(0, file.size, _WINDOW):
            window = np.frombuffer(file.read(offset, min(_WINDOW, file.size - offset)), dtype=np.uint8)
            inside = np.cumsum(window == ord('"')) + quotes
            ends.append(np.flatnonzero((window == ord("\n")) & (inside % 2 == 0)) + offset + 1)
            quotes = int(inside[-1]) % 2
        stops = np.unique(np.concatenate([*ends, [file.size]]))
        starts = np.concatenate([[0], stops[:-1]])
        filled = stops - starts > 2  # an empty line has one or two bytes, and a line with two columns at least three
        starts, lengths = starts[filled], (stops - starts)[filled]
        if not len(starts):
            raise BadConfiguration(f"data file {file.path} is empty; it needs a line with the names of its columns")
        try:
            names = _fields(file.read(int(starts[0]), int(lengths[0])))
        except csv.Error as error:
            raise BadConfiguration(f"data file {file.path}: its first line is damaged: {error}; write it again") from error
        self._read_header(file, names)
        return self._add_records(starts[1:], lengths[1:])

    def _read_header(self, file: OpenFile, names: list[str]) -> None:
        """Reads the names of the columns. They must be the same in all files. Raises BadConfiguration."""
        if self._header:
            if names != self._header:
                raise BadConfiguration(f"data file {file.path} has other columns than {self.files[0].path}; give all files the same header")
            return
        for column, sources in zip(self.columns, names_of(self.columns, names, file), strict=True):
            if len(sources) != column.size:
                raise BadConfiguration(f"data file {file.path} has {len(sources)} columns ({some(sources)}) where {column.size} are needed")
            self._positions.append([names.index(name) for name in sources])
        self._header = names

    def _decoded(self, number: int, record: int, content: bytes) -> list[np.ndarray]:
        try:
            fields = _fields(content)
        except csv.Error as error:
            raise self._wrong(number, record, f"it is damaged: {error}; write the file again") from error
        if len(fields) != len(self._header):
            what = f"it has {len(fields)} columns, and the header {len(self._header)}; the file may be truncated"
            raise self._wrong(number, record, what)
        arrays = []
        for column, positions in zip(self.columns, self._positions, strict=True):
            chosen = [fields[position] for position in positions]
            try:
                arrays.append(np.array(chosen, dtype=np.str_).astype(column.type).reshape(column.shape))
            except (ValueError, OverflowError) as error:
                name = next(self._header[position] for position in positions if not _reads(fields[position], column))
                text = fields[self._header.index(name)]
                raise self._wrong(number, record, f"column {name} has {text!r}, and {column.dtype} is needed") from error
        return arrays


def _fields(line: bytes) -> list[str]:
    text = line.decode("utf-8-sig", "replace").rstrip("\r\n")
    return next(csv.reader([text]), []) if '"' in text else text.split(",")


def names_of(columns: Sequence[Column], names: Sequence[str], file: OpenFile) -> list[list[str]]:
    """For each column, those of the `names` in a file that belong to it. Raises BadConfiguration if one is missing."""
    named = [[column.names] if isinstance(column.names, str) else list(column.names) for column in columns]
    explicit = {name for one in named for name in one}
    sources = [own or [name for name in names if name not in explicit] for own in named]
    for name in (name for one in sources for name in one):
        if name not in names:
            raise BadConfiguration(f"data file {file.path} has no column {name!r}; it has {some(names)}")
    return sources


def _reads(text: str, column: Column) -> bool:
    try:
        np.array(text, dtype=np.str_).astype(column.type)
    except (ValueError, OverflowError):
        return False
    return True


def some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def write(path: Path, samples: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes samples, which are arrays by name. Each number of an array gets a column: name.0, name.1, ..."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        for number, arrays in enumerate(samples):
            flat = {name: np.asarray(array).ravel() for name, array in arrays.items()}
            if number == 0:
                shapes = {name: np.shape(array) for name, array in arrays.items()}
                lines.writerow(f"{name}.{index}" if shapes[name] else name for name, one in flat.items() for index in range(len(one)))
            lines.writerow(number for one in flat.values() for number in one.tolist())
