"""`muster run` in a terminal: the live panel, and a terminal that is closed."""

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
from runs import DEADLINE, TRAIN, Place, job

CONTROLLED = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from muster.cli.main import main; main(sys.argv[1:])"
"""`muster` with its standard input as controlling terminal, so that closing it sends SIGHUP."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "train.py").write_text(TRAIN)
    return Place(tmp_path)


@contextmanager
def in_terminal(place: Place) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`muster run job.yaml` and our end of its terminal."""
    terminal, other_end = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", CONTROLLED, "run", "job.yaml"],
        cwd=place.folder,
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
        place.assert_nothing_left()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def test_a_panel_shows_progress_and_news_scroll_above_it(place: Place) -> None:
    place.write(job(trainer={"script": "train.py 200 0.01"}))
    shown, killed = b"", False
    with in_terminal(place) as (run, terminal):
        while chunk := read(terminal):
            shown += chunk
            if not killed and place.committed() >= 5:
                os.kill(place.pid_of("worker-1"), signal.SIGKILL)
                killed = True
        os.close(terminal)
        assert run.wait(DEADLINE) == 0, shown.decode()
    text = shown.decode()
    for expected in ("tiny", "DDP", "/200", "attempt 0 ended: worker-1: rank 1: ended by signal 9", "tiny succeeded, 200 steps"):
        assert expected in text, expected


def test_ctrl_c_typed_into_the_terminal_saves_and_says_how_to_go_on(place: Place) -> None:
    place.write(job(trainer={"script": "train.py 2000 0.01"}))
    shown, typed = b"", False
    with in_terminal(place) as (run, terminal):
        while chunk := read(terminal):
            shown += chunk
            if not typed and place.committed() >= 5:
                os.write(terminal, b"\x03")
                typed = True
        os.close(terminal)
        assert run.wait(DEADLINE) == 21, shown.decode()
    assert "Continue with: muster run job.yaml --resume" in shown.decode()


def test_a_closed_terminal_stops_the_run_in_good_order(place: Place) -> None:
    place.write(job(trainer={"script": "train.py 2000 0.01"}))
    with in_terminal(place) as (run, terminal):
        while place.committed() < 5:
            assert read(terminal)
        os.close(terminal)
        assert run.wait(DEADLINE) == 21
    assert place.status()["phase"] == "Suspended"
