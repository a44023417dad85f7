"""The state of a training in checkpoints: the variables of the model and of the optimizer.

Values are read at once and written later, because the variables may change in between. The files are the same as those of
`tf.train.Checkpoint.write`, and `tf.train.Checkpoint.read` reads them.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_trainer.tensorflow import compat
from muster_trainer.tensorflow.workers import Workers
from muster_trainer.tensorflow.world import one_line, peers
from muster_trainer.training.engine import Part
from muster_trainer.training.tensor_table import misfit_error

PREFIX = "state"
STORAGE_ERRORS = (  # the errors to which TensorFlow converts ENOSPC, EACCES, ENOENT, EROFS, EFBIG and EIO
    tf.errors.ResourceExhaustedError,
    tf.errors.PermissionDeniedError,
    tf.errors.NotFoundError,
    tf.errors.FailedPreconditionError,
    tf.errors.OutOfRangeError,
    tf.errors.UnknownError,
    OSError,
)
DAMAGE = (tf.errors.OpError, IndexError, DecodeError)
"""The errors that TensorFlow raises for damaged files, beside the other errors here."""
EXACT_IN_FLOAT32 = ("float32", "bfloat16", "float16")

Table = dict[tuple[str, str], tf.Tensor]
"""Values by key and slice, for SaveV2. The slice is empty for a whole variable."""


class State:
    """The variables of a training. `io_device` reads and writes the files. If it is None, the CPU of this process does."""

    def __init__(
        self, model: keras.Model, optimizer: keras.optimizers.Optimizer, *, workers: Workers, io_device: str | None = None
    ) -> None:
        self._checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        self._variables = model.variables, optimizer.variables
        self._workers = workers
        self._host = io_device or "/device:CPU:0"
        self._options = tf.train.CheckpointOptions(experimental_io_device=io_device)
        differing = [v for v in model.non_trainable_variables if v.dtype in EXACT_IN_FLOAT32]
        self._differing = differing if workers.devices > 1 else []

    @property
    def differs_by_device(self) -> bool:
        """Whether devices may hold different values of a variable, such as a running average."""
        return bool(self._differing)

    def size(self) -> int:
        """The size of all variables in bytes."""
        return sum(bytes_of(variable) for variables in self._variables for variable in variables)

    def settle(self) -> None:
        """Copies variables that are not weights, such as running averages, from the first device to every device.

        During training each device has its own values. Checkpoints and measurements need one value.
        """
        if not self._differing:
            return
        values = np.concatenate([np.ravel(variable.numpy()).astype(np.float32) for variable in self._differing])
        first = self._workers.total(values if self._workers.rank == 0 else np.zeros_like(values))
        start = 0
        for variable in self._differing:
            size = math.prod(variable.shape)
            variable.assign(first[start : start + size].reshape(variable.shape))
            start += size

    def part_to_save(self, directory: Path, *, room: int) -> Part:
        """This worker's part of a checkpoint. Every worker reads, because reading mirrored variables is a collective. Only the chief
        writes."""
        self.settle()
        with peers(self._workers.rank):
            table = self._read()
        if self._workers.rank:
            table = {}
        copied = sum(value.shape.num_elements() * value.dtype.size for value in table.values()) <= room
        if copied:
            table = self._copy(table)
        return Part(copied, partial(self._write, table, directory), lambda _: [])

    def rescue(self, directory: Path) -> Part:
        """The whole state as a part, without a collective. Call it only if the state is the same on all devices."""
        return Part(False, partial(self._write, self._read(), directory), lambda _: [])

    def load(self, directory: Path) -> None:
        try:
            with peers(self._workers.rank):
                self._checkpoint.read(str(directory / PREFIX), options=self._options).assert_consumed()
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise misfit_error(directory, one_line(error)) from error
        except STORAGE_ERRORS as error:
            raise StorageUnavailable(f"checkpoint storage {directory}: {one_line(error)}") from error
        except DAMAGE as error:
            raise StorageUnavailable(f"checkpoint {directory} is not as it was verified: {one_line(error)}") from error

    def _copy(self, table: Table) -> Table:
        with tf.device(self._host):  # tensors of strings need no copy, because they cannot change
            return {k: value if value.dtype == tf.string else tf.raw_ops.DeepCopy(x=value) for k, value in table.items()}

    def _read(self) -> Table:
        with tf.device(self._host):
            return compat.checkpoint_tensors(self._checkpoint)

    def _write(self, table: Table, directory: Path) -> tuple[list[str], None]:
        """Writes the values. Returns the names of the files. Raises StorageUnavailable."""
        if not table:
            return [], None
        keys, pieces = zip(*table, strict=True)
        try:
            with tf.device(self._host):
                prefix = str(directory / PREFIX)
                tf.raw_ops.SaveV2(prefix=prefix, tensor_names=keys, shape_and_slices=pieces, tensors=list(table.values()))
        except STORAGE_ERRORS as error:
            raise StorageUnavailable(f"checkpoint storage {directory}: {one_line(error)}") from error
        return sorted(path.name for path in directory.glob(f"{PREFIX}.*")), None


def load_model(model: keras.Model, directory: Path) -> None:
    """Reads the model from a checkpoint, but not the optimizer, because the layout of its state depends on the strategy."""
    try:
        tf.train.Checkpoint(model=model).read(str(directory / PREFIX)).expect_partial().assert_existing_objects_matched()
    except (AssertionError, ValueError, *DAMAGE) as error:
        raise BadConfiguration(f"checkpoint {directory} does not fit the model: {one_line(error)}") from error


def bytes_of(variable: keras.Variable) -> int:
    size: int = math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
    return size
