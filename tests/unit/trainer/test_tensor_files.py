"""The files of PyTorch checkpoints: safetensors and a JSON index. They are data, exact to the bit, for every Python and PyTorch."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.errors import BadConfiguration, StorageUnavailable
from muster_contract.events import CommitReason
from muster_trainer.checkpoint import Manifest, files
from muster_trainer.checkpoint.tensor_files import Block, Chunk, Stored, parse_index, write
from muster_trainer.pytorch import state, tensor_files
from tests.checkpoints_across import one_side
from tests.support.seeds import seeded_random

ACROSS = Path(one_side.__file__).parent
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("world_of_one"), pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]


def test_a_checkpoint_of_another_python_and_pytorch_is_read_bit_for_bit() -> None:
    one_side.read(ACROSS / "written-by-python3.13-torch2.15", 0, 1)


def test_every_type_and_shape_is_restored_bit_for_bit(tmp_path: Path) -> None:
    one_side.write(tmp_path, 0, 1)
    one_side.read(tmp_path, 0, 1)


def test_any_reader_of_safetensors_opens_the_files(tmp_path: Path) -> None:
    import safetensors.torch as safetensors

    one_side.write(tmp_path, 0, 1)
    tensors = safetensors.load_file(next(tmp_path.glob("step-*/rank-00000.safetensors")))
    assert len(tensors) == 5 + len(one_side.DTYPES) * len(one_side.SHAPES) + 6 + 3 - 1
    for name in ("int64_matrix", "bool_scalar", "bfloat16_matrix", "float8_e5m2_empty", "float64_scalar"):
        tensor = tensors[f"model.{name}"]
        assert tensor.shape == one_side.SHAPES[name.rpartition("_")[2]]
        assert tensor.dtype == getattr(torch, name.rpartition("_")[0])
        assert torch.equal(_raw(tensor), _raw(one_side.bits(name, tensor.dtype, tuple(tensor.shape))))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def test_a_type_that_cannot_be_stored_is_refused_by_name(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    with pytest.raises(BadConfiguration, match=r"model\.sparse: .*torch\.sparse_coo"):
        state.part_to_save(tmp_path, model, None, room=0)


def block(tensor: torch.Tensor) -> Block:
    return Block(tensor_files.name_of(tensor.dtype), tuple(tensor.shape), lambda: tensor_files.bytes_on_host(tensor))


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shape of a chunk, and the corner and shape of a box in it."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    offsets = tuple(draw(st.integers(0, length - 1)) for length in shape)
    return shape, offsets, tuple(draw(st.integers(0, length - offset)) for length, offset in zip(shape, offsets, strict=True))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("boxes") / "one.safetensors"


@given(box=boxes(), longest=st.sampled_from([1, 16, 1 << 20]), wider=st.booleans(), strided=st.booleans())
def test_any_box_of_a_chunk_is_read_as_a_slice_of_it(
    scratch: Path, box: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], longest: int, wider: bool, strided: bool
) -> None:
    shape, offsets, lengths = box
    whole = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    start = write(scratch, {"before": block(torch.ones(3, dtype=torch.int8)), "whole": block(whole)})["whole"]
    target = torch.zeros(lengths, dtype=torch.float64 if wider else torch.float32)
    if strided and target.dim() > 1:
        target = target.transpose(0, -1).contiguous().transpose(0, -1)
    with pytest.MonkeyPatch.context() as patched, files.open_regular(scratch) as file:
        patched.setattr(tensor_files, "LONGEST_READ", longest)
        tensor_files.read(file, "float32", Chunk((), shape, scratch.name, start), offsets, target)
    expected = whole[tuple(slice(offset, offset + length) for offset, length in zip(offsets, lengths, strict=True))]
    assert torch.equal(target, expected.to(target.dtype))


def test_reading_a_slice_of_a_large_tensor_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    start = write(path, {"large": block(torch.arange(1 << 24, dtype=torch.float32).reshape(1 << 12, -1))})["large"]
    target = torch.empty(1 << 12, 1)
    peak, original = 0, torch.empty

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal peak
        made = original(*arguments, **options)
        peak = max(peak, made.nbytes)
        return made

    with pytest.MonkeyPatch.context() as patched, files.open_regular(path) as file:
        patched.setattr(torch, "empty", counted)
        tensor_files.read(file, "float32", Chunk((0, 0), (1 << 12, 1 << 12), path.name, start), (0, 7), target)
    assert 0 < peak <= tensor_files.LONGEST_READ < path.stat().st_size
    assert torch.equal(target[:, 0], torch.arange(1 << 12) * float(1 << 12) + 7)


# files that others have written


def saved(directory: Path) -> tuple[torch.nn.Module, Path]:
    directory.mkdir(exist_ok=True)
    model = torch.nn.Linear(4, 3)
    part = state.part_to_save(directory, model, None, room=0)
    names, details = part.write()
    commit(directory, [*names, *part.finish([details])])
    return model, directory


def commit(directory: Path, names: list[str]) -> None:
    listing = {name: {"bytes": files.size(directory / name), "sha256": files.sha256(directory / name)} for name in names}
    (directory / "manifest.json").write_bytes(Manifest(1, 0, 0, 1, 1, "DDP", 0, {}, {}, CommitReason.FINAL, "now", listing).to_bytes())


def load(directory: Path, model: torch.nn.Module) -> None:
    state.load(directory, model, None, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()})


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


def test_no_file_of_a_checkpoint_runs_code(tmp_path: Path) -> None:
    """A pickle in place of each file, and beside them under the names that PyTorch would read."""
    target = tmp_path / "broken-in"
    for name in ("index.json", "rank-00000.safetensors", ".metadata", "__0_0.distcp"):
        model, directory = saved(tmp_path / name.strip("."))
        before = [path.name for path in directory.iterdir() if path.name != "manifest.json"]
        (directory / name).write_bytes(pickle.dumps(Evil(target)))
        commit(directory, sorted({*before, name} - {".metadata"}))
        if name in ("index.json", "rank-00000.safetensors"):
            with pytest.raises(BadConfiguration):
                load(directory, model)
        else:
            load(directory, model)
        assert not target.exists()


def test_the_index_of_an_older_version_is_refused_and_not_read(tmp_path: Path) -> None:
    model, directory = saved(tmp_path / "saved")
    (directory / "index.json").unlink()
    (directory / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "broken-in")))
    commit(directory, [".metadata", "rank-00000.safetensors"])
    with pytest.raises(BadConfiguration, match=r"older version .*\.metadata"):
        load(directory, model)
    assert not (tmp_path / "broken-in").exists()


def test_an_index_that_is_changed_or_a_pipe_is_refused(tmp_path: Path) -> None:
    model, directory = saved(tmp_path / "saved")
    index = directory / "index.json"
    content = index.read_bytes()
    index.write_bytes(content.replace(b'"start": ', b'"start":  '))
    with pytest.raises(StorageUnavailable, match=r"index\.json is damaged"):
        load(directory, model)
    index.unlink()
    os.mkfifo(index)
    with pytest.raises(StorageUnavailable, match=r"index\.json is not a regular file"):
        load(directory, model)
    index.unlink()
    index.write_bytes(content)
    load(directory, model)


def test_an_index_that_changes_during_a_load_runs_no_code(tmp_path: Path) -> None:
    """Another process swaps the index for a pickle, and back, all the while: each load gives the committed numbers, or an error."""
    torch.manual_seed(seeded_random().randrange(1 << 32))
    model, directory = saved(tmp_path / "saved")
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    index, good = directory / "index.json", (directory / "index.json").read_bytes()
    evil, ended = pickle.dumps(Evil(tmp_path / "broken-in")), threading.Event()

    def flip() -> None:
        while not ended.is_set():
            for content in (evil, good):
                (directory / "other").write_bytes(content)
                os.replace(directory / "other", index)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(50):
            with torch.no_grad():
                model.weight.zero_()
            try:
                load(directory, model)
            except (StorageUnavailable, BadConfiguration):
                continue
            assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    finally:
        ended.set()
        thread.join()
    assert not (tmp_path / "broken-in").exists()


def test_a_file_that_ends_too_early_is_an_error_of_the_storage(tmp_path: Path) -> None:
    model, directory = saved(tmp_path / "saved")
    os.truncate(directory / "rank-00000.safetensors", 100)
    with pytest.raises(StorageUnavailable, match=r"rank-00000\.safetensors ends too early"):
        load(directory, model)


def test_a_number_cannot_replace_the_parameters_of_an_optimizer(tmp_path: Path) -> None:
    directory, model = tmp_path / "saved", torch.nn.Linear(4, 3)
    directory.mkdir()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    part = state.part_to_save(directory, model, optimizer, initial_numbers=[{**state.numbers_of(optimizer)[0], "momentum": 0.5}], room=0)
    names, details = part.write()
    commit(directory, [*names, *part.finish([json.loads(json.dumps(details).replace("group.0.momentum", "group.0.params"))])])
    with pytest.raises(BadConfiguration, match="params"):
        state.load(directory, model, optimizer, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()})
    assert isinstance(optimizer.param_groups[0]["params"], list)


SIZES = {"a": 1000}
CHUNKS = [{"offsets": [row, 0], "shape": [2, 2], "file": "a", "start": 100} for row in (0, 2)]
GOOD = {"dtype": "float32", "shape": [4, 2], "chunks": CHUNKS}


CROSSED = [{"offsets": [row, column], "shape": [2, 2], "file": "a", "start": 0} for row, column in ((0, 0), (0, 2), (1, 0), (2, 2))]
"""As many numbers as the tensor has, but two of them twice and two never."""


def changed(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "chunks": [{**CHUNKS[0], **fields}, CHUNKS[1]]}


def parsed(content: bytes) -> dict[str, Stored]:
    return parse_index(content, SIZES, dtypes=tensor_files.DTYPES, framework="PyTorch")


def with_tensor(tensor: object) -> bytes:
    return json.dumps({"format": 1, "tensors": {"one": tensor}}).encode()


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        ({**GOOD, "dtype": "object"}, "object"),
        ({**GOOD, "dtype": "qint8"}, "qint8"),
        ({**GOOD, "dtype": "nn"}, "nn"),
        ({**GOOD, "shape": [4, 3]}, "do not cover it exactly"),
        ({**GOOD, "shape": [-4, -2]}, "at least 0"),
        ({**GOOD, "shape": [1] * 65}, r"shape: .*64.* 65"),
        ({**GOOD, "chunks": CHUNKS[:1]}, "do not cover it exactly"),
        ({**GOOD, "chunks": [CHUNKS[0]] * 2}, "do not cover it exactly"),
        (changed(shape=[3, 2]), "do not cover it exactly"),
        ({**GOOD, "chunks": [{**CHUNKS[0], "shape": [3, 2]}, {**CHUNKS[1], "shape": [1, 2]}]}, "do not cover it exactly"),
        ({"dtype": "int8", "shape": [4, 4], "chunks": CROSSED}, "do not cover it exactly"),
        ({"dtype": "int8", "shape": [2] * 5, "chunks": [{"offsets": [1] * 5, "shape": [1] * 5, "file": "a", "start": 0}]}, "5 dimensions"),
        (changed(file="../a"), "outside"),
        (changed(file="b"), "outside"),
        (changed(start=990), "outside"),
        (changed(start=-1), "at least 0"),
        (changed(start=True), "at least 0"),
        (changed(offsets=[3, 0]), "outside"),
        (changed(offsets=[0]), "dimensions"),
        (changed(shape=[2**53, 2**53]), "outside"),
    ],
)
def test_an_inconsistent_index_is_refused(tensor: object, reason: str) -> None:
    parsed(with_tensor(GOOD))
    with pytest.raises(ValueError, match=reason):
        parsed(with_tensor(tensor))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dtype", "shape", "chunks", "file", "start"]), inner),
    max_leaves=8,
)


@given(value=JSON, field=st.sampled_from(["format", "tensors", "one", "dtype", "shape", "chunks", "offsets", "file", "start"]))
def test_an_index_of_any_shape_raises_only_value_errors(value: Any, field: str) -> None:
    tensor = {**GOOD, field: value} if field in GOOD else changed(**{field: value})
    document: dict[str, Any] = {"format": 1, "tensors": {"one": value if field == "one" else tensor}}
    if field in document:
        document[field] = value
    try:
        index = parsed(json.dumps(document).encode())
    except ValueError:
        return
    assert all(chunk.start + 16 <= SIZES[chunk.file] for one in index.values() for chunk in one.chunks if 0 not in chunk.shape)


@given(st.binary(max_size=100))
def test_random_bytes_as_index_raise_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (with any message)
        parsed(content)


def test_a_type_that_the_framework_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="Old"):
        parse_index(with_tensor(GOOD), SIZES, dtypes=("int8",), framework="Old")


def test_the_checkpoint_in_the_repository_is_unchanged() -> None:
    (path,) = (ACROSS / "written-by-python3.13-torch2.15").glob("step-*")
    assert hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest() == (path / "COMMITTED").read_text().strip()
    assert json.loads((path / "manifest.json").read_bytes())["versions"] == {"python": "3.13.0", "torch": "2.15.0+cu132"}
