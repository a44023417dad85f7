"""Parquet files. A row group is read as a stream, so that it may be larger than the memory."""

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
_MOST_LISTED = 100_000  # the most columns, and the most row groups, of a file
_BUFFER = 1 << 16  # bytes of each column that are read ahead
_END = 8  # bytes at the end of a file: the length of the footer, and the magic bytes


class _Reader(Reader):
    def __init__(self, file: OpenFile) -> None:
        end = file.read(max(file.size - _END, 0), min(file.size, _END))
        if end[4:] != b"PAR1":
            raise BadConfiguration(f"data file {file.path} is not a complete Parquet file: its end is missing; write it again")
        if int.from_bytes(end[:4], "little") > MOST_FOOTER:
            raise BadConfiguration(
                f"data file {file.path} has a footer of {int.from_bytes(end[:4], 'little')} bytes, and at most {MOST_FOOTER} are read; "
                "write fewer row groups into a file"
            )
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
        """Does not read the metadata of columns, because pyarrow aborts the process if those of a damaged file are read."""
        metadata = self._file.metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def slices(self, group: int, names: Sequence[str], rows: int) -> Iterator[Any]:
        batches: Iterator[Any] = self._file.iter_batches(batch_size=rows, row_groups=[group], columns=list(names), use_threads=False)
        return batches


class Parquet(Columnar):
    """Each row is a sample."""

    reader = _Reader


def write(path: Path, samples: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes samples, which are arrays by name, in small row groups, which are quick to read in random order."""
    batches = arrow.batches_of(samples)
    first = next(batches)
    with pq.ParquetWriter(path, first.schema, write_page_checksum=True) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
