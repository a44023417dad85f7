"""Reading the output of faulthandler."""

from __future__ import annotations

import time

import pytest

from muster_trainer.supervisor import stacks
from muster_trainer.supervisor.stacks import QUIET_SECONDS, await_lines, main_thread

DUMP = """step 7, loss 0.5
Thread 0x00007f80da7fc6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/queue.py", line 180 in get

Current thread 0x00007f81a83c6b80 [python] (most recent call first):
  File "/srv/own.py", line 18 in loss
  File "/usr/lib/python3/site-packages/torch/x.py", line 2 in <module>
the end
""".splitlines()


def test_the_last_thread_of_a_dump_is_the_main_thread() -> None:
    assert main_thread(DUMP) == [("/srv/own.py", "18", "loss"), ("/usr/lib/python3/site-packages/torch/x.py", "2", "<module>")]


def test_output_without_stacks_gives_none() -> None:
    assert main_thread(["step 7", "  File is missing"]) == []


def test_a_dump_that_begins_late_is_awaited() -> None:
    due = time.monotonic() + 2 * QUIET_SECONDS

    def tail(rank: int) -> list[str]:
        return DUMP if rank == 0 or time.monotonic() > due else []

    await_lines({0: [], 1: []}, tail)
    assert tail(1) == DUMP


def test_the_wait_for_a_dump_that_never_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MOST_SECONDS", 2 * QUIET_SECONDS)
    began = time.monotonic()
    await_lines({0: DUMP}, lambda _: DUMP)
    assert time.monotonic() - began >= 2 * QUIET_SECONDS
