"""Parquet files. A row group is read as a stream, so that its size does not matter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from muster_contract.errors import BadConfiguration
from muster_trainer.data.files import arrow
from muster_trainer.data.files.columnar import MOST_READ, Columnar, Reader
from muster_trainer.data.files.opened import OpenFile, Stream

MOST_FOOTER = 16 << 20
_MOST_LISTED = 100_000  # columns, or row groups, of a file
_BUFFER = 1 << 16  # bytes of each column that are read ahead
_END = 8  # bytes at the end: the length of the footer, and the magic


class _Reader(Reader):
    def __init__(self, file: OpenFile) -> None:
        end = file.read(max(file.size - _END, 0), min(file.size, _END))
        if end[4:] != b"PAR1":
            raise BadConfiguration(f"data file {file.path} is no whole Parquet file: it does not end as one; write it again")
        if int.from_bytes(end[:4], "little") > MOST_FOOTER:
            raise BadConfiguration(
                f"data file {file.path} has a footer of {int.from_bytes(end[:4], 'little')} bytes, and at most {MOST_FOOTER} are read; "
                "write fewer row groups into a file"
            )
        self._opened = file
        self._file = pq.ParquetFile(
            Stream(file, MOST_READ),
            buffer_size=_BUFFER,
            pre_buffer=False,
            page_checksum_verification=True,
            thrift_container_size_limit=_MOST_LISTED,
            thrift_string_size_limit=MOST_FOOTER,
            arrow_extensions_enabled=False,
        )
        self.schema = self._file.schema_arrow

    def group_rows(self, names: Sequence[str], row_bytes: int) -> list[int]:
        """Refuses lists that are longer than the row, before memory is taken for them."""
        metadata = self._file.metadata
        lists = [
            leaf
            for leaf in range(metadata.num_columns)
            if metadata.schema.column(leaf).max_repetition_level and metadata.schema.column(leaf).path.rpartition(".list.")[0] in names
        ]
        counts = []
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            counts.append(group.num_rows)
            for column in map(group.column, lists):
                if column.num_values > group.num_rows * row_bytes:
                    name = column.path_in_schema.rpartition(".list.")[0]
                    raise BadConfiguration(
                        f"data file {self._opened.path}: column {name} has {column.num_values} numbers in {group.num_rows} rows, which is "
                        "more than are needed; write as many in each row"
                    )
        return counts

    def slices(self, group: int, names: Sequence[str], rows: int) -> Iterator[Any]:
        batches: Iterator[Any] = self._file.iter_batches(batch_size=rows, row_groups=[group], columns=list(names), use_threads=False)
        return batches


class Parquet(Columnar):
    """Samples are rows."""

    title = "Parquet"
    reader = _Reader


def write(path: Path, samples: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes samples, which are arrays by name, in row groups that are quick to read at random."""
    batches = arrow.batches_of(samples)
    first = next(batches)
    with pq.ParquetWriter(path, first.schema, write_page_checksum=True) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
