"""TFRecord files of tf.train.Example, without TensorFlow.

A record is the length of its data (uint64), the masked CRC-32C of these 8 bytes (uint32), the data, and their masked CRC-32C (uint32). All
numbers are little-endian (tensorflow/core/lib/io/record_writer.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from muster_contract.errors import BadConfiguration
from muster_trainer.data.files import example
from muster_trainer.data.files.columns import Column
from muster_trainer.data.files.fileset import Records
from muster_trainer.data.files.opened import OpenFile

HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
_WINDOW = 1 << 14  # bytes that are read at once in the search for records
_CRC_MASK = 0xA282EAD8
"""A constant of the format. CRCs are masked because the CRC of data that contain CRCs would be weak (tensorflow/core/lib/hash/crc32c.h)."""


def masked_crc(data: bytes) -> int:
    """The CRC-32C of `data` as TFRecord stores it."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF


class TFRecords(Records):
    """Each sample is an Example, and each column is a feature."""

    def _index(self, file: OpenFile) -> int:
        starts: list[int] = []
        lengths: list[int] = []
        offset, window, window_at = 0, b"", 0
        while offset < file.size:
            if offset + HEADER.size > window_at + len(window):
                window, window_at = file.read(offset, min(_WINDOW, max(file.size - offset, HEADER.size))), offset
            header = window[offset - window_at : offset - window_at + HEADER.size]
            length, crc = HEADER.unpack(header)
            if masked_crc(header[:8]) != crc:
                raise _damaged(file, offset, len(starts))
            end = offset + HEADER.size + length + FOOTER.size
            if end > file.size:
                raise BadConfiguration(
                    f"data file {file.path} is truncated: record {len(starts) + 1} goes up to byte {end}, and the file ends at byte "
                    f"{file.size}; write it again"
                )
            starts.append(offset + HEADER.size)
            lengths.append(length)
            offset = end
        return self._add_records(np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64))

    def _bytes(self, number: int, record: int) -> bytes:
        start, length = int(self._starts[number][record]), int(self._lengths[number][record])
        content = self.files[number].read(start, length + FOOTER.size)
        data = content[:length]
        if FOOTER.unpack(content[length:])[0] != masked_crc(data):
            raise self._wrong(number, record, "its checksum is not that of its content: it is damaged; write the file again")
        return data

    def _decoded(self, number: int, record: int, content: bytes) -> list[np.ndarray]:
        try:
            features = example.parse(content)
            return [self._column(number, record, features, column) for column in self.columns]
        except example.DamagedExample as error:
            raise self._wrong(
                number, record, f"{error}; write Examples, as tf.io.TFRecordWriter and muster_trainer.tasks.write do"
            ) from None

    def _column(self, number: int, record: int, features: Mapping[str, Any], column: Column) -> np.ndarray:
        if column.name not in features:
            raise self._wrong(number, record, f"there is no feature {column.name!r}; it has {', '.join(sorted(features)) or 'none'}")
        try:
            numbers = example.values(features[column.name], column.type)
        except (TypeError, ValueError) as error:
            raise self._wrong(number, record, f"the feature {column.name} cannot be read as {column.dtype}: {error}") from None
        if numbers.size != column.size:
            shape = "x".join(map(str, column.shape)) or "one number"
            raise self._wrong(
                number, record, f"the feature {column.name} has {numbers.size} numbers, and {column.size} are needed ({shape})"
            )
        return numbers.reshape(column.shape)


def _damaged(file: OpenFile, offset: int, record: int) -> BadConfiguration:
    if file.read(0, 2) == b"\x1f\x8b":
        return BadConfiguration(f"data file {file.path} is compressed, and records are read at random; write it uncompressed")
    if offset == 0:
        return BadConfiguration(f"data file {file.path} is not a TFRecord file; check config.data.format")
    return BadConfiguration(f"data file {file.path} is damaged at byte {offset}, behind record {record}; write it again")


def write(path: Path, samples: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes samples, which are arrays by feature."""
    with path.open("wb") as file:
        for features in samples:
            data = example.serialize(features)
            length = struct.pack("<Q", len(data))
            file.write(length + FOOTER.pack(masked_crc(length)) + data + FOOTER.pack(masked_crc(data)))
