"""Files of columns, such as Parquet and Arrow. The rows of a file are in groups. A group is decoded in chunks, and a bounded cache has the
chunks that were used last."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from muster_contract.errors import BadConfiguration
from muster_trainer.data.files.columns import Column, Part
from muster_trainer.data.files.fileset import FileSet
from muster_trainer.data.files.numbers import Misfit, form_of, numbers
from muster_trainer.data.files.opened import OpenFile
from muster_trainer.data.files.table import names_of, some

MOST_DECODED = 128 << 20
"""The most bytes of decoded rows in the cache of a process."""
MOST_READ = 256 << 20
"""The most bytes that a reader reads in one piece, even if the file declares more."""
_CHUNK = 4 << 20  # bytes of a chunk
_READERS = 16  # files whose footers stay in the memory of a process
_ROWS_PER_BYTE = 1024  # the most that compression achieves

Key = tuple[int, int]
"""The number of a group, counted over all files, and the number of a chunk in the group."""


class Reader(ABC):
    """One file. The methods raise errors of pyarrow."""

    schema: Any

    @abstractmethod
    def __init__(self, file: OpenFile) -> None: ...

    @abstractmethod
    def group_rows(self, names: Sequence[str], row_bytes: int) -> list[int]:
        """The number of rows of each group. `names` are the columns that will be read, and `row_bytes` is the size of their rows."""

    @abstractmethod
    def slices(self, group: int, names: Sequence[str], rows: int) -> Iterator[Any]:
        """The columns of a group as record batches of `rows` rows; the last one may have fewer."""


class Columnar(FileSet):
    """Each row is a sample. A batch decodes each group that it needs at most once, in their order."""

    reader: ClassVar[type[Reader]]

    def __init__(self, files: Sequence[OpenFile], parts: Sequence[Part]) -> None:
        self._names: list[str] = []
        self._sources: list[list[str]] = []
        self._widths: list[list[int]] = []
        self._chunk_rows = 0
        self._groups: list[tuple[int, int, int]] = []
        """For each group: the number of its file, its number in the file, and its rows."""
        self._indexed = 0
        self._lock = threading.Lock()
        self._reset()
        super().__init__(files, parts)
        self._reset()

    def _reset(self) -> None:
        self._readers: OrderedDict[int, Reader] = OrderedDict()
        self._chunks: OrderedDict[Key, list[np.ndarray]] = OrderedDict()
        self._bytes = 0
        self._cursor: tuple[Key, Iterator[Any]] | None = None
        """The group that is being read: the key of its next chunk, and the iterator that gives it."""

    def _try(self, first: int, last: int) -> None:
        self.batch([first])  # reading the last sample would decode the whole group

    def _index(self, file: OpenFile) -> int:
        with self._errors_naming(file):
            reader = self._reader(self._indexed)
            row_bytes = self._fit(file, reader.schema)
            rows = reader.group_rows(self._all_sources, row_bytes)
        if sum(rows) > file.size * _ROWS_PER_BYTE or min(rows, default=0) < 0:
            raise BadConfiguration(
                f"data file {file.path} is damaged: it cannot have {sum(rows)} rows in {file.size} bytes; write it again"
            )
        self._groups += [(self._indexed, group, count) for group, count in enumerate(rows)]
        self._indexed += 1
        return sum(rows)

    @property
    def _all_sources(self) -> list[str]:
        return list(dict.fromkeys(name for names in self._sources for name in names))

    def _fit(self, file: OpenFile, schema: Any) -> int:
        """Checks the columns of a file, which must be those of the first file. Returns the bytes of a row."""
        if not self._names:
            self._names = list(schema.names)
            self._sources = names_of(self.columns, self._names, file)
        elif schema.names != self._names:
            raise BadConfiguration(f"data file {file.path} has other columns than {self.files[0].path}; give all files the same columns")
        widths, row_bytes = [], 0
        for column, names in zip(self.columns, self._sources, strict=True):
            own = []
            for name in names:
                if self._names.count(name) > 1:
                    raise BadConfiguration(f"data file {file.path} has several columns {name}; give each a name of its own")
                kind = schema.field(name).type
                form = form_of(kind, column.type)
                if form is None:
                    raise BadConfiguration(f"data file {file.path}: column {name} is of {kind!s:.100}, and {_needed(column)}")
                alone = form.width is None and len(names) == 1
                own.append(column.size if alone else 1 if form.width is None else form.width)
                row_bytes += form.row_bytes * (column.size if alone else 1)
            if sum(own) != column.size:
                raise BadConfiguration(
                    f"data file {file.path} has {sum(own)} numbers in a row of column {some(names)}, where {column.size} are needed"
                )
            widths.append(own)
        if self._widths and widths != self._widths:
            raise BadConfiguration(
                f"data file {file.path} has rows of another shape than {self.files[0].path}; give all files the same types"
            )
        self._widths = widths
        self._chunk_rows = self._chunk_rows or max(_CHUNK // max(row_bytes, 1), 1)
        return max(row_bytes, 1)

    def arrays(self, indices: np.ndarray) -> list[np.ndarray]:
        self._check_bounds(indices)
        groups = np.searchsorted(self._group_begins, indices, side="right") - 1
        chunks, rows = np.divmod(indices - self._group_begins[groups], self._chunk_rows)
        keys, owners = np.unique(np.stack([groups, chunks]), axis=1, return_inverse=True)
        arrays = [np.empty((len(indices), *column.shape), dtype=column.type) for column in self.columns]
        with self._lock:
            for number, (group, chunk) in enumerate(keys.T.tolist()):
                own = np.flatnonzero(owners.ravel() == number)
                for array, source in zip(arrays, self._chunk((group, chunk)), strict=True):
                    array[own] = source[rows[own]]
        return arrays

    @cached_property
    def _group_begins(self) -> np.ndarray:
        """The number of the first sample of each group, over all files, then the number of all samples."""
        return np.concatenate([[0], np.cumsum([rows for _, _, rows in self._groups], dtype=np.int64)])

    def _chunk(self, key: Key) -> list[np.ndarray]:
        if key in self._chunks:
            self._chunks.move_to_end(key)
            return self._chunks[key]
        group, chunk = key
        number, _, in_group = self._groups[group]
        file = self.files[number]
        rows = min(self._chunk_rows, in_group - chunk * self._chunk_rows)
        begin = int(self._group_begins[group] - self._begins[number]) + chunk * self._chunk_rows
        with self._errors_naming(file):
            batch = self._next(key)
            if batch is None or batch.num_rows != rows:
                raise BadConfiguration(
                    f"data file {file.path} is damaged: it has fewer rows after record {begin} than it declares; write it again"
                )
            arrays = self._decoded(file, batch, begin)
        self._chunks[key] = arrays
        self._bytes += _size(arrays)
        while self._bytes > MOST_DECODED and len(self._chunks) > 1:
            self._bytes -= _size(self._chunks.popitem(last=False)[1])
        return arrays

    def _next(self, key: Key) -> Any:
        """Reads a group up to that chunk. Continues at the cursor if the chunk comes after it."""
        group, chunk = key
        if self._cursor is None or self._cursor[0][0] != group or self._cursor[0][1] > chunk:
            number, in_file, _ = self._groups[group]
            self._cursor = (group, 0), self._reader(number).slices(in_file, self._all_sources, self._chunk_rows)
        (_, at), batches = self._cursor
        self._cursor = batch = None  # after an error, the group must be read from its beginning
        for _ in range(at, chunk + 1):
            batch = next(batches, None)
        self._cursor = (group, chunk + 1), batches
        return batch

    def _decoded(self, file: OpenFile, batch: Any, begin: int) -> list[np.ndarray]:
        arrays = []
        for column, names, widths in zip(self.columns, self._sources, self._widths, strict=True):
            parts = []
            for name, width in zip(names, widths, strict=True):
                try:
                    parts.append(numbers(batch.column(name), width, column.type))
                except Misfit as error:
                    raise BadConfiguration(f"data file {file.path}, record {begin + error.row + 1}: column {name} {error}") from None
                except (pa.ArrowException, ValueError, MemoryError) as error:
                    raise _damaged(file, error, f", column {name}") from None
            joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
            arrays.append(joined.reshape(len(joined), *column.shape))
        return arrays

    def _reader(self, number: int) -> Reader:
        if number not in self._readers:
            self._readers[number] = self.reader(self.files[number])
            if len(self._readers) > _READERS:
                self._readers.popitem(last=False)
        return self._readers[number]

    @contextmanager
    def _errors_naming(self, file: OpenFile) -> Iterator[None]:
        """Turns errors of pyarrow into errors that name the file."""
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
            raise _damaged(file, error) from None


def _damaged(file: OpenFile, error: Exception, where: str = "") -> BadConfiguration:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return BadConfiguration(f"data file {file.path}{where} cannot be read: {reason}; it may be damaged: write it again")


def _needed(column: Column) -> str:
    return f"{column.dtype} is needed: numbers, lists of numbers, or raw bytes"


def _size(arrays: Sequence[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)
