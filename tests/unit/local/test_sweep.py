"""The sweep ends every process with the mark of a run, and no other process. The log follower reads whole lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from muster.local.follow import LogFollower
from muster.local.sweep import RUN_MARK, marked, sweep
from tests.support.waiting import wait_until

IGNORES_TERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
TELLS_TERM = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(600)"
PARENT = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], env={'PATH': ''});"
    "print('up', flush=True); sys.exit(child.wait())"
)


@contextmanager
def started(mark: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", *arguments], env={**os.environ, RUN_MARK: mark}, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_only_processes_with_the_mark_of_the_run_are_terminated() -> None:
    mine, other = str(uuid.uuid4()), str(uuid.uuid4())
    with started(mine, TELLS_TERM) as process, started(other, TELLS_TERM) as bystander:
        assert sweep(RUN_MARK, mine, grace_seconds=60) == 0
        assert process.wait(60) == 7
        assert bystander.poll() is None


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period() -> None:
    mark = str(uuid.uuid4())
    with started(mark, IGNORES_TERM) as process:
        assert sweep(RUN_MARK, mark, grace_seconds=0.3) == 0
        assert process.wait(60) == -9


def test_a_stopped_process_continues_and_handles_sigterm() -> None:
    mark = str(uuid.uuid4())
    with started(mark, TELLS_TERM) as process:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "the process is stopped")
        assert sweep(RUN_MARK, mark, grace_seconds=60) == 0
        assert process.wait(60) == 7


def test_a_child_without_the_mark_is_ended_with_its_parent() -> None:
    mark = str(uuid.uuid4())
    with started(mark, PARENT, IGNORES_TERM):
        wait_until(lambda: len(marked(RUN_MARK, mark)) == 2, "the child runs")
        both = marked(RUN_MARK, mark)
        assert sweep(RUN_MARK, mark, grace_seconds=0) == 0
        assert not [process for process in both if process.is_running() and process.status() != "zombie"]


def test_a_sweep_without_processes_ends_at_once() -> None:
    assert sweep(RUN_MARK, str(uuid.uuid4()), grace_seconds=60) == 0


def test_logs_are_followed_in_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    follower = LogFollower()
    assert follower.read("worker-0", log) == []
    log.write_bytes(b"one\ntw")
    assert follower.read("worker-0", log) == ["[worker-0] one"]
    log.write_bytes(b"one\ntwo\nthree\n")
    assert follower.read("worker-0", log) == ["[worker-0] two", "[worker-0] three"]
    assert follower.read("worker-0", log) == []
