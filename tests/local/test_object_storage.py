"""Checkpoints and data files in an object store: the same as in folders, on a real S3 server."""

from __future__ import annotations

import hashlib
import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from muster_contract.errors import BadConfiguration, PeerLost, StorageUnavailable
from muster_contract.events import CommitReason
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Fence, Manifest, Store, objects, read_back, select
from muster_trainer.checkpoint.objects import ObjectPath, drop_clients
from muster_trainer.checkpoint.selection import valid_commits
from muster_trainer.data.dataset import ArrayDataSet
from muster_trainer.data.files import FORMATS, Column, open_files
from muster_trainer.data.files.cache import cached
from muster_trainer.tasks import digits
from muster_trainer.tasks.write import WRITERS, write
from tests.local import proofs
from tests.support.bare_worlds import trainer, world
from tests.support.object_store import BUCKET, ObjectStore, object_store

CREATED = datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3") / "data") as store:
        yield store


@pytest.fixture
def root(server: ObjectStore, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectPath]:
    """A prefix of its own in the bucket."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    yield ObjectPath(f"s3://{BUCKET}/{request.node.originalname}")
    drop_clients()


def begin_attempt(directory: ObjectPath, attempt: int) -> Store:
    store = Store(directory, Fence(CREATED, attempt), keep=2)
    store.register(select(CheckpointSpec(str(directory)), store.fence))
    return store


def save(store: Store, step: int, folder: Path) -> None:
    path = store.begin(step)
    (folder / "weights").write_text(f"{step} of {store.fence}" * 1000)
    listing = store.flush(folder, ["weights"], path)
    store.commit(path, Manifest(step, 0, 0, step, 1, "DDP", 0, {}, {}, CommitReason.PERIODIC, "now", listing))


def test_commits_fences_damage_and_retention_are_as_in_a_folder(root: ObjectPath, server: ObjectStore, tmp_path: Path) -> None:
    first = begin_attempt(root, 0)
    for step in (10, 20, 30):
        save(first, step, tmp_path)
    late = first.begin(40)
    listing = first.flush(tmp_path, ["weights"], late)

    second = begin_attempt(root, 1)
    with pytest.raises(PeerLost, match="has taken over"):
        first.commit(late, replace(Manifest(40, 0, 0, 40, 1, "DDP", 0, {}, {}, CommitReason.PERIODIC, "now"), files=listing))
    (late / "COMMITTED").write_bytes(b"written between the look and the marker")
    assert [commit.step for commit in valid_commits(root)] == [10, 20, 30]

    assert [second.begin_rescue(second.rescue_directory(40)) for _ in range(2)] == [True, False]  # by If-None-Match
    second.abandon(second.rescue_directory(40))

    newest = next((server.objects / root.name).glob("step-00000030-*/weights"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    selection = select(CheckpointSpec(str(root)), Fence(CREATED, 2))
    assert (selection.newest, selection.step) == (30, 20)
    assert "weights is damaged" in selection.skipped[0][1]
    assert selection.commit is not None
    with read_back(selection.commit.path) as folder:
        assert (folder / "weights").read_text().startswith(f"20 of {first.fence}")
    assert not folder.exists()

    third = begin_attempt(root, 2)  # goes on from 20: 30 is void now
    save(third, 25, tmp_path)
    third.retain()
    assert [commit.step for commit in valid_commits(root)] == [20, 25]
    assert sorted(path.name[:13] for path in root.glob("step-*")) == ["step-00000020", "step-00000025"]
    with pytest.raises(PeerLost):
        second.begin(50)


def test_credentials_that_are_wrong_and_a_server_that_is_away_are_said_in_words(root: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    drop_clients()
    with pytest.raises(StorageUnavailable, match=r"s3://.*: .*(credentials|signature|Signature)"):
        begin_attempt(root, 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    drop_clients()
    with pytest.raises(StorageUnavailable, match=r"s3://.*Could not connect.*is the storage reachable"):
        begin_attempt(root, 0)


def test_a_server_that_does_not_answer_fails_every_request(
    root: ObjectPath, server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (file := tmp_path / "file").write_bytes(bytes(1 << 20))
    (root / "here").write_bytes(b"content")
    requests: list[Callable[[], object]] = [
        (root / "here").read_bytes,
        lambda: root.glob("*"),
        (root / "here").exists,
        lambda: (root / "here").download(tmp_path / "download"),
        lambda: (root / "new").write_bytes(b"new"),
        lambda: (root / "new").create(b"new"),
        lambda: (root / "new").upload(file),
        (root / "new").remove,
    ]
    with monkeypatch.context() as short, ThreadPoolExecutor(len(requests)) as threads, server.frozen():
        short.setitem(objects.S3_CONFIG, "read_timeout", 1)
        short.setattr(objects, "WRITE_SECONDS", 3)
        drop_clients()
        for future in [threads.submit(request) for request in requests]:
            with pytest.raises(OSError, match=r"(Read timeout|does not answer).*s3://"):
                future.result(timeout=120)
    drop_clients()  # the server answers the requests that it has missed first, and may take longer than a second
    assert (root / "here").read_bytes() == b"content"


@pytest.mark.torch
def test_a_killed_world_resumes_from_it_and_every_loss_is_bit_equal(root: ObjectPath, server: ObjectStore) -> None:
    proofs.killed_world_continues_bit_for_bit("DDP", root, {})
    steps = sorted((server.objects / root.name).glob("step-*/COMMITTED"))
    assert [path.parent.name[:13] for path in steps] == ["step-00000050", "step-00000060", "step-00000069"]


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize("how", ["full", "away"])
def test_training_goes_on_while_a_store_is_full_or_away(how: str, root: ObjectPath, server: ObjectStore) -> None:
    root /= how
    with world("DDP", trainer(root, config=proofs.SLOWER)) as running:
        running.wait_for_commit(10)
        with server.full() if how == "full" else server.away():
            notice = running.wait_for_event("notice", lambda event: event["reason"] == "SaveFailed")
        running.wait_for_event("commit", lambda event: event["time"] > notice["time"])
        assert running.finish() == [0, 0], running.story()
    assert str(root) in notice["message"]
    assert running.losses() == proofs.uninterrupted("DDP").losses()
    folders = [path for path in (server.objects / root.parent.name / how).glob("step-*") if any(path.iterdir())]
    assert all((path / "COMMITTED").exists() for path in folders)


@pytest.mark.thorough
@pytest.mark.torch
def test_a_checkpoint_that_is_torn_on_its_way_to_the_store_does_not_exist(root: ObjectPath, server: ObjectStore) -> None:
    whole, document = proofs.uninterrupted("DDP").losses(), trainer(root, config=proofs.SLOW)
    with world("DDP", document) as first:
        first.wait_for_commit(20)
        with server.frozen_at(f"{root.name}/step-00000030-*/*") as part:
            for rank in (0, 1):  # a rank that survives would try to save for as long as its supervisor lets it
                first.kill(rank)
            assert first.finish() == [-signal.SIGKILL] * 2, first.story()
    assert not (part.parent / "COMMITTED").exists()
    second = proofs.second_attempt("DDP", document)
    (resumed,) = second.events("resumed")
    assert (resumed["committedStep"], resumed["step"], resumed.get("skipped", [])) == (20, 20, [])
    assert {**first.losses(), **second.losses()} == whole


@pytest.mark.tensorflow
def test_tensorflow_saves_there_and_goes_on_from_it(root: ObjectPath) -> None:
    with world("OneDevice", trainer(root, config={"epochs": 1}), size=1) as first:
        assert first.finish() == [0], first.story()
    with world("OneDevice", trainer(root, config={"epochs": 2}), size=1, attempt=1) as second:
        assert second.finish() == [0], second.story()
    assert second.events("resumed")[0]["step"] == 23
    assert {**first.losses(), **second.losses()}.keys() == set(range(1, 47))


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/muster-escaped", "sub/../../../escaped"])
def test_a_manifest_that_names_paths_elsewhere_is_damage_and_writes_nothing(
    root: ObjectPath, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    directory = root / hashlib.sha256(name.encode()).hexdigest()[:8]
    first = begin_attempt(directory, 0)
    save(first, 10, tmp_path)
    hostile = first.begin(20)
    content = json.dumps(
        {
            **json.loads(Manifest(20, 0, 0, 20, 1, "DDP", 0, {}, {}, CommitReason.PERIODIC, "now").to_bytes()),
            "files": {name: {"bytes": 5, "sha256": hashlib.sha256(b"curl ").hexdigest()}},
        }
    ).encode()
    (hostile / "manifest.json").write_bytes(content)
    (hostile / "COMMITTED").write_bytes(hashlib.sha256(content).hexdigest().encode())
    selection = select(CheckpointSpec(str(directory)), Fence(CREATED, 1))
    assert selection.step == 10
    assert "is not a plain relative path" in selection.skipped[0][1]
    with pytest.raises(StorageUnavailable, match="not a plain relative path"), read_back(hostile):
        pass
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["weights"]
    assert not Path("/tmp/muster-escaped").exists()


@pytest.mark.thorough
def test_data_files_of_every_format_are_read_from_it_as_from_a_folder(root: ObjectPath, tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).normal(size=(20_000, 8)).astype(np.float32)
    data = ArrayDataSet(inputs, np.arange(len(inputs)))
    chosen = np.random.default_rng(1).integers(0, len(inputs), 500)
    for form in FORMATS:
        for path in write(data, tmp_path, "train", form=form, files=2):
            (root / path.name).upload(path)
        names = tuple(f"inputs.{place}" for place in range(8)) if form == "CSV" else "inputs"
        settings = {"format": form, "train": f"{root}/train-*.{WRITERS[form][1]}"}
        dataset = open_files(settings, "train", Column(names, shape=(8,)), Column("targets", "int64"))
        assert dataset is not None
        for samples in (dataset, cached(dataset, tmp_path / "cache", title="task")):
            same, targets = samples.batch(chosen)
            np.testing.assert_array_equal(same, inputs[chosen])
            assert targets.tolist() == chosen.tolist()


def test_data_files_that_are_not_there_or_cannot_be_reached_are_named(root: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "test-0.csv").write_bytes(b"a")
    for name, error, message in (
        ("train-*", BadConfiguration, rf"data.train: there is no file {root}/train-\*; the folder has test-0.csv"),
        ("*/train", BadConfiguration, "only the name of a file may have one"),
    ):
        with pytest.raises(error, match=message):
            open_files({"format": "Parquet", "train": f"{root}/{name}"}, "train", Column("a"), Column("b"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    drop_clients()
    with pytest.raises(StorageUnavailable, match=f"data.train: {root}/t.* cannot be listed: .*is the storage reachable"):
        open_files({"format": "Parquet", "train": f"{root}/t*"}, "train", Column("a"), Column("b"))


@pytest.mark.torch
def test_a_world_trains_on_parquet_in_it_bit_for_bit_as_from_memory(root: ObjectPath, tmp_path: Path) -> None:
    for split, files in (("train", 3), ("test", 1)):
        for path in write(digits.dataset({}, split), tmp_path, split, form="Parquet", files=files):
            (root / path.name).upload(path)
    config = {"data": {"format": "Parquet", "train": f"{root}/train-*", "test": f"{root}/test-*"}}
    with world("DDP", trainer(None, config=config, input={"workers": 2})) as running:
        assert running.finish() == [0, 0], running.story()
    memory = proofs.uninterrupted("DDP")
    assert running.losses() == memory.losses()
    assert running.metrics() == memory.metrics()
