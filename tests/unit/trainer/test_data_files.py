"""Samples in files: written samples are read, and damaged files are refused by name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_contract.errors import BadConfiguration
from muster_trainer.data.files import FORMATS, Column, FileSet, open_files
from muster_trainer.data.files.cache import cached
from muster_trainer.data.files.opened import OpenFile
from muster_trainer.data.files.tfrecord import masked_crc
from muster_trainer.tasks.write import write

SHAPES = st.sampled_from([(), (1,), (3,), (2, 2)])
DTYPES = st.sampled_from(["float32", "float64", "int64", "int32", "uint8"])


class Samples:
    """Map-style, from two arrays."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.inputs[index], self.targets[index]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def numbers(count: int, shape: tuple[int, ...], dtype: str, *, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype == "float32":
        return random.normal(size=(count, *shape)).astype(np.float32)
    if dtype == "float64":
        return random.normal(size=(count, *shape)).astype(np.float32).astype(np.float64)  # TFRecords hold no more
    low, high = (0, 256) if dtype == "uint8" else (-(2**31), 2**31)
    return random.integers(low, high, size=(count, *shape)).astype(dtype)


def column(part: str, array: np.ndarray, form: str) -> Column:
    shape = array.shape[1:]
    names = tuple(f"{part}.{place}" for place in range(int(np.prod(shape)))) if form == "CSV" and shape else part
    return Column(names, str(array.dtype), shape)


def opened(place: Path, data: Samples, form: str) -> FileSet:
    settings = {"format": form, "train": str(place / "train-*")}
    data_set = open_files(settings, "train", column("inputs", data.inputs, form), column("targets", data.targets, form))
    assert data_set is not None
    return data_set


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(FORMATS), st.integers(1, 40), st.integers(1, 5), SHAPES, SHAPES, DTYPES, DTYPES, st.integers(0, 1000))
def test_written_samples_are_read_in_any_order_from_any_number_of_files(
    form: str, count: int, files: int, shape: tuple[int, ...], other: tuple[int, ...], dtype: str, kind: str, seed: int
) -> None:
    data = Samples(numbers(count, shape, dtype, seed=seed), numbers(count, other, kind, seed=seed + 1))
    with folder() as place:
        write(data, place, "train", form=form, files=min(files, count))
        data_set = opened(place, data, form)
        indices = np.random.default_rng(seed).integers(0, count, size=7)
        inputs, targets = data_set.batch(indices)
        assert len(data_set) == count
        assert inputs.dtype == dtype
        assert targets.dtype == kind
        np.testing.assert_array_equal(inputs, data.inputs[indices])
        np.testing.assert_array_equal(targets, data.targets[indices])
        one = data_set[int(indices[0])]
        np.testing.assert_array_equal(one[0], data.inputs[indices[0]])


@given(st.binary(max_size=700))
def test_the_checksum_matches_its_definition(data: bytes) -> None:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ 0x82F63B78 * (state & 1)
    crc = state ^ 0xFFFFFFFF
    assert masked_crc(data) == ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


DATA = Samples(numbers(12, (3,), "float32"), numbers(12, (), "int64"))


def read_all(place: Path, form: str) -> tuple[np.ndarray, np.ndarray]:
    data_set = opened(place, DATA, form)
    inputs, targets = data_set.batch(np.arange(len(data_set)))
    return inputs, targets


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(FORMATS), st.data())
def test_a_truncated_file_is_refused_or_has_the_samples_before_the_cut(form: str, choices: st.DataObject) -> None:
    with folder() as place:
        (path,) = write(DATA, place, "train", form=form, files=1)
        content = path.read_bytes()
        path.write_bytes(content[: choices.draw(st.integers(0, len(content) - 1))])
        try:
            inputs, _ = read_all(place, form)
        except BadConfiguration as error:
            refusal = str(error)
            inputs = np.empty((0, 3))
        else:
            refusal = str(path)
        assert str(path) in refusal
        whole = len(inputs) - (form == "CSV")  # the last number of a line may have lost digits
        np.testing.assert_array_equal(inputs[: max(whole, 0)], DATA.inputs[: max(whole, 0)])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_tfrecord_with_a_flipped_bit_is_refused(choices: st.DataObject) -> None:
    with folder() as place:
        (path,) = write(DATA, place, "train", form="TFRecord", files=1)
        content = bytearray(path.read_bytes())
        content[choices.draw(st.integers(0, len(content) - 1))] ^= 1 << choices.draw(st.integers(0, 7))
        path.write_bytes(content)
        with pytest.raises(BadConfiguration, match=str(path)):
            read_all(place, "TFRecord")


