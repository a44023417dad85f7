"""`muster get`, `logs`, `explain` and the others, as processes, on the runs of `muster run`, where there is no cluster."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.local_jobs import TRAIN, LocalJob, finish, job
from tests.support.texts import absent
from tests.support.waiting import wait_until


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "train.py").write_text(TRAIN)
    return LocalJob(tmp_path)


def test_a_run_is_listed_explained_and_followed_as_a_job_of_a_cluster_is(local_job: LocalJob) -> None:
    with local_job.running(local_job.write(job(trainer={"script": "train.py 100000 0.05"}))):
        local_job.wait_for_commit()
        header, row = local_job.shows("get").splitlines()
        assert header.split()[:3] == ["NAME", "STRATEGY", "PHASE"]
        assert row.split()[:4] == ["runs/tiny", "DDP", "Running", "2/2"]
        assert json.loads(local_job.shows("get", "tiny", "-o", "json"))["status"]["phase"] == "Running"
        ranks = [line.split() for line in local_job.shows("get", "-o", "wide").partition("JOB")[2].splitlines()[1:]]
        pids = [str(process["pid"]) for entry in local_job.processes() for process in entry["processes"]]
        assert [row[:5] for row in ranks] == [["runs/tiny", f"worker-{rank}", f"{rank}", pids[rank], "Running"] for rank in range(2)]
        titles = [psutil.Process(int(pid)).cmdline()[2] for pid in pids]
        assert titles == [f"muster=tiny/worker-{rank}/rank-{rank}" for rank in range(2)]
        assert local_job.shows("explain", "runs/tiny").startswith("tiny is Running")
        assert local_job.shows("logs", "tiny", "--replica", "worker-1") == "[worker-1] rank 1 goes on from step 0\n"


def test_the_commands_find_a_run_that_has_ended_and_names_like_its_own(local_job: LocalJob) -> None:
    missing = local_job.command("get", "tiny")
    assert (missing.returncode, absent(missing.stderr, "no cluster", "--kubeconfig")) == (3, [])
    assert local_job.muster_run(local_job.write(job(trainer={"script": "train.py 5 0"})))[0] == 0
    assert local_job.shows("get", "-o", "name") == "runs/tiny\n"
    assert local_job.shows("watch", "tiny").splitlines()[-1].startswith("tiny succeeded")
    assert len(local_job.shows("logs", "tiny", "--follow").splitlines()) == 2
    local_job.shows("report", "tiny")
    assert (local_job.run / "report.html").exists()
    missing = local_job.command("explain", "runs/tini")
    assert (missing.returncode, absent(missing.stderr, "there is no run tini", "did you mean tiny?")) == (7, [])


def test_a_run_whose_process_was_killed_counts_as_suspended(local_job: LocalJob) -> None:
    with local_job.running(local_job.write(job())) as process:
        local_job.wait_for_commit()
        process.kill()
        wait_until(lambda: "Suspended" in local_job.shows("get"), "the run to count as suspended")
        assert absent(local_job.shows("explain", "tiny"), "tiny is Suspended", "muster resume tiny") == []


def test_a_run_is_suspended_resumed_in_its_place_and_deleted(local_job: LocalJob) -> None:
    (local_job.folder / "jobs").mkdir()
    (local_job.folder / "train.py").rename(local_job.folder / "jobs/train.py")  # the run finds it beside the job file
    local_job.write(job(trainer={"script": "train.py 100000 0.05 0.05"}), "jobs/job.yaml")
    local_job.name = "other"  # a run directory may have another name than its job
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        process = local_job.start("jobs/job.yaml", "--run-dir", "runs/other")
    finally:
        signal.signal(signal.SIGHUP, before)
    local_job.wait_for_commit()
    local_job.shows("suspend", "other")
    code, output = finish(process)
    assert (code, absent(output, "saved at step", "Continue with")) == (21, [])
    assert local_job.command("watch", "other").returncode == 21
    local_job.shows("resume", "other")
    try:
        resumed = wait_until(lambda: local_job.status["attempts"][-1].get("stepResumed"), "the run to go on from its commit")
        assert resumed >= 5
    finally:
        deleted = local_job.shows("delete", "other")
    assert "runs/other.1" in deleted
    assert not local_job.run.exists()
    assert "other" not in local_job.command("get").stdout
    again = local_job.command("delete", "other.1")
    assert (again.returncode, absent(again.stderr, "deleted already", "remove the folder")) == (11, [])
    local_job.assert_nothing_left()


FAILS = """
import os, sys, time
print("out of rank", os.environ["RANK"])  # the pipe to the supervisor has no buffer
if not os.path.exists("failed"):
    open("failed", "w").close()
    raise RuntimeError("planned")
time.sleep(1000)
"""


def test_a_script_s_own_output_is_shown_as_it_comes_and_a_traceback_by_previous(local_job: LocalJob) -> None:
    (local_job.folder / "fails.py").write_text(FAILS)
    with local_job.running(local_job.write(job(replicas=1, trainer={"script": "fails.py"}))):
        wait_until(lambda: len(local_job.status.get("attempts", ())) == 2 and local_job.processes(), "the second attempt")
        wait_until(lambda: local_job.shows("logs", "tiny").count("out of rank 0") == 2, "what the script printed")
        previous = local_job.shows("logs", "tiny", "--previous")
    assert absent(previous, "Traceback", "fails.py", "RuntimeError: planned") == []
    assert previous.count("out of rank 0") == 1


def test_run_and_validate_answer_programs_in_json(local_job: LocalJob) -> None:
    file = local_job.write(job(trainer={"script": "train.py 5 0"}))
    answer = json.loads(local_job.shows("validate", file, "-o", "json"))
    assert (answer["valid"], answer["job"], answer["warnings"]) == (True, "default/tiny", [])
    assert json.loads(local_job.shows("run", file, "-o", "json", "--quiet"))["status"]["phase"] == "Succeeded"
    refused = local_job.command("validate", local_job.write(job(strategy="DDDP")), "-o", "json")
    [problem] = json.loads(refused.stdout)["problems"]
    assert (refused.returncode, problem["field"]) == (11, "spec.strategy")
