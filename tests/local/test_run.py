"""`muster run` from start to end: success, failures, kills, stops, and the rules for a second run. It uses tiny scripts, so that it is
fast."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from muster.local.runner import SAME_REQUEST_SECONDS
from muster.local.sweep import RUN_MARK, marked
from muster.tools.report.history import read_history
from tests.support.local_jobs import TRAIN, LocalJob, finish, has_ended, is_running, job, mark_in
from tests.support.waiting import wait_until


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "train.py").write_text(TRAIN)
    return LocalJob(tmp_path)


def test_a_job_runs_to_its_end_and_leaves_logs_events_and_status(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 20 0.01"}))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    assert "tiny succeeded, 20 steps" in output
    assert local_job.status["phase"] == "Succeeded"
    assert "rank 1 goes on from step" in (local_job.run / "attempts/0/worker-1/log.txt").read_text()
    events = [json.loads(line) for line in (local_job.run / "attempts/0/worker-0/events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(1, 21))
    assert (local_job.run / "checkpoints/default/tiny/step").read_text() == "20"
    assert local_job.processes() == []


def test_a_programs_own_exit_code_22_is_a_failure_with_a_budget_and_no_preemption(local_job: LocalJob) -> None:
    command = ["sh", "-c", "echo 'curl: (22) The requested URL returned error: 404' >&2; exit 22"]
    local_job.write(job(trainer={"command": command}, replicas=1, recovery={"application": {"limit": 1}}))
    code, output = local_job.muster_run("job.yaml")
    assert code == 10, output
    status = local_job.status
    assert [record["reason"] for record in status["attempts"]] == ["UserError", "UserError"]
    assert (status["restarts"]["applicationCount"], status["restarts"]["preemptionCount"]) == (1, 0)
    assert [record["exitCode"] for record in status["attempts"]] == [22, 22]


def test_a_program_that_reports_nothing_has_no_figures_of_steps(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"command": ["sh", "-c", "test -e ran && exit 0; touch ran; sleep 0.5; exit 1"]}, replicas=1))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    status = local_job.status
    assert status["goodput"].keys() == {f"{part}Seconds" for part in ("queued", "starting", "unreported", "recovering", "suspended")}
    assert status["attempts"][1]["phases"].keys() == {"detectSeconds", "scheduleSeconds"}
    [complete] = [each for each in status["conditions"] if each["type"] == "Complete"]
    assert complete["reason"] == "CompletedWithoutReport"
    assert status["restarts"]["total"] == 1


@pytest.mark.parametrize("policy", ["Running", "None"])
def test_replicas_that_still_run_when_the_job_has_failed_end_soon_whatever_is_cleaned_up(local_job: LocalJob, policy: str) -> None:
    command = ["sh", "-c", "if [ $RANK = 0 ]; then sleep 0.5; exit 1; fi; sleep 3600"]
    local_job.write(job(trainer={"command": command}, recovery={"application": {"limit": 0}}, cleanPodPolicy=policy))
    code, output = local_job.muster_run("job.yaml")
    assert code == 10, output
    status = local_job.status
    assert (status["phase"], status["roles"][0]["failed"]) == ("Failed", 1)


def test_replicas_get_the_world_of_the_job_on_distinct_ports_of_loopback(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"command": ["env"]}, replicas=3))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    worlds = []
    for index in range(3):
        text = (local_job.run / f"attempts/0/worker-{index}/log.txt").read_text()
        worlds.append(dict(line.split("=", 1) for line in text.splitlines() if "=" in line))
    assert [world["PET_NODE_RANK"] for world in worlds] == ["0", "1", "2"]
    assert {world["MASTER_ADDR"] for world in worlds} == {"127.0.0.1"}
    assert len({world["MASTER_PORT"] for world in worlds}) == 1
    assert {world["HOME"] for world in worlds} == {os.environ["HOME"]}


def test_a_killed_process_is_a_new_attempt_that_resumes_and_finishes(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 1000 0.01"}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        os.kill(local_job.pid_of("worker-1"), signal.SIGKILL)
        code, output = finish(run)
    assert code == 0, output
    first, second = local_job.status["attempts"]
    assert (first["class"], first["replica"]) == ("Infrastructure", "worker-1")
    assert (first["reason"], first["signal"]) == ("ProcessKilled", "SIGKILL")
    assert second["stepResumed"] >= 5
    assert [path.name for path in (local_job.run / "attempts").iterdir()] == ["0"]  # in the replicas that were there


def test_a_killed_supervisor_is_a_new_attempt_and_its_processes_end_first(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 1000 0.01 0.005"}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        training = psutil.Process(local_job.pid_of("worker-0"))
        os.kill(local_job.supervisor_of("worker-0"), signal.SIGKILL)
        wait_until(lambda: local_job.status["attempt"] == 1 and len(local_job.processes()) == 2, "the second attempt")
        assert has_ended(training)
        code, output = finish(run)
    assert code == 0, output
    assert local_job.status["attempts"][0]["replica"] == "worker-0"
    assert [path.name for path in (local_job.run / "attempts/1").iterdir()] == ["worker-0"]  # worker-1 was kept


def test_when_muster_run_is_killed_nothing_survives_and_resume_finishes(local_job: LocalJob) -> None:
    local_job.write(job())
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        uid, mark = _uid(local_job), local_job.mark
        assert marked(RUN_MARK, mark)
        os.kill(run.pid, signal.SIGKILL)
        wait_until(lambda: not marked(RUN_MARK, mark), "the guard to end all processes")
        assert int((local_job.run / "checkpoints/default/tiny/step").read_text()) < 2000  # they were ended, and did not finish
    code, output = local_job.muster_run("job.yaml", "--resume")
    assert code == 0, output
    status = local_job.status
    assert [record["attempt"] for record in status["attempts"]] == [0, 1]
    assert status["attempts"][1]["stepResumed"] >= 5
    assert _uid(local_job) == uid


def test_steps_after_the_last_status_of_muster_run_count_when_it_is_resumed(local_job: LocalJob) -> None:
    local_job.write(job())
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        os.kill(run.pid, signal.SIGSTOP)  # it writes no more, and its replicas go on
        step_before = local_job.step
        wait_until(lambda: max(local_job.losses()) >= step_before + 20, "more steps")
        os.kill(run.pid, signal.SIGKILL)
    last = max(local_job.losses())
    (local_job.run / "checkpoints/default/tiny/step").write_text("5")  # the commits since are lost
    code, output = local_job.muster_run("job.yaml", "--resume")
    assert code == 0, output
    status, history = local_job.status, read_history(local_job.run)
    first, second = status["attempts"]
    assert first["lastStep"] == last
    assert second["stepsLost"] == len(history.redone) == last - 5
    assert second["stepCommitted"] == 5
    assert status["goodput"]["redoneSeconds"] >= 0.9 * sum(step.seconds for step in history.redone)
    assert status["goodput"]["productiveSteps"] == 2000


def test_steps_that_a_killed_supervisor_had_not_reported_count_as_lost(local_job: LocalJob) -> None:
    (local_job.folder / "train.py").write_text(TRAIN.replace("if step % 5 == 0:", "if step == 5:"))
    local_job.write(job(trainer={"script": "train.py 2000 0.01"}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_step(20)
        os.kill(local_job.supervisor_of("worker-0"), signal.SIGKILL)
        code, output = finish(run)
    assert code == 0, output
    first, second = local_job.status["attempts"]
    assert first["lastStep"] == max(event["step"] for event in local_job.events("step") if event["attempt"] == 0)
    assert second["stepsLost"] == len(read_history(local_job.run).redone) == first["lastStep"] - 5


def test_when_guard_and_muster_run_are_killed_the_next_run_ends_what_is_left(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 2000 0.01"}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        [guard] = _guards(run.pid)
        os.kill(run.pid, signal.SIGSTOP)  # lest it replaces the guard
        guard.kill()
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        before = {process.pid for process in marked(RUN_MARK, local_job.mark)}
        assert before
        with local_job.running("job.yaml", "--resume"):
            wait_until(lambda: local_job.status["attempt"] == 1, "the second attempt")
            assert not before & {process.pid for process in marked(RUN_MARK, local_job.mark)}


@pytest.mark.parametrize("options", [[], ["--resume"], pytest.param(["--fresh"], marks=pytest.mark.thorough)])
def test_a_run_of_a_copied_directory_ends_nothing_of_the_original(local_job: LocalJob, options: list[str]) -> None:
    local_job.write(job(trainer={"script": "train.py 20000 0.01"}))
    copy = local_job.folder / "runs" / "copy"
    with local_job.running("job.yaml"):
        local_job.wait_for_commit()
        copy.mkdir()
        for name in ("job.yaml", "status.json", "lock"):
            shutil.copy(local_job.run / name, copy)
        processes = {psutil.Process(local_job.pid_of(replica)) for replica in ("worker-0", "worker-1")}
        second = local_job.start("job.yaml", "--run-dir", "runs/copy", *options)
        try:
            if options:
                wait_until(lambda: _runs(copy), "the run of the copy")
                second.send_signal(signal.SIGINT)
            assert finish(second)[0] in ((21, 22) if options else (11,))
        finally:
            second.kill()
        assert not any(has_ended(process) for process in processes)
        step = local_job.step
        wait_until(lambda: local_job.step > step, "more steps of the first run")
        assert local_job.status["attempt"] == 0


def test_a_supervisor_that_is_stopped_is_killed_and_the_job_ends(local_job: LocalJob) -> None:
    local_job.write(job())
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        os.kill(local_job.supervisor_of("worker-1"), signal.SIGSTOP)
        code, output = finish(run)
    assert code == 0, output
    killed, last = local_job.status["attempts"]
    assert (killed["reason"], killed["class"], killed["replica"]) == ("ProcessKilled", "Infrastructure", "worker-1")
    assert killed["message"] == "its supervisor did not report for 8 s, so Muster killed the replica"
    assert last["stepResumed"] > 0


@pytest.mark.parametrize("frozen", ["supervisor", "training process"])
def test_ctrl_c_saves_and_ends_a_run_with_a_stopped_process(local_job: LocalJob, frozen: str) -> None:
    grace = 600  # so that the run does not end in time if the process stays stopped
    local_job.write(job(trainer={"script": "train.py 20000 0.01"}, checkpoint={"gracePeriodSeconds": grace}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        pid = local_job.supervisor_of("worker-0") if frozen == "supervisor" else local_job.pid_of("worker-0")
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the process is stopped")
        run.send_signal(signal.SIGINT)
        code, output = finish(run)
    assert code == 21, output
    assert local_job.status["attempts"][-1]["reason"] == "Suspended"


def test_without_resume_or_fresh_what_is_left_of_a_run_goes_on(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 20000 0.01"}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        [guard] = _guards(run.pid)
        os.kill(run.pid, signal.SIGSTOP)  # so that it does not replace the guard
        guard.kill()
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        left = {process.pid for process in marked(RUN_MARK, local_job.mark)}
        code, output = finish(local_job.start("job.yaml"))
        assert code == 11, output
        assert left == {process.pid for process in marked(RUN_MARK, local_job.mark)}
        with local_job.running("job.yaml", "--resume"):
            wait_until(lambda: local_job.status["attempt"] == 1, "the second attempt")


def test_a_killed_guard_is_replaced(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 20000 0.01"}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        [guard] = _guards(run.pid)
        guard.kill()
        wait_until(lambda: _guards(run.pid) not in ([], [guard]), "another guard")
        os.kill(run.pid, signal.SIGKILL)  # and it does its work: `running` sees to that


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.thorough)],
)
def test_a_stopped_run_saves_and_resumes(local_job: LocalJob, number: signal.Signals) -> None:
    local_job.write(job())
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        run.send_signal(number)
        code, output = finish(run)
    assert code == 21, output
    saved = local_job.committed
    assert local_job.status["phase"] == "Suspended"
    code, output = local_job.muster_run("job.yaml", "--resume")
    assert code == 0, output
    assert local_job.status["attempts"][1]["stepResumed"] == saved
    assert local_job.status["restarts"]["total"] == 0


EVALUATES = """
if begun < steps:
    while not stop:
        time.sleep(0.01)
    time.sleep({rest})
