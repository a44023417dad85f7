"""Variables as one run of bytes, as snapshots of ParameterServer have them."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from muster_contract.errors import BadConfiguration  # noqa: E402 (after TensorFlow, which may be absent)
from muster_trainer.tensorflow.snapshots import Packed, unpack  # noqa: E402

TABLE = {
    ("weights", ""): tf.constant([[1.5, -0.0], [float("nan"), 3.0]]),
    ("parts", "4 2 0,2:0,2"): tf.constant([[1, 2], [3, 4]], dtype=tf.int64),
    ("half", ""): tf.constant([1.0, 2.0, 3.0], dtype=tf.bfloat16),
    ("empty", ""): tf.zeros((0, 3)),
    ("number", ""): tf.constant(7, dtype=tf.int32),
    ("graph", ""): tf.constant(b"\x00\xff text\x00"),
    ("texts", ""): tf.constant([[b"a", b""], [b"bcd", b"\x00"]]),
}


def packed() -> bytearray:
    made = Packed(TABLE)
    content = bytearray(made.size)
    made.write(memoryview(content))
    return content


def test_variables_come_back_bit_for_bit() -> None:
    restored = unpack(memoryview(packed()))
    assert restored.keys() == TABLE.keys()
    for key, value in TABLE.items():
        assert (restored[key].dtype, restored[key].shape) == (value.dtype, value.shape)
        if value.dtype == tf.string:
            assert tf.reduce_all(restored[key] == value)
        else:
            assert restored[key].numpy().tobytes() == value.numpy().tobytes()


@pytest.mark.parametrize("size", [0, 4, 100])
def test_what_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(BadConfiguration, match="snapshot in memory"):
        unpack(memoryview(packed())[:size])
