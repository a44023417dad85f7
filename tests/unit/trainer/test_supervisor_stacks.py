"""Reading the output of faulthandler."""

from __future__ import annotations

from muster_trainer.supervisor.stacks import main_thread

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
