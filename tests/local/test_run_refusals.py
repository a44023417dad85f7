"""A job that cannot run ends within seconds with one message that names file, field and remedy, and leaves no process behind."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from tests.support.local_jobs import TRAIN, LocalJob, job

SECONDS = 60.0


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "train.py").write_text(TRAIN)
    return LocalJob(tmp_path)


REFUSED = {
    "unknown strategy": (job(strategy="DPP"), "job.yaml:11: spec.strategy"),
    "unknown field": (job(replicaz=3), "spec.replicaz"),
    "negative count": (job(replicas=-1), "spec.roles.worker.replicas"),
    "missing script": (job(trainer={"script": "nope.py"}), "job.yaml: spec.trainer.script: there is no file 'nope.py'"),
    "script with a syntax error": (
        job(trainer={"script": "bad.py"}),
        "spec.trainer.script: bad.py:1: invalid syntax",
    ),
    "missing program": (job(trainer={"command": ["no-such-program"]}), "spec.trainer.command: the program 'no-such-program' is not found"),
    "missing task": (job(trainer={"task": "digitz"}, batch={"globalSize": 64}), "spec.trainer.task: there is no task 'digitz'"),
    "missing module": (job(trainer={"module": "no_such"}, batch={"globalSize": 64}), "spec.trainer.module: there is no module no_such"),
    "batch smaller than the world": (job(trainer={"task": "digits"}, batch={"globalSize": 1}), "spec.batch.globalSize"),
    "storage elsewhere": (
        job(checkpoint={"storage": {"uri": "gs://b/c"}}),
        "must be file:///path, with three slashes, or s3://bucket/prefix",
    ),
    "preset of a cluster": (job(preset="h100-8"), "job.yaml: spec.preset: h100-8 is a preset of a cluster, and is needed here"),
    "no YAML": ("spec: [", "is not YAML"),
    "several documents": ("a: 1\n---\nb: 2\n", "holds 2 documents"),
}


@pytest.mark.parametrize(("document", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_job_that_cannot_run_is_refused_with_one_message(local_job: LocalJob, document: object, message: str) -> None:
    (local_job.folder / "bad.py").write_text("def f(:\n")
    local_job.write(document)
    code, output = local_job.muster_run("job.yaml", seconds=SECONDS)
    assert code == 11, output
    assert output.count(message) == 1, output
    assert "job.yaml:" in output
    assert "Traceback" not in output


def test_an_unwritable_checkpoint_folder_is_refused(local_job: LocalJob) -> None:
    (local_job.folder / "file").write_text("")
    local_job.write(job(checkpoint={"storage": {"uri": f"file://{local_job.folder}/file/checkpoints"}}))
    code, output = local_job.muster_run("job.yaml")
    assert code == 11
    assert f"job.yaml: spec.checkpoint.storage: {local_job.folder}/file/checkpoints cannot be written" in output


def test_an_unwritable_run_directory_is_refused(local_job: LocalJob) -> None:
    (local_job.folder / "file").write_text("")
    local_job.write(job())
    code, output = local_job.muster_run("job.yaml", "--run-dir", "file/run")
    assert code == 11
    assert "file/run: the run directory cannot be written" in output


def test_a_directory_that_holds_something_else_is_left_alone(local_job: LocalJob) -> None:
    (local_job.folder / "mine").mkdir()
    (local_job.folder / "mine/thesis.txt").write_text("years of work")
    local_job.write(job())
    for option in ((), ("--fresh",)):
        code, output = local_job.muster_run("job.yaml", "--run-dir", "mine", *option)
        assert code == 11
        assert "has files but no run" in output
    assert [path.name for path in (local_job.folder / "mine").iterdir()] == ["thesis.txt"]


def test_a_port_in_use_is_named_with_the_remedy(local_job: LocalJob) -> None:
    local_job.write(job())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        code, output = local_job.muster_run("job.yaml", "--ports", f"{port}-{port}")
    assert code == 11
    assert f"{port}" in output
    assert "give a larger range" in output


def test_the_ports_of_a_range_are_used_again_by_the_next_attempt_where_it_has_no_others(local_job: LocalJob) -> None:
    (local_job.folder / "once.py").write_text(
        "import os, sys\nprint('port', os.environ['MASTER_PORT'], flush=True)\nsys.exit(0 if os.environ['MUSTER_ATTEMPT'] == '1' else 20)"
    )
    local_job.write(job(trainer={"script": "once.py"}, replicas=1))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, output = local_job.muster_run("job.yaml", "--ports", f"{port}-{port}")
    assert code == 0, output
    assert [line for line in local_job.logs().splitlines() if line.startswith("port")] == [f"port {port}"] * 2


def test_debug_shows_the_traceback(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "nope.py"}))
    code, output = local_job.muster_run("job.yaml", "--debug")
    assert code == 11
    assert "Traceback" in output


def test_set_lays_fields_over_the_job_and_names_what_is_wrong(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 10 0.01"}))
    code, output = local_job.muster_run("job.yaml", "--set", "spec.roles.worker.replicas=none")
    assert code == 11
    assert "--set: spec.roles.worker.replicas" in output
    code, output = local_job.muster_run("job.yaml", "--set", "spec.roles.worker.replicas=1")
    assert code == 0, output
    assert yaml.safe_load((local_job.run / "job.yaml").read_text())["spec"]["roles"]["worker"]["replicas"] == 1


def test_gpus_that_are_not_here_are_no_error(local_job: LocalJob) -> None:
    roles = {"worker": {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}}}
    document = job(trainer={"script": "train.py 5 0.01"})
    document["spec"]["roles"] = roles
    local_job.write(document)
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        assert "asks for nvidia.com/gpu; this machine has none, so the job runs on CPU" in output