def test_tensorflow_and_muster_read_the_files_of_each_other(tmp_path: Path) -> None:
    import tensorflow as tf

    (path,) = write(DATA, tmp_path, "train", form="TFRecord", files=1)
    features = {"inputs": tf.io.FixedLenFeature((3,), tf.float32), "targets": tf.io.FixedLenFeature((), tf.int64)}
    read = [tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(str(path))]
    np.testing.assert_array_equal(np.stack([one["inputs"].numpy() for one in read]), DATA.inputs)
    np.testing.assert_array_equal([one["targets"].numpy() for one in read], DATA.targets)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for inputs, target in zip(DATA.inputs, DATA.targets, strict=True):
            raw = tf.train.Feature(bytes_list=tf.train.BytesList(value=[inputs.tobytes()]))
            whole = tf.train.Feature(int64_list=tf.train.Int64List(value=[target]))
            example = tf.train.Example(features=tf.train.Features(feature={"inputs": raw, "targets": whole}))
            writer.write(example.SerializeToString())
    again, targets = read_all(tmp_path, "TFRecord")
    np.testing.assert_array_equal(again, DATA.inputs)
    np.testing.assert_array_equal(targets, DATA.targets)


def lines(*rows: str) -> Callable[[Path], None]:
    return lambda place: (place / "train-0.csv").write_text("\n".join(rows) + "\n") and None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("inputs.0,inputs.1,targets", "1,2,3"), "'inputs.2'.* inputs.0, inputs.1, targets"),
        (("inputs.0,inputs.1,inputs.2,targets", "1,2,3,4", "1,2,3"), "record 2: .* 3 .* 4"),
        (("inputs.0,inputs.1,inputs.2,targets", "1,2,x,4"), "record 1: column inputs.2 .*'x'.* float32"),
        (("inputs.0,inputs.1,inputs.2,targets", "1,2,3,4.5"), "column targets .*'4.5'.* int64"),
        (("inputs.0,inputs.1,inputs.2,targets", '1,2,"3"\r5,4'), "record 1: it is damaged: new-line"),
        (("inputs.0,inputs.1,inputs.2,targets", f'1,2,"{"3" * 200_000}",4'), "record 1: it is damaged: field larger"),
        (('inputs.0,"inputs.1"\rx,inputs.2,targets', "1,2,3,4"), "its first line is damaged"),
        (("inputs.0,inputs.1,inputs.2,targets",), "no samples"),
        (("",), "is empty"),
    ],
)
def test_a_csv_file_that_does_not_fit_is_refused_by_line_and_column(rows: tuple[str, ...], message: str, tmp_path: Path) -> None:
    lines(*rows)(tmp_path)
    with pytest.raises(BadConfiguration, match=message):
        read_all(tmp_path, "CSV")


