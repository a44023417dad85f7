"""Samples from files and from readers that run ahead give the same training. An unreadable sample ends all ranks with the same error."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from muster_trainer.data.files import FORMATS, tfrecord
from muster_trainer.tasks import digits
from muster_trainer.tasks.write import write
from tests.local import proofs
from tests.support.bare_worlds import BareWorld, trainer, world
from tests.support.local_jobs import has_ended
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The samples of digits in files of each format."""
    folders = {}
    for form in FORMATS:
        folders[form] = tmp_path_factory.mktemp(form)
        for split, count in (("train", 3), ("test", 1)):
            write(digits.dataset({}, split), folders[form], split, form=form, files=count)
    return folders


def in_files(folder: Path, form: str) -> dict[str, Any]:
    return {"data": {"format": form, "train": str(folder / "train-*"), "test": str(folder / "test-*")}}


def same_training(one: BareWorld, other: BareWorld) -> None:
    assert one.losses() == other.losses()
    assert one.metrics() == other.metrics()


@pytest.mark.torch
@pytest.mark.parametrize("form", ["TFRecord", "CSV", "Parquet"])
def test_pytorch_trains_the_same_from_files_with_worker_processes_as_from_memory(form: str, files: Mapping[str, Path]) -> None:
    read_ahead = proofs.uninterrupted("DDP", in_files(files[form], form), input={"workers": 2})
    same_training(read_ahead, proofs.uninterrupted("DDP"))


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["Pipeline", "RPC"])
def test_strategies_with_ways_of_their_own_read_ahead_too(strategy: str, files: Mapping[str, Path]) -> None:
    fields = {"options": {"synchronous": True}} if strategy == "RPC" else {}
    size = 3 if strategy == "RPC" else 2
    read_ahead = proofs.uninterrupted(
        strategy, {"epochs": 1, **in_files(files["Arrays"], "Arrays")}, size=size, input={"workers": 1}, **fields
    )
    same_training(read_ahead, proofs.uninterrupted(strategy, {"epochs": 1}, size=size, **fields))


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_tensorflow_trains_the_same_from_files_with_readers_and_by_way_of_a_cache(files: Mapping[str, Path], tmp_path: Path) -> None:
    options = {"logicalDevices": 2}
    memory = proofs.uninterrupted("Mirrored", size=1, options=options)
    for form, settings in (("TFRecord", {}), ("Arrow", {}), ("CSV", {"workers": 3, "prefetch": 2, "cache": str(tmp_path)})):
        same_training(proofs.uninterrupted("Mirrored", in_files(files[form], form), size=1, options=options, input=settings), memory)
    assert any(tmp_path.glob("*/0.npy"))


@pytest.mark.torch
def test_sharded_by_file_a_world_of_one_shape_resumes_bit_for_bit_and_its_readers_die_with_it(
    files: Mapping[str, Path], tmp_path: Path
) -> None:
    fields = {"input": {"workers": 2, "shard": "File"}}
    config = {**in_files(files["Arrays"], "Arrays"), **proofs.SLOW}
    whole = proofs.uninterrupted("DDP", config, **fields)
    assert whole.losses() != proofs.uninterrupted("DDP").losses()
    document = trainer(tmp_path, config=config, **fields)
    with world("DDP", document) as first:
        first.wait_for_commit(20)
        readers = readers_of(first)
        first.kill(0)
        assert first.finish() == [-signal.SIGKILL, 20], first.story()
        wait_until(lambda: all(map(has_ended, readers)), "the readers of a killed process to end")
    assert len(readers) == 4
    second = proofs.second_attempt("DDP", document)
    proofs.resumed_at_the_last_commit(first, second)
    assert {**first.losses(), **second.losses()} == whole.losses()


@pytest.mark.torch
def test_a_sigterm_to_readers_and_all_does_not_break_the_save(files: Mapping[str, Path], tmp_path: Path) -> None:
    document = trainer(tmp_path, config={**in_files(files["Arrays"], "Arrays"), **proofs.SLOW}, input={"workers": 1})
    with world("DDP", document) as running:
        running.wait_for_step(13)
        readers = [reader.pid for reader in readers_of(running)]
        for pid in [*readers, *(process.pid for process in running.processes)]:
            os.kill(pid, signal.SIGTERM)
        assert running.finish() == [21, 21], running.story()
    assert running.events("commit")[-1]["reason"] == "Stop"
    assert running.events("commit")[-1]["step"] == max(running.losses())


@pytest.mark.torch
def test_a_reader_that_is_killed_ends_all_ranks_with_one_message(files: Mapping[str, Path]) -> None:
    config = {**in_files(files["Arrays"], "Arrays"), "epochs": 1000, **proofs.SLOW}
    with world("DDP", trainer(None, config=config, input={"workers": 1})) as running:
        running.wait_for_step(5)
        readers_of(running)[1].kill()
        assert running.finish() == [10, 10], running.story()
    assert len({error["message"] for error in running.events("error")}) == 1
    assert {error["reason"] for error in running.events("error")} == {"UserError"}
    assert "Traceback" not in "".join(running.output)


