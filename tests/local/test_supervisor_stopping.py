"""A supervisor that is requested to stop, or dies, ends its processes with time to save."""

from __future__ import annotations

import os
import signal
import sys

import psutil
import pytest

from tests.support.supervisors import DEADLINE, IGNORES_SIGTERM, LINUX, SAVES_ON_SIGTERM, SLEEPS, SupervisorRun, commit_of
from tests.support.waiting import wait_until

HELPED = """
import os, signal, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
def save():
    time.sleep(0.5)
    print("saved" if helper.poll() is None else "the helper has ended", flush=True)
    helper.kill()
    os._exit(0)
"""
OWN_HANDLER = f"""{HELPED}
signal.signal(signal.SIGTERM, lambda *_: save())
print("ready", flush=True)
time.sleep(600)
"""
WITH_LIBRARY = f"""{HELPED}
import muster_training as muster
while not muster.should_stop():
    print("ready", flush=True)
    time.sleep(0.05)
save()
"""
LAUNCHER = """
import os, signal, subprocess, sys
worker = subprocess.Popen(sys.argv[1:], start_new_session=True)
def stop(*_):
    os.killpg(worker.pid, signal.SIGTERM)
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
sys.exit(worker.wait())
"""
"""Handles SIGTERM as torchrun does."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_reaches_the_processes_and_what_they_saved_decides(run: SupervisorRun, number: signal.Signals) -> None:
    run.start(SAVES_ON_SIGTERM, processes=2)
    run.printed("ready", times=2)
    os.kill(run.pid, number)
    assert run.wait() == 21
    assert commit_of(run.termination_message()) == (7, "step-7")


def test_a_process_that_dies_of_the_request_did_not_save(run: SupervisorRun) -> None:
    run.start(SLEEPS)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert run.termination_message()["signal"] == "SIGTERM"


def test_a_process_that_ignores_the_request_is_killed_when_the_grace_is_over(run: SupervisorRun) -> None:
    run.start(IGNORES_SIGTERM, grace=0.5)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert "killed when the grace period was over" in run.termination_message()["message"]


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
@pytest.mark.parametrize(
    ("source", "shell"),
    [
        pytest.param(OWN_HANDLER, "PYTHON PROGRAM; true", id="shell"),
        pytest.param(WITH_LIBRARY, "PYTHON PROGRAM; true", id="shell, with the library"),
        pytest.param(WITH_LIBRARY, "PYTHON LAUNCHER PYTHON PROGRAM; true", id="shell and launcher"),
        pytest.param(WITH_LIBRARY, "exec PYTHON LAUNCHER PYTHON PROGRAM", id="launcher"),
        pytest.param(WITH_LIBRARY, "exec PYTHON LAUNCHER PYTHON LAUNCHER PYTHON PROGRAM", id="nested launcher"),
        pytest.param(WITH_LIBRARY, "PYTHON PROGRAM; sleep 600", id="shell that goes on"),
    ],
)
def test_a_stop_leaves_the_helpers_of_a_program_alone_until_it_has_saved(run: SupervisorRun, source: str, shell: str) -> None:
    run.script.write_text(source)
    launcher = run.folder / "launcher.py"
    launcher.write_text(LAUNCHER)
    words = {"PYTHON": sys.executable, "PROGRAM": str(run.script), "LAUNCHER": str(launcher)}
    for name, word in words.items():
        shell = shell.replace(name, word)
    run.start(command=["sh", "-c", shell], grace=3600)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    run.wait()
    assert run.out.read_text().splitlines()[-1] == "saved"


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
    assert commit_of(run.termination_message()) == (7, "step-7")
    assert run.err.read_text().count("events are being lost: No space left on device") == 1
