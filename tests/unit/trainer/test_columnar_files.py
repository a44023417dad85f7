"""Parquet and Arrow files: the same samples as in other formats, in bounded memory. A column that does not fit is refused by its name."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_contract.errors import BadConfiguration, TrainerError
from muster_trainer.data.dataset import ArrayDataSet
from muster_trainer.data.files import Column, FileSet, arrow, columnar, open_files
from muster_trainer.data.order import Order
from muster_trainer.tasks.write import write
from tests.support.seeds import seeded_random

FORMS = ("Parquet", "Arrow")
INPUTS, TARGETS = Column("inputs", "float32", (3,)), Column("targets", "int64")
NUMBERS = {"float32": st.floats(width=32, allow_nan=False), "int64": st.integers(-(2**63), 2**63 - 1), "uint8": st.integers(0, 255)}


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def saved(table: pa.Table, path: Path, form: str, *, rows: int | None = None, **options: Any) -> Path:
    """Writes a table in groups of `rows` rows."""
    if form == "Parquet":
        pq.write_table(table, path, row_group_size=rows, **options)
    else:
        with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def opened(path: Path, form: str, *columns: Column) -> FileSet:
    data_set = open_files({"format": form, "train": str(path)}, "train", *(columns or (INPUTS, TARGETS)))
    assert isinstance(data_set, FileSet)
    return data_set


def lists(array: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])


def table_of(rows: int) -> pa.Table:
    return pa.table({"inputs": lists(np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)), "targets": np.arange(rows)})


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_samples_and_their_order_are_those_of_csv_and_arrays(choices: st.DataObject) -> None:
    count, files, width = (choices.draw(st.integers(1, most)) for most in (40, 3, 4))
    shape, dtype = choices.draw(st.sampled_from([(), (width,)])), choices.draw(st.sampled_from(sorted(NUMBERS)))
    flat = choices.draw(st.lists(NUMBERS[dtype], min_size=count * width, max_size=count * width))
    inputs = np.array(flat, dtype=dtype).reshape(count, width)
    inputs = inputs if shape else inputs[:, 0]
    data = ArrayDataSet(inputs, np.arange(count))
    order = Order(seed=choices.draw(st.integers(0, 99)), size=count, batch=7, runs=choices.draw(st.sampled_from([1, 2])))
    names = {"CSV": tuple(f"inputs.{place}" for place in range(width)) if shape else "inputs"}
    sizes: dict[str, Any] = {"_CHUNK": choices.draw(st.integers(1, 200)), "MOST_DECODED": choices.draw(st.integers(200, 2000))}
    with folder() as place, patch.multiple(columnar, **sizes):
        for form in ("CSV", "Arrays", *FORMS):
            written = write(data, place, "train", form=form, files=min(files, count))
            if form in FORMS:  # again, in groups of any size
                for path in written:
                    whole = pq.read_table(path) if form == "Parquet" else pa.ipc.open_file(path).read_all()
                    saved(whole, path, form, rows=choices.draw(st.integers(1, 50)))
            column = Column(names.get(form, "inputs"), dtype, shape)
            data_set = opened(place / f"train-*.{written[0].suffix[1:]}", form, column, TARGETS)
            assert len(data_set) == count
            for step in range(2 * order.steps_per_epoch):
                chosen = order.batch_indices(step)
                same, targets = data_set.batch(chosen)
                assert (same.dtype, same.tobytes()) == (np.dtype(dtype), np.ascontiguousarray(inputs[chosen]).tobytes())
                assert targets.tolist() == chosen.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_columns_are_chosen_as_in_csv(form: str, tmp_path: Path) -> None:
    table = pa.table({"b": [1.0, 2.0], "label": [7, 8], "note": ["x", "y"], "a": [3, 4]})
    path = saved(table, tmp_path / "train", form)
    inputs, label = opened(path, form, Column(("a", "b"), "float32", (2,)), Column("label", "int64")).batch([1, 0])
    assert inputs.tolist() == [[4, 2], [3, 1]]
    assert label.tolist() == [8, 7]
    saved(table.drop_columns("note"), path, form)
    inputs, _ = opened(path, form, Column((), "float32", (2,)), Column("label", "int64")).batch([1, 0])
    assert inputs.tolist() == [[2, 4], [1, 3]]
    saved(table.rename_columns(["b.x", "label", "note", "b"]), path, form)
    inputs, _ = opened(path, form, Column("b.x"), Column("label", "int64")).batch([1])
    assert inputs.tolist() == [2]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), [4, 5, 6]),  # of any length, and all of the same
        (pa.array([np.float32([1, 2, 3]).tobytes(), np.float32([4, 5, 6]).tobytes()]), [4, 5, 6]),
        (pa.array([np.float32([1, 2, 3]).tobytes(), np.float32([4, 5, 6]).tobytes()], pa.binary(12)), [4, 5, 6]),
        (pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int8(), 3)), [4, 5, 6]),
        (pa.array([[True, False, True], [False, True, True]], pa.list_(pa.bool_(), 3)), [0, 1, 1]),
    ],
    ids=["list", "binary", "fixed-binary", "int8", "bool"],
)
def test_a_tensor_may_be_a_list_or_raw_bytes(column: pa.Array, expected: list[float], form: str, tmp_path: Path) -> None:
    path = saved(pa.table({"inputs": column, "targets": [1, 2]}), tmp_path / "train", form)
    assert opened(path, form)[1][0].tolist() == expected


def test_feather_is_read_compressed_or_not(tmp_path: Path) -> None:
    for compression in ("lz4", "zstd", "uncompressed"):
        pyarrow.feather.write_feather(table_of(9), tmp_path / "a.feather", compression=compression)
        assert opened(tmp_path / "a.feather", "Arrow").batch([8, 2])[1].tolist() == [8, 2]


THREE = [[1.0, 2.0, 3.0]] * 2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (THREE, [1, None], "{path}, record 2: column targets has no value"),
        ([[1.0, 2.0, 3.0], [1.0, None, 3.0]], [1, 2], "{path}, record 2: column inputs has no value"),
        ([[1.0, 2.0, 3.0], None], [1, 2], "{path}, record 2: column inputs has no value"),
        ([[1.0, 2.0, 3.0], [1.0, 2.0]], [1, 2], "{path}, record 2: column inputs has 2 numbers, and 3 are needed"),
        ([b"123456789012", b"1"], [1, 2], "{path}, record 2: column inputs has 1 bytes, and 12 are needed"),
        ([{"a": 1}] * 2, [1, 2], "{path}: column inputs is of struct<a: int64>, and float32 is needed"),
        ([[[1.0] * 3]] * 2, [1, 2], "{path}: column inputs is of list<"),
        (["a", "b"], [1, 2], "{path}: column inputs is of string, and float32 is needed"),
        (THREE, [0.5, 1], "{path}: column targets is of double, and int64 is needed"),
        (THREE, pa.array([1, 2**63], pa.uint64()), "{path}, record 2: column targets has 9223372036854775808, and int64 is needed"),
        (THREE, pa.array(["a", "b"]).dictionary_encode(), "{path}: column targets is of dictionary<"),
        (pa.array([[1.0, 2.0]] * 2, pa.list_(pa.float32(), 2)), [1, 2], "{path} has 2 numbers in a row of column inputs, where 3"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_in_one_line(inputs: Any, targets: Any, message: str, form: str, tmp_path: Path) -> None:
    path = saved(pa.table({"inputs": inputs, "targets": targets}), tmp_path / "train", form)
    with pytest.raises(BadConfiguration) as refusal:
        opened(path, form)
    assert message.format(path=path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("form", FORMS)
def test_files_that_differ_or_lack_a_column_are_refused(form: str, tmp_path: Path) -> None:
    one = table_of(2)
    for other, message in (
        (one.append_column("more", pa.array([1, 2])), "has other columns than"),
        (one.select(["inputs"]), "has other columns than"),
    ):
        saved(one, tmp_path / "train-0", form)
        saved(other, tmp_path / "train-1", form)
        with pytest.raises(BadConfiguration, match=f"train-1 {message} .*train-0"):
            opened(tmp_path / "train-*", form)
    twice = pa.Table.from_arrays([one["inputs"], one["targets"], one["targets"]], names=["inputs", "targets", "targets"])
    with pytest.raises(BadConfiguration, match="several columns targets"):
        opened(saved(twice, tmp_path / "twice", form), form)
    with pytest.raises(BadConfiguration, match=r"'targets'.* inputs"):
        opened(saved(one.select(["inputs"]), tmp_path / "less", form), form)
    with pytest.raises(BadConfiguration, match="no samples"):
        opened(saved(one.slice(0, 0), tmp_path / "empty", form), form)


def varint(number: int) -> bytes:
    """A number in the compact protocol of Thrift."""
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def footer(content: bytes, length: int | None = None) -> bytes:
    return b"PAR1" + content + (len(content) if length is None else length).to_bytes(4, "little") + b"PAR1"


BOMB = b"\x15\x04" + b"\x19\xfc" + varint(2**31 - 1)  # version 2, then a schema that is a list of 2**31 - 1 structs
DEEP = b"\x15\x04" + b"\x1c" * 100_000  # structs in structs


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("Parquet", footer(BOMB), "cannot be read: .*damaged"),
        ("Parquet", footer(BOMB + bytes(1 << 20)), "cannot be read: .*damaged"),
        ("Parquet", footer(DEEP), "cannot be read: .*damaged"),
        ("Parquet", footer(b"", 2**32 - 1), ".*4294967295 .*16777216"),
        ("Parquet", footer(b"", 99), "cannot be read: .*damaged"),
        ("Parquet", b"", "is not a complete Parquet file"),
        ("Parquet", b"PAR1", "is not a complete Parquet file"),
        ("Parquet", b"a,b\n1,2\n" * 9, "is not a complete Parquet file"),
        ("Arrow", b"", "is not an Arrow file"),
        ("Arrow", b"FEA1" + bytes(99), "is not an Arrow file"),
        ("Arrow", b"ARROW1", "cannot be read: .*damaged"),
        ("Arrow", b"ARROW1\0\0" + bytes(99), "is not a complete Arrow file"),
        ("Arrow", b"ARROW1\0\0" + b"\xff" * 99 + b"ARROW1", "cannot be read: .*damaged"),
    ],
)
def test_hostile_files_are_refused_with_their_path(form: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train"
    path.write_bytes(content)
    with pytest.raises(BadConfiguration, match=f"{path} {message}"):
        opened(path, form)


def test_an_arrow_stream_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pa.ipc.new_stream(tmp_path / "train", table_of(2).schema) as writer:
        writer.write_table(table_of(2))
    with pytest.raises(BadConfiguration, match=r"is not an Arrow file; .*pyarrow\.ipc\.new_file"):
        opened(tmp_path / "train", "Arrow")


@pytest.mark.parametrize("form", FORMS)
def test_a_file_with_changed_bytes_is_read_or_refused_by_name(form: str, tmp_path: Path) -> None:
    draw: random.Random = seeded_random()
    compression = "zstd"
    whole = saved(table_of(200), tmp_path / "train", form, rows=50, compression=compression).read_bytes()
    path = tmp_path / "damaged"
    refusals = 0
    for _ in range(150):
        content = bytearray(whole)
        for place in draw.sample(range(len(content)), 3):
            content[place] = draw.randrange(256)
        path.write_bytes(content)
        refusal = str(path)
        try:
            data_set = opened(path, form)
            data_set.batch(range(min(len(data_set), 500)))
        except TrainerError as error:
            refusals, refusal = refusals + 1, str(error)
        assert str(path) in refusal
    assert refusals > 50


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_truncated_during_use_is_an_error_until_it_is_whole(form: str, tmp_path: Path) -> None:
    path = saved(table_of(5000), tmp_path / "train", form, rows=1000)
    data_set = opened(path, form)
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(whole) // 2)
    with pytest.raises(BadConfiguration, match=f"{path} is truncated"):
        data_set.batch([4900])
    with path.open("r+b") as file:
        file.write(whole)
    assert data_set.batch([4900])[1].tolist() == [4900]


def test_the_checksums_of_written_parquet_files_are_verified(tmp_path: Path) -> None:
    data = ArrayDataSet(np.arange(3000, dtype=np.float32).reshape(-1, 3), np.arange(1000))
    with patch.object(pq, "ParquetWriter", lambda path, schema, **options: WRITER(path, schema, compression="none", **options)):
        (path,) = write(data, tmp_path, "train", form="Parquet", files=1)
    content = bytearray(path.read_bytes())
    place = content.find(np.float32([2001, 2002, 2003]).tobytes())
    assert place > 0
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadConfiguration, match=f"{path} .*CRC"):
        opened(path, "Parquet").batch([667])


WRITER = pq.ParquetWriter


def test_more_rows_than_fit_into_the_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = pa.table({"x": np.zeros(3_000_000, np.int8), "y": np.zeros(3_000_000, np.int8)})
    path = saved(zeros, tmp_path / "zeros", "Parquet")
    monkeypatch.setattr(columnar, "_ROWS_PER_BYTE", 100)
    with pytest.raises(BadConfiguration, match="3000000 rows"):
        opened(path, "Parquet", Column("x"), Column("y"))


def test_a_too_large_record_batch_is_refused_and_a_row_group_is_read(tmp_path: Path) -> None:
    with patch.multiple(columnar, MOST_DECODED=20_000, _CHUNK=4000), patch.object(arrow, "MOST_DECODED", 20_000):
        path = saved(table_of(5000), tmp_path / "train", "Arrow")
        with pytest.raises(BadConfiguration, match=r"5000 rows.* 1000 .*max_chunksize=1000"):
            opened(path, "Arrow")
        data_set: Any = opened(saved(table_of(5000), path, "Parquet"), "Parquet")
        chosen = np.random.default_rng(0).permutation(5000)
        for begin in range(0, 5000, 500):
            assert data_set.batch(chosen[begin : begin + 500])[1].tolist() == chosen[begin : begin + 500].tolist()
            assert 0 < data_set._bytes <= 20_000
            assert data_set._bytes == sum(array.nbytes for arrays in data_set._chunks.values() for array in arrays)


@pytest.mark.parametrize("form", FORMS)
def test_threads_may_read_at_once(form: str, tmp_path: Path) -> None:
    data_set = opened(saved(table_of(2000), tmp_path / "train", form, rows=100), form)
    chosen = [np.random.default_rng(seed).integers(0, 2000, 50) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for indices, (inputs, targets) in zip(chosen, pool.map(data_set.batch, chosen), strict=True):
            assert targets.tolist() == indices.tolist()
            assert inputs[:, 0].tolist() == (indices * 3).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_pandas_is_not_needed(form: str, tmp_path: Path) -> None:
    path = saved(table_of(2), tmp_path / "train", form)
    settings = {"format": form, "train": str(path)}
    script = f"""
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without())
from muster_trainer.data.files import Column, open_files
print(open_files({settings}, "train", Column("inputs", "float32", (3,)), Column("targets", "int64")).batch([1])[0].tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[[3.0, 4.0, 5.0]]\n", done.stderr


@pytest.mark.parametrize("form", FORMS)
def test_the_error_without_pyarrow_names_the_package_to_install(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(table_of(2), tmp_path / "train", form)
    monkeypatch.setitem(sys.modules, "muster_trainer.data.files.arrow", None)
    with pytest.raises(BadConfiguration, match=f"{form} .*pyarrow: .*pip install pyarrow"):
        opened(path, form)
