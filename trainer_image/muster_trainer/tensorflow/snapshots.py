"""The values of a tf.train.Checkpoint, read now and written later, when the variables have long changed.

The file is the one that Checkpoint.write makes, and Checkpoint.read reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from muster_trainer.contract import StorageUnavailable
from muster_trainer.tensorflow.world import one_line

PREFIX = "state"
STORAGE_ERRORS = (  # what TensorFlow makes of ENOSPC, EACCES, ENOENT, EROFS, EFBIG and EIO
    tf.errors.ResourceExhaustedError,
    tf.errors.PermissionDeniedError,
    tf.errors.NotFoundError,
    tf.errors.FailedPreconditionError,
    tf.errors.OutOfRangeError,
    tf.errors.UnknownError,
    OSError,
)

Table = Mapping[tuple[str, str], tf.Tensor]
"""Values by key and slice, as SaveV2 takes them; the slice is empty for a whole variable."""


def read(checkpoint: tf.train.Checkpoint, host: str) -> Table:
    """The values, on the device `host`. Some may lie in the variables' own memory.

    The public ways are a write that holds the training up, and AsyncCheckpoint, whose copies of variables stay for good.
    """
    serialized, *_ = checkpoint._saver._gather_serialized_tensors()
    table: dict[tuple[str, str], tf.Tensor] = {}
    with tf.device(host):
        for entries in serialized.values():
            for key, entry in entries.items():
                for piece, value in (entry if isinstance(entry, dict) else {"": entry}).items():
                    value = getattr(value, "tensor", value)
                    value = tf.convert_to_tensor(value() if callable(value) else value)
                    table[key, piece] = tf.identity(value)
    return table


def copied(table: Table, host: str) -> Table:
    """The same in memory of its own; texts cannot change."""
    with tf.device(host):
        return {key: value if value.dtype == tf.string else tf.raw_ops.DeepCopy(x=value) for key, value in table.items()}


def write(table: Table, directory: Path, host: str) -> tuple[list[str], None]:
    """Gives the names of the files. Raises StorageUnavailable."""
    if not table:
        return [], None
    keys, pieces = zip(*table, strict=True)
    try:
        with tf.device(host):
            prefix = str(directory / PREFIX)
            tf.raw_ops.SaveV2(prefix=prefix, tensor_names=keys, shape_and_slices=pieces, tensors=list(table.values()))
    except STORAGE_ERRORS as error:
        raise StorageUnavailable(f"checkpoint storage {directory}: {one_line(error)}") from error
    return sorted(path.name for path in directory.glob(f"{PREFIX}.*")), None