def test_csv_may_have_quotes_line_ends_empty_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = '\ufefftargets,"inputs.0",note,inputs.1,inputs.2\r\n4,1,"two\nlines, ""quoted""",2,3\r\n\r\n8,"5",,6,7'
    (tmp_path / "train-0.csv").write_bytes(text.encode())
    inputs, targets = read_all(tmp_path, "CSV")
    assert inputs.tolist() == [[1, 2, 3], [5, 6, 7]]
    assert targets.tolist() == [4, 8]


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (lambda path: np.savez(path, inputs=DATA.inputs), "'targets'.* inputs"),
        (lambda path: np.savez_compressed(path, inputs=DATA.inputs, targets=DATA.targets), "is compressed"),
        (
            lambda path: np.savez(path, inputs=DATA.inputs[:, :2], targets=DATA.targets),
            r"inputs .*\(2,\)",
        ),
        (lambda path: np.savez(path, inputs=DATA.inputs[:5], targets=DATA.targets), "inputs 5, targets 12"),
        (lambda path: np.savez(path, inputs=DATA.inputs, targets=DATA.inputs[:, 0]), "targets .*float32.* int64"),
        (lambda path: path.write_bytes(b"PK"), "not a complete .npz file"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(save: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    save(tmp_path / "train-0.npz")
    with pytest.raises(BadConfiguration, match=message):
        read_all(tmp_path, "Arrays")


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_damaged_arrays_are_read_or_refused(choices: st.DataObject) -> None:
    with folder() as place:
        (path,) = write(DATA, place, "train", form="Arrays", files=1)
        content = bytearray(path.read_bytes())
        for _ in range(choices.draw(st.integers(1, 3))):
            content[choices.draw(st.integers(0, len(content) - 1))] = choices.draw(st.integers(0, 255))
        path.write_bytes(content)
        with suppress(BadConfiguration):
            read_all(place, "Arrays")


HEADER = "{{'descr':'<f4','fortran_order':False,'shape':({},3)}}"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.format(-1), "truncated or damaged"),
        (HEADER.format(2**62), "truncated or damaged"),
        (HEADER.format("9" * 4000), "truncated or damaged"),
        ("(" * 5000, "not an array of numpy"),
        ("-" * 9000 + "1", "not an array of numpy"),
        ("{'descr':(", "not an array of numpy"),
    ],
)
def test_an_array_with_a_hostile_header_is_refused(header: str, message: str, tmp_path: Path) -> None:
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(64)
    (tmp_path / "train-inputs.npy").write_bytes(content)
    np.save(tmp_path / "train-targets.npy", DATA.targets)
    with pytest.raises(BadConfiguration, match=message):
        read_all(tmp_path, "Arrays")


def test_a_pipe_is_refused_without_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train-0.csv")
    with pytest.raises(BadConfiguration, match="is not a file"):
        read_all(tmp_path, "CSV")


def test_each_column_has_its_npy_file_in_the_same_folder(tmp_path: Path) -> None:
    for run in (0, 6):
        np.save(tmp_path / f"train-{run}-inputs.npy", DATA.inputs[run : run + 6])
        np.save(tmp_path / f"train-{run}-targets.npy", DATA.targets[run : run + 6])
    np.testing.assert_array_equal(read_all(tmp_path, "Arrays")[1], DATA.targets)
    (tmp_path / "train-6-targets.npy").unlink()
    with pytest.raises(BadConfiguration, match=r"train-6-targets.npy .*No such file"):
        read_all(tmp_path, "Arrays")


def test_a_tfrecord_that_does_not_fit_is_refused_by_feature(tmp_path: Path) -> None:
    write(DATA, tmp_path, "train", form="TFRecord", files=1)
    other = {"format": "TFRecord", "train": str(tmp_path / "*")}
    with pytest.raises(BadConfiguration, match=r"record 1: .*inputs .*3.* 64"):
        open_files(other, "train", Column("inputs", shape=(64,)), Column("targets", "int64"))
    with pytest.raises(BadConfiguration, match=r"'pixels'.* inputs, targets"):
        open_files(other, "train", Column("pixels", shape=(3,)), Column("targets", "int64"))
    with pytest.raises(BadConfiguration, match=r"feature inputs .*int64"):
        open_files(other, "train", Column("inputs", "int64", (3,)), Column("targets", "int64"))


@pytest.mark.parametrize("form", FORMATS)
def test_a_number_that_is_out_of_range_is_refused(form: str, tmp_path: Path) -> None:
    data = Samples(np.array([[1], [2**40]]), DATA.targets[:2])
    write(data, tmp_path, "train", form=form, files=1)
    assert opened(tmp_path, data, form).batch([0, 1])[0].tolist() == [[1], [2**40]]
    with pytest.raises(BadConfiguration, match=str(2**40)):
        opened(tmp_path, Samples(np.zeros((2, 1), np.int32), data.targets), form).batch([0, 1])


