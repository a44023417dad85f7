"""The state of an object as a list of JSON and blocks of bytes: what a file holds, and what a checksum compares.

A state may have numbers, text, bytes, lists, tuples, dicts, NumPy arrays and dense tensors. Reading never runs code.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster_contract.errors import CheckpointDamaged, UserError
from muster_trainer.snapshots.payload import pack_list, starts_of, unpack_list

_PLAIN = (type(None), bool, int, float, str)


@dataclass
class Packed:
    """A state. `entry` is JSON, and refers to `blocks` by their numbers."""

    entry: Any = None
    blocks: list[bytes | memoryview] = field(default_factory=list)

    @property
    def digest(self) -> str:
        sha256 = hashlib.sha256(json.dumps(self.entry).encode())
        for block in self.blocks:
            sha256.update(block)
        return sha256.hexdigest()


def pack(state: object, name: str, *, copies: bool = False) -> Packed:
    """Packs the state of the object `name`. With `copies`, later changes of the state do not matter. Raises UserError."""
    packed = Packed()
    packed.entry = _encode(state, name, packed.blocks)
    if copies:
        packed.blocks = [bytes(block) for block in packed.blocks]
    return packed


def unpack(packed: Packed) -> Any:
    return _decode(packed.entry, packed.blocks)


def write(path: Path, states: Mapping[str, Packed]) -> None:
    """Writes states by their names into one file. Raises OSError."""
    listing = [[name, each.entry, [len(block) for block in each.blocks], each.digest] for name, each in states.items()]
    head = pack_list(listing)
    blocks = [block for each in states.values() for block in each.blocks]
    with path.open("wb") as file:
        file.write(head)
        for start, block in zip(starts_of(map(len, blocks), after=len(head)), blocks, strict=False):
            file.seek(start)
            file.write(block)


def read(path: Path) -> dict[str, tuple[Packed, str]]:
    """The states in a file that `write` has written, each with its digest. Raises OSError and CheckpointDamaged."""
    content = memoryview(path.read_bytes())
    try:
        listing, size = unpack_list(content)
        sizes = [length for _, _, lengths, _ in listing for length in lengths]
        starts = iter(starts_of(sizes, after=size))
        return {
            name: (Packed(entry, [content[(start := next(starts)) : start + length] for length in lengths]), digest)
            for name, entry, lengths, digest in listing
        }
    except (ValueError, TypeError) as error:
        raise CheckpointDamaged(f"{path.name} is no file of registered states: {error}") from None


def _encode(value: object, where: str, blocks: list[bytes | memoryview]) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bytes):
        return {"bytes": _add(blocks, value)}
    if isinstance(value, Mapping):
        return {"dict": [[_key(key, where), _encode(each, f"{where}[{key!r}]", blocks)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": _items(value, where, blocks)}
    if "torch" in sys.modules:
        from muster_training import tensors

        if (block := tensors.block_of(value, where)) is not None:
            dtype, shape, content = block
            return {"tensor": [dtype, shape, _add(blocks, content)]}
    if "numpy" in sys.modules:
        import numpy as np

        if isinstance(value, np.generic) and type(value.item()) in _PLAIN:
            return value.item()
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return {"array": [value.dtype.str, list(value.shape), _add(blocks, value.tobytes())]}
    raise UserError(
        f"register: {where} is a {type(value).__name__}, which cannot be saved; a state may have numbers, text, bytes, lists, dicts, "
        "arrays and tensors"
    )


def _items(values: Iterable[object], where: str, blocks: list[bytes | memoryview]) -> list[Any]:
    return [_encode(each, f"{where}[{number}]", blocks) for number, each in enumerate(values)]


def _key(key: object, where: str) -> object:
    if type(key) not in _PLAIN:
        raise UserError(f"register: {where} has the key {key!r:.100}, which cannot be saved; use text or whole numbers")
    return key


def _add(blocks: list[bytes | memoryview], content: bytes | memoryview) -> int:
    blocks.append(content)
    return len(blocks) - 1


def _decode(entry: Any, blocks: list[bytes | memoryview]) -> Any:
    if not isinstance(entry, dict):
        return entry
    [(kind, content)] = entry.items()
    match kind:
        case "dict":
            return {key: _decode(each, blocks) for key, each in content}
        case "list":
            return [_decode(each, blocks) for each in content]
        case "tuple":
            return tuple(_decode(each, blocks) for each in content)
        case "bytes":
            return bytes(blocks[content])
        case "array":
            import numpy as np

            dtype, shape, number = content
            return np.frombuffer(bytearray(blocks[number]), dtype=np.dtype(dtype)).reshape(shape)
        case "tensor":
            from muster_training import tensors

            dtype, shape, number = content
            return tensors.tensor_of(dtype, shape, blocks[number])
    raise CheckpointDamaged(f"a registered state has the unknown kind {kind!r:.100}")
