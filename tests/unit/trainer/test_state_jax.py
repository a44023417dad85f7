"""The state of JAX's training in the files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_contract.events import CommitReason
from muster_trainer.checkpoint import Manifest, files
from muster_trainer.jax import state

pytestmark = pytest.mark.jax
TREE = {
    "dense": {"weight": jnp.arange(12, dtype=jnp.float32).reshape(3, 4), "bias": jnp.zeros(4, jnp.bfloat16)},
    "scalars": (jnp.int32(7), jnp.bool_(True), jnp.float16(0.5)),
    "empty": jnp.zeros((0, 3)),
    "eight": jnp.array([1.5, -2], jnp.float8_e4m3fn),
}


def saved(directory: Path, tree: Any, *, world: int = 1, entries: Any = None) -> Path:
    """A checkpoint of `tree` that `world` ranks wrote."""
    directory.mkdir(exist_ok=True)
    table = state.table_of(tree, "model.")
    parts = [state.part_to_save(directory, table, rank=rank, world=world, room=1 << 30, copied=False) for rank in range(world)]
    written = [part.write() for part in parts]
    held = [details for _, details in written] if entries is None else entries
    names = [name for names, _ in written for name in names] + parts[0].finish(held)
    listing = {name: {"bytes": files.size(directory / name), "sha256": files.sha256(directory / name)} for name in names}
    (directory / "manifest.json").write_bytes(Manifest(1, 0, 0, 1, 1, "JAX", 0, {}, {}, CommitReason.FINAL, "now", listing).to_bytes())
    return directory


@pytest.mark.parametrize("world", [1, 3])
def test_any_number_of_ranks_restores_every_array_bit_for_bit(tmp_path: Path, world: int) -> None:
    restored = state.load(saved(tmp_path / "one", TREE, world=world), TREE, "model.")
    assert jax.tree.structure(restored) == jax.tree.structure(TREE)
    for before, after in zip(jax.tree.leaves(TREE), jax.tree.leaves(restored), strict=True):
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert np.asarray(before).tobytes() == after.tobytes()


def test_any_reader_of_safetensors_opens_the_files(tmp_path: Path) -> None:
    import safetensors

    with safetensors.safe_open(saved(tmp_path / "one", TREE) / "rank-00000.safetensors", framework="flax") as opened:
        assert "model.dense.weight" in opened.keys()  # noqa: SIM118 (it is no mapping)
        assert np.array_equal(opened.get_tensor("model.dense.weight"), TREE["dense"]["weight"])


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({**TREE, "more": jnp.zeros(1)}, r"model\.more"),
        ({"dense": TREE["dense"]}, "which the job does not have"),
        ({**TREE, "empty": jnp.zeros((0, 4))}, "has the shape"),
        ({**TREE, "eight": jnp.zeros(2)}, "the job's float32"),
    ],
)
def test_an_array_that_does_not_fit_the_model_is_refused_by_name(tmp_path: Path, tree: Any, reason: str) -> None:
    with pytest.raises(BadConfiguration, match=reason):
        state.load(saved(tmp_path / "one", TREE), tree, "model.")


def test_a_value_that_cannot_be_stored_is_refused_by_name() -> None:
    with pytest.raises(BadConfiguration, match=r"model\.key: key<fry>"):
        state.table_of({"key": jax.random.key(0)}, "model.")
    with pytest.raises(BadConfiguration, match="have one name"):
        state.table_of({"a": {"b": jnp.zeros(1)}, "a.b": jnp.zeros(1)}, "model.")


def test_a_truncated_file_or_a_link_is_an_error_of_the_storage(tmp_path: Path) -> None:
    directory = saved(tmp_path / "one", TREE)
    path = directory / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StorageUnavailable, match="ends too early"):
        state.load(directory, TREE, "model.")
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(StorageUnavailable):
        state.load(directory, TREE, "model.")


def test_an_index_that_names_another_file_is_refused(tmp_path: Path) -> None:
    held = [["model.dense.bias", "float32", [4], [0], [4], "../outside", 0]]
    with pytest.raises(BadConfiguration, match="outside"):
        state.load(saved(tmp_path / "one", TREE, entries=[json.loads(json.dumps(held))]), TREE, "model.")


def test_a_copy_is_made_only_if_there_is_room(tmp_path: Path) -> None:
    table = state.table_of(TREE, "model.")
    assert state.part_to_save(tmp_path, table, rank=0, world=1, room=1 << 30, copied=True).copied
    assert not state.part_to_save(tmp_path, table, rank=0, world=1, room=0, copied=True).copied
