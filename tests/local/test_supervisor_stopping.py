"""A supervisor that is requested to stop, or dies, ends its processes with time to save."""

from __future__ import annotations

import os
import signal
import sys

import psutil
import pytest

from tests.support.supervisors import DEADLINE, IGNORES_SIGTERM, LINUX, SAVES_ON_SIGTERM, SLEEPS, SupervisorRun, commit_of
from tests.support.waiting import wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_reaches_the_processes_and_what_they_saved_decides(run: SupervisorRun, number: signal.Signals) -> None:
    run.start(SAVES_ON_SIGTERM, processes=2)
    run.printed("ready", times=2)
    os.kill(run.pid, number)
    assert run.wait() == 21
    assert commit_of(run.last_words()) == (7, "step-7")


def test_a_process_that_dies_of_the_request_did_not_save(run: SupervisorRun) -> None:
    run.start(SLEEPS)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert run.last_words()["signal"] == "SIGTERM"


def test_a_process_that_ignores_the_request_is_killed_when_the_grace_is_over(run: SupervisorRun) -> None:
    run.start(IGNORES_SIGTERM, grace=0.5)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert "killed when the grace period was over" in run.last_words()["message"]


def test_a_second_request_kills_at_once(run: SupervisorRun) -> None:
    run.start("import os\n" + SAVES_ON_SIGTERM.replace("os._exit(0)", "print('saving', flush=True)"), grace=3600)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    run.printed("saving")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 21


def test_the_program_inside_a_shell_has_the_grace_too(run: SupervisorRun) -> None:
    source = SAVES_ON_SIGTERM.replace("os._exit(0)", "time.sleep(1.5); print('saved', flush=True); os._exit(0)")
    run.script.write_text(source)
    run.start(command=["sh", "-c", f"{sys.executable} {run.script}; true"])
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 21
    assert "saved" in run.out.read_text()


@pytest.mark.skipif(not LINUX, reason="orphans can be adopted on Linux only")
def test_daemons_that_left_their_session_are_gone_afterwards(run: SupervisorRun) -> None:
    source = """
import os, signal, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("daemon", flush=True)
        os.write(writer, b"ready")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(reader, 5)
"""
    run.start(source)
    assert run.wait() == 0
    assert "daemon" in run.out.read_text()


@pytest.mark.skipif(not LINUX, reason="the kernel ends orphans on Linux only")
def test_the_processes_die_with_the_supervisor(run: SupervisorRun) -> None:
    run.start(SLEEPS, processes=2)
    run.printed("ready", times=2)
    os.kill(run.pid, signal.SIGKILL)
    assert run.popen is not None
    run.popen.wait(DEADLINE)
    wait_until(lambda: not run.members(), "the end of the processes")


@pytest.mark.skipif(not LINUX, reason="orphans can be adopted on Linux only")
def test_orphans_are_reaped_while_the_training_runs(run: SupervisorRun) -> None:
    source = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
print("ready", flush=True)
time.sleep(600)
"""
    run.start(source)
    run.printed("ready")
    wait_until(lambda: len(psutil.Process(run.pid).children(recursive=True)) == 1, "the orphans to be reaped")


@pytest.mark.skipif(not LINUX, reason="mount namespaces are of Linux")
def test_a_full_disk_loses_events_but_not_the_training(run: SupervisorRun) -> None:
    run.state.mkdir()
    full = f'mount -t tmpfs -o size=4k none {run.state} && head -c 4096 /dev/zero > {run.state}/other && exec "$@"'
    run.start(SAVES_ON_SIGTERM, prefix=["unshare", "--map-root-user", "--mount", "sh", "-c", full, "sh"])
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 21
    assert commit_of(run.last_words()) == (7, "step-7")
    assert run.err.read_text().count("events are being lost: No space left on device") == 1