def readers_of(running: BareWorld) -> list[psutil.Process]:
    return [child for process in running.processes for child in psutil.Process(process.pid).children()]


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        pytest.param("DDP", 1, marks=pytest.mark.torch),
        pytest.param("MultiWorkerMirrored", 2, marks=pytest.mark.tensorflow),
    ],
)
def test_a_damaged_record_in_the_middle_ends_all_ranks_with_one_message(
    strategy: str, workers: int, files: Mapping[str, Path], tmp_path: Path
) -> None:
    for path in files["TFRecord"].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged = tmp_path / "train-00001-of-00003.tfrecord"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with world(strategy, trainer(None, config=in_files(tmp_path, "TFRecord"), input={"workers": workers})) as running:
        assert running.finish() == [11, 11], running.story()
    messages = {error["message"] for error in running.events("error")}
    assert len(running.events("error")) == 2
    assert {error["reason"] for error in running.events("error")} == {"BadConfiguration"}
    [message] = messages
    assert str(damaged) in message
    assert "Traceback" not in "".join(running.output)


@pytest.mark.torch
def test_files_that_are_cut_short_are_refused_by_all_ranks_before_they_meet(files: Mapping[str, Path], tmp_path: Path) -> None:
    whole = (files["Arrays"] / "train-00000-of-00003.npz").read_bytes()
    (tmp_path / "train-0.npz").write_bytes(whole[:-100])
    with world("DDP", trainer(None, config=in_files(tmp_path, "Arrays"))) as refused:
        assert refused.finish() == [11, 11], refused.story()
    [message] = {error["message"] for error in refused.events("error")}
    assert "train-0.npz" in message
    assert {error["reason"] for error in refused.events("error")} == {"BadConfiguration"}


LARGE = """
import numpy as np
from torch import nn
from muster_trainer.data.files import Column, open_files

def dataset(config, split):
    return open_files(config.data, split, Column("inputs", "float32", (25_000,)), Column("targets"))
def build_model(config): return nn.Linear(25_000, 1)
def loss(outputs, batch): return (outputs[:, 0] - batch[1]) ** 2
"""
LENGTH = 25_000
LARGEST_SET = 400_000_000
MOST_GROWTH = 150_000_000


def write_tfrecord(path: Path, row: Mapping[str, Any], count: int) -> None:
    tfrecord.write(path, [row])
    record = path.read_bytes()
    with path.open("wb") as file:
        for _ in range(count):
            file.write(record)


def write_parquet(path: Path, row: Mapping[str, Any], count: int) -> None:
    """Files with row groups of twenty rows."""
    table = pa.table(
        {"inputs": pa.FixedSizeListArray.from_arrays(np.tile(row["inputs"], 20), LENGTH), "targets": np.tile(row["targets"], 20)}
    )
    with pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="none") as writer:
        for _ in range(count // 20):
            writer.write_table(table)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("form", "write_rows"), [("TFRecord", write_tfrecord), pytest.param("Parquet", write_parquet, marks=pytest.mark.thorough)]
)
def test_a_data_set_larger_than_the_memory_it_may_take_is_trained_on(
    form: str, write_rows: Callable[[Path, Mapping[str, Any], int], None], tmp_path: Path
) -> None:
    row = {"inputs": np.linspace(0, 1, LENGTH, dtype=np.float32), "targets": np.float32(1)}
    write_rows(tmp_path / "train", row, LARGEST_SET // row["inputs"].nbytes)
    assert (tmp_path / "train").stat().st_size >= LARGEST_SET
    (tmp_path / "large.py").write_text(LARGE)
    config = {"epochs": 1, "learningRate": 1e-6, "data": {"format": form, "train": str(tmp_path / "train")}}
    document = trainer(None, config=config, module="large", batch={"globalSize": 40}, input={"workers": 1})
    with world("DDP", document, size=1, PYTHONPATH=str(tmp_path)) as running:
        running.wait_for_step(3)
        process = psutil.Process(running.processes[0].pid)
        begun = most = wait_until(lambda: own_memory(process), "its memory")
        while running.processes[0].poll() is None:
            most = max(most, own_memory(process))
        assert running.finish() == [0], running.story()
    assert len(running.losses()) >= 99
    assert most - begun < MOST_GROWTH


def own_memory(process: psutil.Process) -> int:
    """Bytes of the process and its readers, without the memory that a reader shares with it."""
    try:
        return sum(one.memory_full_info().uss for one in [process, *process.children()])
    except psutil.Error:
        return 0


SLOW_SAMPLES = """
import time
import numpy as np
from torch import nn

class Slow:
    def __len__(self): return 32
    def __getitem__(self, index): return np.float32([index]), np.float32([index])
    def batch(self, indices):
        time.sleep(0.5)
        return np.float32(indices)[:, None], np.float32(indices)[:, None]

def dataset(config): return Slow()
def build_model(config): return nn.Linear(1, 1)
def loss(outputs, batch): return ((outputs - batch[1]) ** 2).sum(1)
"""


@pytest.mark.torch
def test_the_time_that_steps_wait_for_samples_is_reported(tmp_path: Path) -> None:
    (tmp_path / "slow_samples.py").write_text(SLOW_SAMPLES)
    document = trainer(None, module="slow_samples", config={"epochs": 1, "learningRate": 1e-6}, batch={"globalSize": 4})
    with world("DDP", document, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [0, 0], running.story()
    steps = running.events("step")
    assert all(0.5 <= step["inputSeconds"] <= step["seconds"] for step in steps[:-1])  # within each the next one's samples are read
    assert steps[-1]["inputSeconds"] < 0.5
    assert len(steps) == 8
