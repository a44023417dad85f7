"""The parameters and the state of the optimizer as one flat table of tensors, and the files of this table.

Names are `model.<path>` and `optimizer.<path>`. The path is that of the array in the nested structure. Every process holds the whole
table, and writes a part of about the same size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np
from jax import tree_util

from muster_contract.errors import BadConfiguration
from muster_trainer.checkpoint import tensor_files
from muster_trainer.checkpoint.tensor_files import ITEM_BYTES, Chunk, Stored
from muster_trainer.jax.model import Tree
from muster_trainer.training import tensor_table
from muster_trainer.training.engine import Part
from muster_trainer.training.tensor_table import Box

FRAMEWORK = f"JAX {jax.__version__}"
DTYPES = frozenset(name for name in ITEM_BYTES if hasattr(jax.numpy, name) or name in ("bool", "complex64", "complex128"))
"""The types of JAX's arrays that a checkpoint can hold."""


def named_leaves(tree: Tree, prefix: str) -> dict[str, Any]:
    """The leaves of a nested structure by name. Raises BadConfiguration if two have the same name."""
    leaves, _ = tree_util.tree_flatten_with_path(tree)
    named = {prefix + tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    if len(named) < len(leaves):
        raise BadConfiguration(f"two arrays below {prefix or 'the model'} have one name; use names without dots")
    return named


def table_of(tree: Tree, prefix: str) -> dict[str, jax.Array]:
    """The arrays of a nested structure by name. Raises BadConfiguration if one cannot be stored."""
    table = named_leaves(tree, prefix)
    for name, leaf in table.items():
        if not isinstance(leaf, jax.Array) or str(leaf.dtype) not in DTYPES:
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise BadConfiguration(f"{name}: {kind} cannot be stored; a checkpoint holds arrays of {', '.join(sorted(DTYPES))}")
    return table


def fill(like: Tree, arrays: Mapping[str, Any]) -> Tree:
    """A nested structure like `like`, with `arrays` as its leaves, in the order of the leaves of `like`."""
    return tree_util.tree_unflatten(tree_util.tree_structure(like), arrays.values())


def boxes_of(table: Mapping[str, Any]) -> list[Box]:
    """Each array of the table as a box."""
    return [Box.whole(name, str(one.dtype), one.shape) for name, one in table.items()]


def part_to_save(directory: Path, table: Mapping[str, jax.Array], *, rank: int, world: int, room: int, copied: bool) -> Part:
    """This rank's part of the table. If its arrays take at most `room` bytes, the part has them in memory, and the next steps may begin.

    Arrays of JAX never change, so they need no copy. With `copied` they are copied to the host, because the next step reuses their memory.
    """
    boxes = tensor_table.share_out([boxes_of(table)] * world)[rank]
    own = {box: table[box.name].addressable_data(0) for box in boxes}
    fits = sum(box.nbytes for box in boxes) <= room
    if fits and copied:
        own = dict(zip(own, jax.device_get(list(own.values())), strict=True))
    return tensor_table.part(directory, tensor_table.file_of(rank), own, bytes_of, copied=fits)


def load(directory: Path, like: Tree, prefix: str) -> Tree:
    """Reads the arrays below `prefix`, as numpy arrays in a nested structure like `like`.

    Raises BadConfiguration if they do not fit `like`, and StorageUnavailable.
    """
    stored = tensor_files.read_index(directory, dtypes=DTYPES, framework=FRAMEWORK)
    below = {name: one for name, one in stored.items() if name.startswith(prefix)}
    try:
        return fill(like, read(directory, below, table_of(like, prefix)))
    except ValueError as error:
        raise tensor_table.misfit_error(directory, str(error)) from None


def read(directory: Path, stored: Mapping[str, Stored], table: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
    """Reads the arrays of `table`, in its order. Raises ValueError if the checkpoint has other arrays, and StorageUnavailable."""
    tensor_table.check_names_and_shapes(stored, {name: one.shape for name, one in table.items()})
    for name, one in table.items():
        if str(one.dtype) != stored[name].dtype:
            raise ValueError(f"its {name} is {stored[name].dtype}, the job's {one.dtype}")
    arrays = {name: np.empty(one.shape, one.dtype) for name, one in table.items()}
    tensor_table.read(directory, ((stored[name], (0,) * array.ndim, array) for name, array in arrays.items()), _read_chunk)
    return arrays


def _read_chunk(file: BinaryIO, dtype: str, chunk: Chunk, _offsets: tuple[int, ...], target: np.ndarray) -> None:
    """Fills `target` with a whole chunk, because every process reads whole arrays."""
    values = np.empty(chunk.shape, target.dtype)
    tensor_files.fill(file, chunk, chunk.start, bytes_of(values))
    target[...] = values


def bytes_of(array: Any) -> memoryview:
    """The bytes of an array in row-major order, without a copy if the array has that order in the memory of the host."""
    numbers = np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array)
    return numbers.reshape(-1).view(np.uint8).data if numbers.size else memoryview(b"")
