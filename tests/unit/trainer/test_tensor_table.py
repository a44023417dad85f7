"""The parts of a table of tensors that each rank writes, and reading the table in other parts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.errors import StorageUnavailable
from muster_trainer.checkpoint import files
from muster_trainer.checkpoint.tensor_files import Chunk, fill, parse_index
from muster_trainer.training import tensor_table
from muster_trainer.training.tensor_table import Box

WHOLE = np.arange(63, dtype=np.float32).reshape(9, 7)
CUTS = st.lists(st.integers(1, 8), max_size=3, unique=True).map(sorted)


def rows(name: str, cuts: list[int]) -> list[Box]:
    """The boxes of `WHOLE` between these rows."""
    edges = [0, *cuts, 9]
    return [Box(name, "float32", (9, 7), (first, 0), (end - first, 7)) for first, end in pairwise(edges)]


def test_each_box_is_written_once_and_the_shares_are_even() -> None:
    shared = [Box.whole(f"shared-{number}", "float32", (10,)) for number in range(6)]
    shards = rows("cut", [3, 6])
    boxes_by_rank = [[*shared, shard] for shard in shards]
    shares = tensor_table.share_out(boxes_by_rank)
    written = [box for share in shares for box in share]
    assert sorted(box.key for box in written) == sorted(box.key for box in [*shared, *shards])
    assert all(box in boxes for share, boxes in zip(shares, boxes_by_rank, strict=True) for box in share)
    assert {sum(box.nbytes for box in share) for share in shares} == {3 * 7 * 4 + 2 * 10 * 4}


def fill_rows(file: BinaryIO, _dtype: str, chunk: Chunk, offsets: tuple[int, ...], target: np.ndarray) -> None:
    values = np.empty(chunk.shape, np.float32)
    fill(file, chunk, chunk.start, values.reshape(-1).view(np.uint8).data)
    target[...] = values[tuple(slice(offset, offset + size) for offset, size in zip(offsets, target.shape, strict=True))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table")


@given(written=CUTS, first=st.integers(0, 8), data=st.data())
def test_a_table_is_read_in_any_boxes(folder: Path, written: list[int], first: int, data: st.DataObject) -> None:
    chunks: list[Any] = []
    for rank, box in enumerate(rows("one", written)):
        own = {box: WHOLE[box.offsets[0] : box.offsets[0] + box.sizes[0]]}
        part = tensor_table.part(
            folder, tensor_table.file_of(rank), own, lambda values: values.reshape(-1).view(np.uint8).data, copied=True
        )
        chunks.append(json.loads(json.dumps(part.write()[1])))
    part.finish(chunks)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    stored = parse_index(files.read(folder / "index.json", limit=1 << 20), sizes, dtypes={"float32"}, framework="numpy")
    end, column = data.draw(st.integers(first + 1, 9)), data.draw(st.integers(0, 6))
    target = np.zeros((end - first, 7 - column), np.float32)
    tensor_table.read(folder, [(stored["one"], (first, column), target)], fill_rows)
    assert np.array_equal(target, WHOLE[first:end, column:])


def test_a_box_that_several_ranks_have_written_is_listed_once(tmp_path: Path) -> None:
    """As in a rescue by several ranks, which do not share out what they all have."""
    box, chunks = Box.whole("one", "float32", (9, 7)), []
    for rank in (2, 1):
        file = tensor_table.file_of(rank)
        part = tensor_table.part(tmp_path, file, {box: WHOLE}, lambda values: values.reshape(-1).view(np.uint8).data, copied=True)
        chunks.append(part.write()[1])
    part.finish(chunks)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    stored = parse_index((tmp_path / "index.json").read_bytes(), sizes, dtypes={"float32"}, framework="numpy")
    assert [chunk.file for chunk in stored["one"].chunks] == ["rank-00002.safetensors"]


def test_a_file_that_is_gone_is_an_error_of_the_storage(tmp_path: Path) -> None:
    box = Box.whole("one", "float32", (9, 7))
    part = tensor_table.part(tmp_path, "one.safetensors", {box: WHOLE}, lambda values: values.reshape(-1).view(np.uint8).data, copied=True)
    part.finish([part.write()[1]])
    stored = parse_index((tmp_path / "index.json").read_bytes(), {"one.safetensors": 1 << 20}, dtypes={"float32"}, framework="numpy")
    (tmp_path / "one.safetensors").unlink()
    with pytest.raises(StorageUnavailable):
        tensor_table.read(tmp_path, [(stored["one"], (0, 0), np.zeros((9, 7), np.float32))], fill_rows)
