"""Arrow files in the IPC file format, which Feather (version 2) also uses. A record batch is read in one piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from muster_contract.errors import BadConfiguration
from muster_trainer.data.files.columnar import MOST_DECODED, MOST_READ, Columnar, Reader
from muster_trainer.data.files.opened import OpenFile, Stream

_MAGIC = b"ARROW1"
_ROWS = 1024  # of each record batch that `write` writes


class _Reader(Reader):
    def __init__(self, file: OpenFile) -> None:
        self._opened = file
        length = min(file.size, len(_MAGIC))
        if file.read(0, length) != _MAGIC:
            raise BadConfiguration(
                f"data file {file.path} is not an Arrow file; write it with pyarrow.ipc.new_file (not new_stream) or "
                "pyarrow.feather.write_feather"
            )
        if file.read(file.size - length, length) != _MAGIC:
            raise BadConfiguration(f"data file {file.path} is not a complete Arrow file: its end is missing; write it again")
        self.schema = self._file([]).schema

    def group_rows(self, names: Sequence[str], row_bytes: int) -> list[int]:
        """Reads one column of each batch, because the number of rows is in the batch itself."""
        one = min(names, key=lambda name: str(self.schema.field(name).type).count("["))
        file = self._file([one])
        counts = [file.get_batch(group).num_rows for group in range(file.num_record_batches)]
        most = max(MOST_DECODED // row_bytes, 1)
        if max(counts, default=0) > most:
            raise BadConfiguration(
                f"data file {self._opened.path} has a record batch of {max(counts)} rows, and {most} of this length fit into memory; "
                f"write smaller ones, such as with write_table(table, max_chunksize={min(most, _ROWS)}), or write Parquet"
            )
        return counts

    def slices(self, group: int, names: Sequence[str], rows: int) -> Iterator[Any]:
        batch = self._file(names).get_batch(group)
        return (batch.slice(begin, rows) for begin in range(0, batch.num_rows, rows))

    def _file(self, names: Sequence[str]) -> Any:
        fields = [self.schema.get_field_index(name) for name in names]
        return pa.ipc.open_file(Stream(self._opened, MOST_READ), options=pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields))


class Arrow(Columnar):
    """Each row is a sample."""

    reader = _Reader


def batches_of(samples: Iterable[Mapping[str, np.ndarray]]) -> Iterator[Any]:
    """Converts samples, which are arrays by name, to record batches. An array of several numbers becomes a list of fixed size."""
    rows = iter(samples)
    while some := list(islice(rows, _ROWS)):
        columns = {name: np.stack([row[name] for row in some]) for name in some[0]}
        yield pa.record_batch({name: _column(array) for name, array in columns.items()})


def _column(array: np.ndarray) -> Any:
    flat = pa.array(array.ravel())
    return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[1:])))


def write(path: Path, samples: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes samples, which are arrays by name, in small record batches, which are quick to read in random order."""
    batches = batches_of(samples)
    first = next(batches)
    with pa.ipc.new_file(path, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
