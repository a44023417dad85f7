"""tf.train.Example without TensorFlow: the part of the protocol buffer format that it needs.

Example { Features features = 1 }, Features { map<string, Feature> feature = 1 }, Feature { oneof: BytesList bytes_list = 1,
FloatList float_list = 2, Int64List int64_list = 3 }, each list { repeated value = 1 } (tensorflow/core/example/feature.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
BYTES, FLOATS, WHOLES = 1, 2, 3


class DamagedExample(ValueError):  # noqa: N818
    """Bytes that are no tf.train.Example."""


def parse(data: bytes) -> dict[str, bytes]:
    """The features by name, each still serialized. Raises DamagedExample."""
    features: dict[str, bytes] = {}
    for number, wire, value in _fields(data):
        if number == 1 and wire == LENGTH:
            for entry_number, _, entry in _fields(value):
                if entry_number == 1:
                    pair = {key: content for key, _, content in _fields(entry)}
                    features[bytes(pair.get(1, b"")).decode("utf-8", "replace")] = pair.get(2, b"")
    return features


def values(feature: bytes, dtype: np.dtype[Any]) -> np.ndarray:
    """The numbers of a feature, flat, in `dtype`. One of bytes holds raw little-endian numbers of that type.

    Raises DamagedExample, and TypeError where the feature holds fractions and `dtype` whole numbers.
    """
    for kind, _, content in _fields(feature):
        chunks = [(wire, value) for number, wire, value in _fields(content) if number == 1]
        if kind == BYTES:
            return np.frombuffer(b"".join(value for _, value in chunks), dtype=dtype.newbyteorder("<")).astype(dtype)
        if kind == FLOATS:
            if dtype.kind in "iub":
                raise TypeError(f"it holds fractions (float_list), and {dtype} is needed")
            return np.frombuffer(b"".join(value for _, value in chunks), dtype="<f4").astype(dtype)
        if kind == WHOLES:
            return _varints(b"".join(_varint(value) if wire == VARINT else value for wire, value in chunks)).astype(dtype)
    return np.empty(0, dtype)


def serialize(features: Mapping[str, np.ndarray]) -> bytes:
    """An Example with whole numbers as int64_list and fractions as float_list."""
    entries = []
    for name, array in features.items():
        flat = np.asarray(array).ravel()
        if flat.dtype.kind in "iub":
            kind, packed = WHOLES, b"".join(_varint(int(one) & 0xFFFFFFFFFFFFFFFF) for one in flat)
        else:
            kind, packed = FLOATS, flat.astype("<f4").tobytes()
        feature = _message(kind, _message(1, packed))
        entries.append(_message(1, _message(1, name.encode()) + _message(2, feature)))
    return _message(1, b"".join(entries))


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """(number, wire type, value) of each field: an int for VARINT, else bytes."""
    place, end = 0, len(data)
    while place < end:
        tag, place = _read_varint(data, place)
        wire = tag & 7
        if wire == VARINT:
            value, place = _read_varint(data, place)
            yield tag >> 3, wire, value
            continue
        length = {FIXED64: 8, FIXED32: 4}.get(wire)
        if wire == LENGTH:
            length, place = _read_varint(data, place)
        if length is None or place + length > end:
            raise DamagedExample("it is no tf.train.Example")
        yield tag >> 3, wire, data[place : place + length]
        place += length


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7
    raise DamagedExample("it is no tf.train.Example")


def _varints(data: bytes) -> np.ndarray:
    """Numbers packed one behind the other, as int64."""
    octets = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    if len(ends) == len(octets):
        return octets.astype(np.int64)
    if not len(ends) or ends[-1] != len(octets) - 1:
        raise DamagedExample("it is no tf.train.Example")
    starts = np.concatenate([[0], ends[:-1] + 1])
    numbers = np.zeros(len(ends), dtype=np.uint64)
    for place in range(min(int((ends - starts).max()) + 1, 10)):
        there = starts + place <= ends
        numbers[there] |= (octets[starts[there] + place] & np.uint64(0x7F)) << np.uint64(7 * place)
    return numbers.view(np.int64)


def _varint(number: int) -> bytes:
    octets = bytearray()
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | LENGTH) + _varint(len(content)) + content
