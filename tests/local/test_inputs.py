"""Inputs of jobs, fetched by the real clients from a hub and from an S3 server on this machine."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from muster_contract.errors import InputNotFound, InputRefused, InputUnavailable, TrainerError
from muster_contract.inputs import InputProgress, InputRequest
from muster_trainer.checkpoint.objects import ObjectPath, drop_clients
from muster_trainer.inputs.cache import Entry
from muster_trainer.inputs.fetch import Job, job_of
from tests.support import hub as hubs
from tests.support.local_jobs import LocalJob, job
from tests.support.object_store import BUCKET, object_store
from tests.support.waiting import DEADLINE, wait_until

SMALL, LARGE = b'{"layers": 2}', os.urandom(3 << 20)
USES_INPUTS = """
import json, os, sys
from pathlib import Path
base, rows = Path(sys.argv[1]), Path(os.environ["MUSTER_INPUT_ROWS"])
assert base == Path(os.environ["MUSTER_INPUT_BASE_MODEL"])
found = {"config": json.loads((base / "config.json").read_text()), "weights": (base / "weights.bin").stat().st_size}
Path(sys.argv[2]).write_text(json.dumps({**found, "rows": (rows / "part/0.csv").read_text()}))
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hubs.Hub]:
    """A hub with the model org/tiny, which the clients of this process and its children use."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repository = tmp_path / "hub" / "models" / "org" / "tiny"
    (repository / "tokenizer").mkdir(parents=True)
    (repository / "config.json").write_bytes(SMALL)
    (repository / "weights.bin").write_bytes(LARGE)
    (repository / "tokenizer" / "words").write_text("a b")
    with hubs.running(tmp_path / "hub") as (running, address):
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield running


def repository(hub: hubs.Hub) -> Path:
    return hub.root / "models" / "org" / "tiny"


def input_job(
    tmp_path: Path,
    source: str = "hf://org/tiny",
    *,
    revision: str = "",
    secret: Mapping[str, str] | None = None,
    stall_seconds: float = 0.0,
) -> tuple[Job, list[InputProgress]]:
    shown: list[InputProgress] = []
    cache = tmp_path / "store"
    cache.mkdir(exist_ok=True)
    request = InputRequest("base", source, revision)
    return job_of(request, cache, secret or {}, show=shown.append, say=lambda _: None, stall_seconds=stall_seconds), shown


def fetched(tmp_path: Path, source: str = "hf://org/tiny", **settings: Any) -> Path:
    """The folder of the files of the input."""
    one, _ = input_job(tmp_path, source, **settings)
    return one.fetch(one.resolved(one.request.revision)).files


def error_of(tmp_path: Path, source: str = "hf://org/tiny", **settings: Any) -> TrainerError:
    with pytest.raises(TrainerError) as caught:
        fetched(tmp_path, source, **settings)
    return caught.value


def command(tmp_path: Path, name: str, source: str = "hf://org/tiny") -> tuple[list[str], dict[str, str]]:
    """The fetcher as a process, with a link folder of its own and the shared cache."""
    inputs = json.dumps([{"name": "base", "source": source}])
    places = {"MUSTER_INPUTS_DIR": str(tmp_path / name), "MUSTER_INPUTS_CACHE": str(tmp_path / "store")}
    return [sys.executable, "-P", "-m", "muster_trainer.inputs"], {**os.environ, **places, "MUSTER_INPUTS": inputs}


def test_runs_fetch_their_inputs_once_and_a_missing_one_ends_a_run(hub: hubs.Hub, tmp_path: Path) -> None:
    local_job = LocalJob(tmp_path)
    rows = hub.root / "datasets" / "org" / "rows" / "data" / "part"
    rows.mkdir(parents=True)
    (rows / "0.csv").write_text("1,2\n")
    (tmp_path / "use.py").write_text(USES_INPUTS)
    inputs = [{"name": "base-model", "source": "hf://org/tiny"}, {"name": "rows", "source": "hf://datasets/org/rows@main/data"}]
    trainer = {"command": [sys.executable, "use.py", "$(MUSTER_INPUT_BASE_MODEL)"], "args": [str(tmp_path / "found.json")]}
    local_job.write(job(trainer=trainer, replicas=1, inputs=inputs))
    commit = hub.commit(repository(hub))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    assert json.loads((tmp_path / "found.json").read_text()) == {"config": {"layers": 2}, "weights": len(LARGE), "rows": "1,2\n"}
    first, second = local_job.status["inputs"]
    assert (first["phase"], first["revision"], first["bytes"], first["replicas"]) == ("Ready", commit, first["totalBytes"], 1)
    assert (second["name"], second["phase"], second["ready"]) == ("rows", "Ready", 1)
    assert "3.1 MB" in output

    downloads = hub.downloads()
    local_job.write(job(trainer=trainer, replicas=1, inputs=[*inputs, {"name": "other", "source": "hf://org/none"}]))
    code, output = local_job.muster_run("job.yaml", "--fresh")
    assert (code, "model org/none does not exist, or is private" in output) == (33, True), output
    assert hub.downloads() == downloads


def test_processes_that_need_the_same_input_download_it_once(hub: hubs.Hub, tmp_path: Path) -> None:
    processes = []
    for name in ("one", "two", "three"):
        words, environ = command(tmp_path, name)
        processes.append(subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, errors = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, errors
    assert len(hub.downloads()) == 3  # files
    assert {(tmp_path / name / "base" / "weights.bin").read_bytes() == LARGE for name in ("one", "two", "three")} == {True}
    assert len({(tmp_path / name / "base").resolve() for name in ("one", "two", "three")}) == 1


def test_a_killed_fetch_counts_as_nothing_and_the_next_one_continues_it(hub: hubs.Hub, tmp_path: Path) -> None:
    words, environ = command(tmp_path, "one")
    hub.limit = 1 << 20
    process = subprocess.Popen(words, env=environ, stderr=subprocess.DEVNULL)
    one, _ = input_job(tmp_path)
    entry = Entry.of(one.cache, one.remote.identity, hub.commit(repository(hub)))
    small = [entry.partial_files / "config.json", entry.partial_files / "tokenizer" / "words"]
    wait_until(lambda: hub.sent >= 1 << 20 and all(path.exists() for path in small), "a part of the input is in the cache")
    process.kill()
    process.wait()
    assert entry.complete() is None
    hub.limit = None
    hub.requests.clear()
    assert subprocess.run(words, env=environ, stderr=subprocess.DEVNULL, timeout=DEADLINE, check=False).returncode == 0
    assert (tmp_path / "one" / "base" / "weights.bin").read_bytes() == LARGE
    assert [path.rpartition("/")[2] for path in hub.downloads()] == ["weights.bin"]
    assert {path.name for path in (tmp_path / "one" / "base").iterdir()} == {"config.json", "tokenizer", "weights.bin"}


def test_a_revision_that_is_in_the_cache_needs_no_hub(hub: hubs.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.commit(repository(hub))
    folder = fetched(tmp_path, "hf://org/tiny/tokenizer")
    assert [path.name for path in (folder / "tokenizer").iterdir()] == ["words"]
    assert not (folder / "config.json").exists()
    hub.requests.clear()
    for source, revision in (("hf://org/tiny/tokenizer", commit), (f"hf://org/tiny@{commit}/tokenizer", "")):
        one, _ = input_job(tmp_path, source, revision=revision)
        known = one.cached_as_named()
        assert known is not None
        assert known[1].revision == commit
    assert hub.requests == []
    (folder / "tokenizer" / "words").write_text("damaged")
    assert one.cached_as_named() is None
    assert (fetched(tmp_path, "hf://org/tiny/tokenizer") / "tokenizer" / "words").read_text() == "a b"


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("../../escaped", {}, "not a plain relative path"),
        ("/tmp/muster-escaped", {}, "not a plain relative path"),
        ("a\\..\\b", {}, "not a plain relative path"),
        ("config.json/x", {}, "is below a name that is a file"),
        (".cache/huggingface/download/x.metadata", {}, "a name that the client of the hub uses itself"),
        ("config.json", {"size": None}, "the listing has no size of 'config.json'"),
        ("config.json", {"size": 14}, "has 13 bytes instead of 14"),
        ("config.json", {"blobId": "1" * 40}, "does not have the listed hash"),
        ("weights.bin", {"lfs": {"size": 3 << 20, "sha256": "2" * 64, "pointerSize": 134}}, "does not have the listed hash"),
        ("config.json", {"size": 1 << 60}, "the disk is full"),
    ],
)
def test_listings_that_are_hostile_or_wrong_store_nothing(
    hub: hubs.Hub, tmp_path: Path, name: str, fields: dict[str, object], message: str
) -> None:
    hub.listed = {name: fields}
    error = error_of(tmp_path)
    assert message in str(error)
    assert not [path for path in (tmp_path / "store").iterdir() if path.suffix not in (".lock", ".partial")]
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/muster-escaped").exists()


def test_missing_things_and_denied_access_are_permanent_and_a_lost_network_is_not(
    hub: hubs.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source, message in (
        ("hf://org/none", "does not exist, or is private"),
        ("hf://datasets/org/tiny", "dataset org/tiny does not exist"),
        ("hf://org/tiny@v9", "has no revision v9"),
        ("hf://org/tiny/none", "there are no files"),
    ):
        error = error_of(tmp_path, source)
        assert isinstance(error, InputNotFound)
        assert message in str(error)
    hub.token = "right"
    for secret in ({}, {"HF_TOKEN": "wrong"}):
        error = error_of(tmp_path, secret=secret)
        assert isinstance(error, InputRefused)
        assert "HF_TOKEN" in str(error)
    assert (fetched(tmp_path, secret={"HF_TOKEN": "right"}) / "config.json").read_bytes() == SMALL
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    error = error_of(tmp_path)
    assert isinstance(error, InputUnavailable)
    assert "the hub cannot be reached" in str(error)


def test_a_disk_that_is_too_small_is_a_clear_error_before_anything_is_fetched(hub: hubs.Hub, tmp_path: Path) -> None:
    words, environ = command(tmp_path, "one")
    (tmp_path / "store").mkdir()
    mount = f"mount -t tmpfs -o size=2m none {tmp_path / 'store'} && exec {shlex.join(words)}"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, "the disk is full: 3.1 MB are missing" in done.stderr) == (32, True), done.stderr
    assert hub.downloads() == []


def test_a_secret_is_read_from_its_folder_and_a_termination_message_is_written(hub: hubs.Hub, tmp_path: Path) -> None:
    hub.token = "right"
    words, environ = command(tmp_path, "one")
    environ |= {"MUSTER_INPUTS_SECRETS": str(tmp_path / "secrets"), "MUSTER_TERMINATION_LOG": str(tmp_path / "words")}
    environ |= {"MUSTER_JOB": "default/tiny"}  # of a pod, but incomplete
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, json.loads((tmp_path / "words").read_text())["reason"]) == (11, "BadConfiguration"), done.stderr
    del environ["MUSTER_JOB"]
    assert subprocess.run(words, env=environ, capture_output=True, timeout=DEADLINE, check=False).returncode == 33
    (tmp_path / "secrets" / "base").mkdir(parents=True)
    (tmp_path / "secrets" / "base" / "HF_TOKEN").write_text("right\n")
    assert subprocess.run(words, env=environ, capture_output=True, timeout=DEADLINE, check=False).returncode == 0


def test_a_bucket_is_fetched_with_the_credentials_of_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with object_store(tmp_path / "s3") as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        drop_clients()
        root = ObjectPath(f"s3://{BUCKET}/inputs/rows")
        (root / "train/0.csv").write_bytes(b"1,2\n")
        (root / "test.csv").write_bytes(b"3,4\n")
        source = str(root)
        one, shown = input_job(tmp_path, source, secret=server.variables)
        first = one.resolved("")
        folder = one.fetch(first).files
        assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.csv")} == {"train/0.csv", "test.csv"}
        assert (shown[-1].phase, shown[-1].bytes, shown[-1].total_bytes) == ("Ready", 8, 8)
        (root / "test.csv").write_bytes(b"5,6\n")
        second = one.resolved("")
        assert second.revision != first.revision
        assert (one.fetch(second).files / "test.csv").read_text() == "5,6\n"
        assert one.cached(first.revision) is not None
        for where, secret, message, reason in (
            (f"{source}/test.csv", server.variables, "is one object", "InputNotFound"),
            (f"{source}-none", server.variables, "there are no files", "InputNotFound"),
            ("s3://no-such-bucket", server.variables, "does not exist", "InputNotFound"),
            (source, {**server.variables, "AWS_SECRET_ACCESS_KEY": "wrong"}, "refuses access", "InputForbidden"),
        ):
            error = error_of(tmp_path, where, secret=secret)
            assert isinstance(error, InputRefused), error
            assert error.reason == reason
            assert message in str(error)
        away = one.remote.error(OSError(errno.EIO, "Could not connect to the endpoint URL", source))
        assert isinstance(away, InputUnavailable)
    drop_clients()