"""
"""An evaluation that goes on for some seconds after the request to stop."""


@pytest.mark.parametrize(("rest", "grace"), [pytest.param(0.5, 30, id="that ends in time"), pytest.param(600, 1, id="that is killed")])
def test_a_run_that_is_stopped_in_an_evaluation_has_saved_all_steps(local_job: LocalJob, rest: float, grace: int) -> None:
    (local_job.folder / "train.py").write_text(TRAIN + EVALUATES.format(rest=rest))
    local_job.write(job(trainer={"script": "train.py 20 0.01"}, checkpoint={"gracePeriodSeconds": grace}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit(20)
        run.send_signal(signal.SIGINT)
        code, output = finish(run)
    assert code == 21, output
    assert local_job.status["attempts"][0]["lastStep"] == 20
    code, output = local_job.muster_run("job.yaml", "--resume")
    assert code == 0, output
    assert local_job.status["attempts"][1]["stepResumed"] == 20


def test_a_second_ctrl_c_ends_everything_at_once(local_job: LocalJob) -> None:
    (local_job.folder / "stubborn.py").write_text(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    local_job.write(job(trainer={"script": "stubborn.py"}, checkpoint={"gracePeriodSeconds": 500}))
    with local_job.running("job.yaml") as run:
        wait_until(lambda: local_job.logs().count("up") == 2, "both workers")
        run.send_signal(signal.SIGINT)
        wait_until(lambda: local_job.status.get("message", "").startswith("suspending"), "the reaction to the first Ctrl-C")
        later = time.monotonic() + SAME_REQUEST_SECONDS
        wait_until(lambda: time.monotonic() > later, "the time in which a signal belongs to the first Ctrl-C")
        run.send_signal(signal.SIGINT)
        code, output = finish(run)
    assert code == 22, output
    assert "checkpoint" not in local_job.status


def test_a_daemon_that_a_script_leaves_behind_is_ended(local_job: LocalJob) -> None:
    (local_job.folder / "daemon.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('child', child.pid, flush=True)\n"
    )
    local_job.write(job(trainer={"script": "daemon.py"}, replicas=1))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    pid = int(local_job.logs().split("child ")[1].split()[0])
    assert not is_running(pid)


def test_what_a_replica_without_supervisor_leaves_behind_is_gone_before_the_next_attempt(local_job: LocalJob) -> None:
    (local_job.folder / "leaves.py").write_text(
        "import os, pathlib, psutil, subprocess, sys\n"
        "left = pathlib.Path('left')\n"
        "if os.environ['MUSTER_ATTEMPT'] == '0':\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "    left.write_text(str(child.pid))\n"
        "    sys.exit(1)\n"
        "pid = int(left.read_text())\n"
        "try:\n"
        "    found = psutil.Process(pid).status()\n"
        "except psutil.NoSuchProcess:\n"
        "    found = 'gone'\n"
        "print('left is', found, flush=True)\n"
    )
    local_job.write(job(trainer={"command": ["python", "leaves.py"], "supervisor": "Disabled"}, replicas=1))
    code, output = local_job.muster_run("job.yaml")
    assert code == 0, output
    assert local_job.logs().strip() in ("left is gone", "left is zombie")


def test_a_second_run_at_the_same_time_is_refused_with_the_pid_of_the_first(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 12000 0.01"}))
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        for option in ("--resume", "--fresh"):
            code, output = local_job.muster_run_beside("job.yaml", option)
            assert code == 11
            assert f"pid {run.pid}" in output
        run.send_signal(signal.SIGINT)
        assert finish(run)[0] == 21


def test_a_second_run_of_a_finished_job_needs_resume_or_fresh(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 10 0.01"}))
    assert local_job.muster_run("job.yaml")[0] == 0
    uid = _uid(local_job)
    code, output = local_job.muster_run("job.yaml")
    assert code == 11
    assert "muster run job.yaml --fresh" in output
    code, output = local_job.muster_run("job.yaml", "--resume")
    assert code == 0
    assert _uid(local_job) == uid
    code, output = local_job.muster_run("job.yaml", "--fresh")
    assert code == 0, output
    assert _uid(local_job) != uid
    assert local_job.status["attempts"][0].get("stepResumed") == 0
    assert (local_job.folder / "runs/tiny.1/status.json").exists()


def test_resume_refuses_another_training_and_takes_more_replicas(local_job: LocalJob) -> None:
    local_job.write(job())
    with local_job.running("job.yaml") as run:
        local_job.wait_for_commit()
        run.send_signal(signal.SIGINT)
        assert finish(run)[0] == 21
    local_job.write(job(trainer={"script": "other.py"}))
    (local_job.folder / "other.py").write_text("")
    code, output = local_job.muster_run("job.yaml", "--resume")
    assert code == 11
    assert 'spec.trainer.script: the run in progress has "train.py 2000 0.01", the file has "other.py"' in output
    local_job.write(job(replicas=3))
    code, output = local_job.muster_run("job.yaml", "--resume")
    assert code == 0, output
    assert (local_job.run / "attempts/1/worker-2").is_dir()


def test_a_failed_run_is_taken_up_again_when_the_script_is_mended(local_job: LocalJob) -> None:
    script = local_job.folder / "broken.py"
    script.write_text("print('one line')\nraise ValueError('the reason')\n")
    local_job.write(job(trainer={"script": "broken.py"}, replicas=1, recovery={"application": {"limit": 0}}))
    code, output = local_job.muster_run("job.yaml")
    assert code == 10, output
    [failed] = local_job.status["attempts"]
    assert (failed["reason"], failed["exitCode"], failed["replica"]) == ("UserError", 1, "worker-0")
    assert "runs/tiny/attempts/0/worker-0/log.txt" in output
    assert "| one line" in output
    script.write_text("print('mended')\n")
    code, output = local_job.muster_run("job.yaml", "--resume")
    assert code == 0, output
    assert local_job.status["attempt"] == 1


def test_logs_are_shown_on_request(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 5 0.01"}))
    code, output = local_job.muster_run("job.yaml", "--logs")
    assert code == 0, output
    assert "[worker-1] rank 1 goes on from step" in output


def test_a_script_is_found_beside_the_job_file_and_its_folder_is_importable(local_job: LocalJob) -> None:
    folder = local_job.folder / "jobs"
    folder.mkdir()
    (folder / "helper_of_the_job.py").write_text("word = 'imported'")
    (folder / "go.py").write_text("import os, helper_of_the_job as h\nprint(h.word, os.getcwd())")
    (folder / "job.yaml").write_text(yaml.safe_dump(job(trainer={"script": "go.py"}, replicas=1)))
    code, output = local_job.muster_run("jobs/job.yaml")
    assert code == 0, output
    assert f"imported {local_job.folder}" in local_job.logs()


def _uid(local_job: LocalJob) -> str:
    return str(yaml.safe_load((local_job.run / "job.yaml").read_text())["metadata"]["uid"])


def _guards(pid: int) -> list[psutil.Process]:
    """The guards of the `muster run` with this pid. A guard that has been killed has no command line until it is reaped."""
    children = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            if "muster.local.guard" in child.cmdline():
                children.append(child)
    return children


def _runs(directory: Path) -> bool:
    """Whether a run of this directory has started its processes. `--fresh` removes the old job before it writes its own."""
    with suppress(FileNotFoundError):
        return len(marked(RUN_MARK, mark_in(directory))) >= 4
    return False
