"""The run directory: its lock, its use by a second run, and its atomic writes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from muster.api.job import TrainingJob
from muster.api.status import Notice, Phase, Progress, Reason, Restarts, TrainingJobStatus
from muster.channel.reports import Reports
from muster.local.channel import LocalChannel
from muster.local.errors import ConfigurationError, FieldError, StorageError
from muster.local.follow import LogFollower
from muster.local.inputs import Fetcher
from muster.local.launch import Launch
from muster.local.messages import log_tail
from muster.local.processes import Identity, ProcessTable
from muster.local.rundir import RunDirectory, continued, load_run, new_run, open_run_directory, pid_of_run
from muster.local.start import Start, open_run, reopened
from muster_contract.codes import ExitCode
from muster_contract.notices import NoticeReason
from muster_contract.reports import Reply
from tests.support.texts import absent
from tests.unit.local.local_jobs import NOW, failed, job


def start(path: Path, wanted: TrainingJob | None = None, **flags: bool) -> Start:
    lines: list[str] = []
    options: dict[str, Any] = {"resume": False, "fresh": False, **flags}
    return open_run(wanted or job(), path, now=NOW, command="muster run job.yaml", say=lines.append, **options)


def left_by(path: Path, **status: Any) -> TrainingJob:
    """The run of an earlier `muster run` in the directory."""
    begun = start(path)
    begun.directory.write_status(TrainingJobStatus(**status))
    begun.directory.release()
    return begun.job


def test_job_and_status_are_read_as_they_were_written(tmp_path: Path) -> None:
    directory = open_run_directory(tmp_path / "run")
    written = new_run(job(), NOW).with_status(TrainingJobStatus(phase=Phase.RUNNING, progress=Progress(step=7, updated_at=NOW)))
    directory.write_job(written)
    directory.write_status(written.status)
    assert directory.load() == written


def test_notices_of_an_older_version_are_read(tmp_path: Path) -> None:
    directory = open_run_directory(tmp_path / "run")
    directory.write_job(new_run(job(), NOW))
    (directory.path / "status.json").write_text(json.dumps({"phase": "Running", "notices": ["summaries cannot be written"]}))
    loaded = directory.load()
    assert loaded is not None
    assert loaded.status.notices == (Notice(reason=NoticeReason.NOTICE, message="summaries cannot be written"),)


def test_the_job_file_of_a_run_has_only_the_fields_of_the_user(tmp_path: Path) -> None:
    directory = open_run_directory(tmp_path)
    directory.write_job(new_run(job(), NOW))
    assert "recovery" not in (tmp_path / "job.yaml").read_text()


def test_a_failed_write_is_a_storage_error_and_leaves_the_old_content(tmp_path: Path) -> None:
    directory = open_run_directory(tmp_path)
    directory.write_status(TrainingJobStatus(message="old"))
    (tmp_path / ".status.json.new").mkdir()
    with pytest.raises(StorageError, match=r"status\.json: cannot be written") as caught:
        directory.write_status(TrainingJobStatus(message="new"))
    assert caught.value.code is ExitCode.STORAGE_UNAVAILABLE
    assert "old" in (tmp_path / "status.json").read_text()


def test_a_directory_in_use_is_refused_with_the_pid_of_its_user(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from muster.local.rundir import open_run_directory\n"
        "held = open_run_directory(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigurationError, match=f"pid {other.pid} "):
            open_run_directory(tmp_path)
    finally:
        other.communicate()
    open_run_directory(tmp_path).release()


def test_a_directory_with_a_run_is_refused_without_a_flag(tmp_path: Path) -> None:
    left_by(tmp_path / "r", phase=Phase.RUNNING, progress=Progress(step=40, total_steps=100, updated_at=NOW))
    with pytest.raises(ConfigurationError, match=r"step 40 of 100.*muster run job\.yaml --resume"):
        start(tmp_path / "r")
    start(tmp_path / "r", resume=True).directory.release()  # the refusal has released the lock


def test_resume_continues_with_the_same_identity_and_attempt(tmp_path: Path) -> None:
    run = left_by(
        tmp_path / "r",
        phase=Phase.RUNNING,
        attempt=2,
        admitted_time=NOW,
        attempts=(
            failed(1),
            failed(2, end_time=None, failure_class=None),
        ),
    )
    begun = start(tmp_path / "r", resume=True)
    assert begun.job.metadata.uid == run.metadata.uid
    assert begun.job.metadata.creation_timestamp == run.metadata.creation_timestamp
    assert begun.job.status.attempt == 2
    assert begun.job.status.attempts[-1].end_time == NOW


def test_resume_without_a_run_names_the_existing_runs_and_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        start(tmp_path / "typo", resume=True)
    assert absent(str(error.value), f"{tmp_path}/typo: ", "muster run job.yaml") == []
    left_by(tmp_path / "r", phase=Phase.RUNNING)
    with pytest.raises(ConfigurationError, match=f"--run-dir: {tmp_path}/r.*muster run"):
        start(tmp_path / "typo", resume=True)
    assert not (tmp_path / "typo").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=f"^{tmp_path}/empty: "):
        start(tmp_path / "empty", resume=True)


def test_resume_of_a_finished_run_does_nothing_unless_the_job_has_grown(tmp_path: Path) -> None:
    left_by(tmp_path / "r", phase=Phase.SUCCEEDED)
    begun = start(tmp_path / "r", resume=True)
    assert begun.finished
    begun.directory.release()
    more = job(trainer={"script": "train.py", "config": {"epochs": 9}})
    assert not start(tmp_path / "r", more, resume=True).finished


def test_fresh_moves_the_old_run_aside_and_starts_a_newer_one(tmp_path: Path) -> None:
    first = left_by(tmp_path / "r", phase=Phase.FAILED)
    second = start(tmp_path / "r", fresh=True)
    second.directory.release()
    third = start(tmp_path / "r", fresh=True)
    assert (tmp_path / "r.1/job.yaml").exists()
    assert (tmp_path / "r.2/job.yaml").exists()
    created = [run.metadata.creation_timestamp for run in (first, second.job, third.job)]
    assert created == [NOW, NOW + timedelta(seconds=1), NOW + timedelta(seconds=2)]
    assert len({run.metadata.uid for run in (first, second.job, third.job)}) == 3
    assert third.job.spec.checkpoint.resume == "Never"


def test_fresh_moves_a_run_that_cannot_be_read(tmp_path: Path) -> None:
    left_by(tmp_path / "r")
    (tmp_path / "r/status.json").write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        start(tmp_path / "r", resume=True)
    start(tmp_path / "r", fresh=True)
    assert (tmp_path / "r.1/status.json").read_text() == "{"


CHANGED = {
    "spec.strategy": {"strategy": "FSDP"},
    "spec.trainer.script": {"trainer": {"script": "other.py"}},
    "spec.trainer.config.seed": {"trainer": {"script": "train.py", "config": {"seed": 4}}},
    "spec.trainer.settings.seed": {"trainer": {"script": "train.py", "settings": {"seed": 4}}},
    "spec.batch.globalSize": {"batch": {"globalSize": 128}},
}


@pytest.mark.parametrize(("field", "change"), CHANGED.items())
def test_a_change_of_a_field_that_defines_the_training_is_refused(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match=field):
        continued(job(**change), new_run(job(), NOW))


def test_replicas_epochs_and_learning_rate_may_change() -> None:
    run = new_run(job(), NOW)
    wanted = job(trainer={"script": "train.py", "config": {"epochs": 9, "learningRate": 0.1}}, roles={"worker": {"replicas": 5}})
    assert continued(wanted, run).spec == wanted.spec
    assert continued(wanted, run).metadata.generation == 2


def test_a_resumed_run_has_full_budgets_and_its_old_history() -> None:
    restarts = Restarts(total=4, infrastructure=(NOW,), infrastructure_count=4, without_progress=3, best_step=70)
    before = TrainingJobStatus(
        phase=Phase.FAILED,
        attempt=4,
        attempts=(
            failed(3),
            failed(4),
        ),
        restarts=restarts,
        completion_time=NOW,
    )
    after = reopened(before)
    assert after.phase is Phase.SUSPENDED
    assert (after.restarts.total, after.restarts.best_step, after.restarts.infrastructure_count) == (4, 70, 0)
    assert after.restarts.without_progress == 0
    assert after.attempts[-1].failure_class is None
    assert after.attempts[-1].reason is Reason.PROCESS_KILLED
    assert after.attempts[0] == before.attempts[0]


def test_old_a_termination_message_is_removed_from_the_directory_of_a_replica(tmp_path: Path) -> None:
    directory: RunDirectory = open_run_directory(tmp_path)
    folder = directory.replica(3, "worker-0")
    directory.prepare(folder)
    (folder / "termination.json").write_text("{}")
    directory.prepare(folder)
    assert list(folder.iterdir()) == []


LAUGHS = "a: &a [1]\n" + "".join(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghijk"))


@pytest.mark.parametrize("name", ["job.yaml", "status.json"])
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(LAUGHS),
        lambda path: path.write_bytes(b"\xff"),
    ],
)
def test_a_run_that_others_have_written_is_read_within_bounds(name: str, make: Callable[[Path], object], tmp_path: Path) -> None:
    left_by(tmp_path)
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_run(tmp_path)


def test_a_lock_and_a_draft_that_are_links_change_no_other_file(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "run"
    other.write_text("content")
    left_by(path)
    (path / ".status.json.new").symlink_to(other)
    directory = open_run_directory(path)
    directory.write_status(TrainingJobStatus())
    directory.release()
    (path / "lock").unlink()
    (path / "lock").symlink_to(other)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        open_run_directory(path)
    assert other.read_text() == "content"


def test_a_lock_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(ConfigurationError, match="not a regular file"):
        open_run_directory(tmp_path)
    assert pid_of_run(tmp_path) is None


def test_the_process_of_a_run_is_not_that_of_a_copy_of_its_directory(tmp_path: Path) -> None:
    """The Python client stops the process of a run."""
    directory = open_run_directory(tmp_path / "run")
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")  # keeps the times of files
    assert pid_of_run(tmp_path / "run") == os.getpid()
    assert pid_of_run(copy) is None
    directory.release()
    assert pid_of_run(tmp_path / "run") is None


def test_a_log_that_is_a_pipe_has_no_lines(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.txt")
    assert LogFollower().lines(tmp_path / "log.txt") == []


def write_log(folder: Path) -> None:
    table = ProcessTable(lambda: NOW, lambda: None)
    launch = Launch(argv=("true",), env={}, ignored=())
    asyncio.run(table.start(Identity("job-worker-0", "uid", "worker", 0, 0, folder), launch, cwd=folder))


def write_token(folder: Path) -> None:
    channel = LocalChannel(Reports(), reply_to=lambda uid, report: Reply(attempt=0), wake=lambda: None)
    channel.write_token(folder / "token", "uid")


def write_object(folder: Path) -> None:
    directory = RunDirectory(folder / "run", lock=io.StringIO())
    directory.objects.mkdir(parents=True)
    (directory.objects / "name").symlink_to(folder, target_is_directory=True)
    directory.write_object("name", lambda: {"key": "text"}, keep=False)


def write_log_of_inputs(folder: Path) -> None:
    nothing: Any = lambda _: None  # noqa: E731
    asyncio.run(Fetcher(folder / "inputs", folder / "inputs.log", "mark", show=nothing, say=nothing).fetch(job()))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("other"), Path.mkdir])
@pytest.mark.parametrize(
    ("name", "write"), [("log.txt", write_log), ("token", write_token), ("key", write_object), ("inputs.log", write_log_of_inputs)]
)
def test_a_run_writes_to_regular_files_only(
    name: str, write: Callable[[Path], None], make: Callable[[Path], object], tmp_path: Path
) -> None:
    """Code of the job can put a pipe there, which would block, or a link that leads elsewhere."""
    make(tmp_path / name)
    with pytest.raises(StorageError, match=f"{name}: cannot be written: ") as refused:
        write(tmp_path)
    assert not (tmp_path / "other").exists()
    assert "such device" not in str(refused.value)  # the system's words for a pipe that nobody reads


@pytest.mark.timeout(60)
def test_a_log_that_is_a_pipe_does_not_end_in_lines(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.txt")
    assert log_tail(tmp_path / "log.txt") == []
