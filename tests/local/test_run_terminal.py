"""`muster run` in a terminal: the live panel, and the end of the terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.local_jobs import TRAIN, LocalJob, job
from tests.support.waiting import DEADLINE

CONTROLLED = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from muster.cli.main import main; main(sys.argv[1:])"
"""`muster` with its standard input as controlling terminal, so that closing it sends SIGHUP."""


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "train.py").write_text(TRAIN)
    return LocalJob(tmp_path)


@contextmanager
def in_terminal(local_job: LocalJob) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`muster run job.yaml`, and the test's end of its terminal."""
    terminal, other_end = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", CONTROLLED, "run", "job.yaml"],
        cwd=local_job.folder,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        start_new_session=True,
    )
    os.close(other_end)
    try:
        yield run, terminal
    finally:
        run.kill()
        run.wait()
        local_job.assert_nothing_left()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def test_a_panel_shows_progress_and_news_scroll_above_it(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 1000 0.01"}))
    shown, killed = b"", False
    with in_terminal(local_job) as (run, terminal):
        while chunk := read(terminal):
            shown += chunk
            if not killed and local_job.committed >= 5:
                os.kill(local_job.pid_of("worker-1"), signal.SIGKILL)
                killed = True
        os.close(terminal)
        assert run.wait(DEADLINE) == 0, shown.decode()
    text = shown.decode()
    for expected in ("tiny", "DDP", "/1000", "worker-1 was killed: rank 1: ended by signal 9", "tiny succeeded, 1000 steps"):
        assert expected in text, expected


def test_ctrl_c_typed_into_the_terminal_saves_and_says_how_to_go_on(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 2000 0.01"}))
    shown, typed = b"", False
    with in_terminal(local_job) as (run, terminal):
        while chunk := read(terminal):
            shown += chunk
            if not typed and local_job.committed >= 5:
                os.write(terminal, b"\x03")
                typed = True
        os.close(terminal)
        assert run.wait(DEADLINE) == 21, shown.decode()
    assert "Continue with: muster run job.yaml --resume" in shown.decode()


def test_a_closed_terminal_stops_the_run_in_good_order(local_job: LocalJob) -> None:
    local_job.write(job(trainer={"script": "train.py 2000 0.01"}))
    with in_terminal(local_job) as (run, terminal):
        while local_job.committed < 5:
            assert read(terminal)
        os.close(terminal)
        assert run.wait(DEADLINE) == 21
    assert local_job.status["phase"] == "Suspended"
