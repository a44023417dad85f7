"""Reads and writes tf.train.Example with protobuf, without TensorFlow (tensorflow/core/example/feature.proto)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from muster_trainer.data.files.columns import converted

_MESSAGES: Mapping[str, tuple[tuple[str, Any, str], ...]] = {
    "BytesList": (("value", Field.LABEL_REPEATED, "TYPE_BYTES"),),
    "FloatList": (("value", Field.LABEL_REPEATED, "TYPE_FLOAT"),),
    "Int64List": (("value", Field.LABEL_REPEATED, "TYPE_INT64"),),
    "Feature": tuple((f"{kind}_list", Field.LABEL_OPTIONAL, f"{kind.capitalize()}List") for kind in ("bytes", "float", "int64")),
    "Entry": (("key", Field.LABEL_OPTIONAL, "TYPE_BYTES"), ("value", Field.LABEL_OPTIONAL, "Feature")),
    "Features": (("feature", Field.LABEL_REPEATED, "Entry"),),
    "Example": (("features", Field.LABEL_OPTIONAL, "Features"),),
}
"""(name, label, type) of each field, in the order of their numbers. `Features.feature` is a map, which protobuf encodes as a list."""


def _example_class() -> Any:
    file = FileDescriptorProto(name="example.proto", package="muster", syntax="proto3")
    for message, fields in _MESSAGES.items():
        descriptor = file.message_type.add(name=message)
        for number, (name, label, kind) in enumerate(fields, 1):
            field = descriptor.field.add(name=name, number=number, label=label)
            if kind in _MESSAGES:
                field.type, field.type_name = Field.TYPE_MESSAGE, f".muster.{kind}"
            else:
                field.type = getattr(Field, kind)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("muster.Example"))


_Example = _example_class()


class DamagedExample(ValueError):  # noqa: N818
    """Bytes that are not a tf.train.Example."""


def parse(data: bytes) -> dict[str, Any]:
    """The features by name, for `values`. Raises DamagedExample."""
    try:
        entries = _Example.FromString(data).features.feature
    except DecodeError:
        raise DamagedExample("it is not a tf.train.Example") from None
    return {entry.key.decode("utf-8", "replace"): entry.value for entry in entries}


def values(feature: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """The numbers of a feature: shape (n,), of type `dtype`. A bytes_list has raw little-endian numbers of that type.

    Raises TypeError if the feature has fractions and `dtype` is an integer type, and ValueError for a wrong number of bytes and for a
    number that is out of range.
    """
    if feature.HasField("bytes_list"):
        return np.frombuffer(b"".join(feature.bytes_list.value), dtype=dtype.newbyteorder("<")).astype(dtype)
    if feature.HasField("float_list"):
        if dtype.kind in "iub":
            raise TypeError(f"it holds fractions (float_list), and {dtype} is needed")
        return np.array(feature.float_list.value, dtype=np.float32).astype(dtype)
    return converted(np.array(feature.int64_list.value, dtype=np.int64), dtype)


def serialize(features: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of an Example. Integers become an int64_list, and other numbers a float_list."""
    example = _Example()
    for name, array in features.items():
        flat = np.asarray(array).ravel()
        feature = example.features.feature.add(key=name.encode()).value
        if flat.dtype.kind in "iub":
            feature.int64_list.value.extend(flat.astype(np.int64).tolist())
        else:
            feature.float_list.value.extend(flat.astype(np.float32).tolist())
    content: bytes = example.SerializeToString()
    return content