def test_missing_files_are_named_with_the_existing_ones(tmp_path: Path) -> None:
    (tmp_path / "test-0.csv").write_text("a")
    with pytest.raises(BadConfiguration, match=r"data.train: .*/train-\*.* test-0.csv"):
        open_files({"format": "CSV", "train": str(tmp_path / "train-*")}, "train")
    with pytest.raises(BadConfiguration, match=r"/missing .*mount"):
        open_files({"format": "CSV", "train": str(tmp_path / "missing" / "train")}, "train")
    with pytest.raises(BadConfiguration, match=r"data.format: .*TFRecord, CSV, Arrays, Parquet, Arrow.* 'csv'"):
        open_files({"format": "csv", "train": "x"}, "train")
    with pytest.raises(BadConfiguration, match="pattern"):
        open_files({"format": "CSV", "train": str(tmp_path)}, "train", Column("a"), Column("b"))
    assert open_files({"format": "CSV", "train": "x"}, "test") is None


def test_names_of_files_may_refer_to_the_folder_of_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.csv").write_text("x,y\n1,2\n")
    monkeypatch.setenv("MUSTER_INPUT_ROWS", str(tmp_path))
    settings = {"format": "CSV", "train": "$(MUSTER_INPUT_ROWS)/train*.csv"}
    assert len(open_files(settings, "train", Column("x"), Column("y")) or ()) == 1
    with pytest.raises(BadConfiguration, match=r"\$\(MUSTER_INPUT_OTHER\)/train\.csv"):
        open_files({**settings, "train": "$(MUSTER_INPUT_OTHER)/train.csv"}, "train", Column("x"), Column("y"))


def test_inputs_may_be_several_arrays_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", user=DATA.targets, item=DATA.targets + 1, liked=DATA.inputs[:, 0], weight=DATA.inputs[:, 1])
    parts = {"user": Column("user", "int64"), "item": Column("item", "int64")}, Column("liked"), Column("weight")
    data_set = open_files({"format": "Arrays", "train": str(tmp_path / "*.npz")}, "train", *parts)
    assert data_set is not None
    inputs, targets, weights = data_set.batch([3, 1])
    assert inputs["item"].tolist() == (DATA.targets[[3, 1]] + 1).tolist()
    assert targets.tolist() == DATA.inputs[[3, 1], 0].tolist()
    assert weights.tolist() == DATA.inputs[[3, 1], 1].tolist()
    assert data_set[2][0]["user"] == DATA.targets[2]


def test_a_cache_is_decoded_again_only_after_a_file_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write(DATA, tmp_path / "data", "train", form="CSV", files=1)
    cache = tmp_path / "cache"
    first = cached(opened(path.parent, DATA, "CSV"), cache, title="task")
    np.testing.assert_array_equal(first.batch(range(12))[0], DATA.inputs)
    source = opened(path.parent, DATA, "CSV")
    monkeypatch.setattr(source, "arrays", None)
    again = cached(source, cache, title="task")
    np.testing.assert_array_equal(again.batch([5, 3])[1], DATA.targets[[5, 3]])
    path.write_text(path.read_text() + "1,2,3,77\n")
    changed = cached(opened(path.parent, DATA, "CSV"), cache, title="task")
    assert changed[12][1] == 77
    with pytest.raises(BadConfiguration, match=r"spec.trainer.input.cache: .*task gpt"):
        cached([1, 2], cache, title="task gpt")


def test_an_unfinished_cache_is_made_again(tmp_path: Path) -> None:
    (path,) = write(DATA, tmp_path / "data", "train", form="Arrays", files=1)
    cached(opened(path.parent, DATA, "Arrays"), tmp_path, title="task")
    (copy,) = [one for one in tmp_path.iterdir() if one.is_dir() and one.name != "data"]
    copy.rename(copy.with_suffix(".part"))
    data_set = cached(opened(path.parent, DATA, "Arrays"), tmp_path, title="task")
    np.testing.assert_array_equal(data_set.batch(range(12))[0], DATA.inputs)


def test_a_file_is_closed_with_its_object(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"1")
    file = OpenFile(tmp_path / "data")
    descriptor = file._descriptor
    assert file.read(0, 1) == b"1"
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
