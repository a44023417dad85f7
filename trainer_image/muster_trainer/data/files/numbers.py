"""Converts columns of Arrow to arrays of numpy. A column has numbers, lists with the same length in each row, or raw bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa


class Misfit(ValueError):  # noqa: N818
    """A value that does not fit the type or shape of the column. `row` counts from 0."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


@dataclass(frozen=True)
class Form:
    """The content of a column of a file. `width` is the number of numbers in a row; None if it differs from row to row."""

    width: int | None
    row_bytes: int
    """The size of a row in bytes."""


def form_of(kind: Any, dtype: np.dtype[Any]) -> Form | None:
    """The form of a column of the Arrow type `kind` that is read as `dtype`. None if that is not possible."""
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        width = kind.byte_width // dtype.itemsize if pa.types.is_fixed_size_binary(kind) else None
        return None if width is not None and width * dtype.itemsize != kind.byte_width else Form(width, (width or 1) * dtype.itemsize)
    varies = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    leaf, width = (kind.value_type, 1) if varies else (kind, 1)
    while pa.types.is_fixed_size_list(leaf):
        leaf, width = leaf.value_type, width * leaf.list_size
    if not (pa.types.is_integer(leaf) or pa.types.is_floating(leaf) or pa.types.is_boolean(leaf)):
        return None
    own = pa.array([], leaf).to_numpy(zero_copy_only=False).dtype  # `to_pandas_dtype` needs pandas
    if not (_is_whole(own) and _is_whole(dtype)) and not np.can_cast(own, dtype, "same_kind"):
        return None
    return Form(None if varies else width, width * max(own.itemsize, dtype.itemsize))


def numbers(array: Any, width: int, dtype: np.dtype[Any]) -> np.ndarray:
    """A copy of the numbers of an Arrow array whose type has a form: shape (rows, width). Raises Misfit, and errors of pyarrow for a
    damaged array."""
    array.validate(full=True)
    rows = len(array)
    _refuse_nulls(array, 1)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        inner = form_of(array.type.value_type, dtype)
        each = inner.width if inner and inner.width else 1
        _refuse_lengths(array.value_lengths().to_numpy(zero_copy_only=False) * each, width)
        array = array.flatten()
    elif pa.types.is_fixed_size_binary(array.type) or pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        contents = array.to_pylist()
        _refuse_lengths(np.array([len(one) for one in contents], dtype=np.int64), width * dtype.itemsize, unit="bytes")
        return np.frombuffer(b"".join(contents), dtype=dtype.newbyteorder("<")).astype(dtype).reshape(rows, width)
    while pa.types.is_fixed_size_list(array.type):
        _refuse_nulls(array, max(len(array) // max(rows, 1), 1))
        array = array.flatten()
    _refuse_nulls(array, width)
    return _cast(array.to_numpy(zero_copy_only=False), dtype, width).reshape(rows, width)


def _is_whole(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iub"


def _cast(values: np.ndarray, dtype: np.dtype[Any], width: int) -> np.ndarray:
    """A copy as `dtype`. Raises Misfit for an integer that is out of its range."""
    cast = values.astype(dtype)
    if _is_whole(dtype) and values.dtype != dtype:
        wrong = np.flatnonzero((cast != values) | ((cast < 0) != (values < 0)))
        if len(wrong):
            raise Misfit(int(wrong[0]) // width, f"has {values[wrong[0]]}, and {dtype} is needed")
    return cast


def _refuse_nulls(array: Any, per_row: int) -> None:
    if array.null_count:
        place = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise Misfit(place // per_row, "has no value (null); fill it, or leave out the row")


def _refuse_lengths(lengths: np.ndarray, needed: int, *, unit: str = "numbers") -> None:
    wrong = np.flatnonzero(lengths != needed)
    if len(wrong):
        raise Misfit(int(wrong[0]), f"has {lengths[wrong[0]]} {unit}, and {needed} are needed")
