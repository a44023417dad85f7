"""The output and the events of the processes of a supervisor."""

from __future__ import annotations

import os
import signal

from tests.support.supervisors import CLOSED, SupervisorRun
from tests.support.waiting import wait_until


def test_output_passes_through_with_the_rank_before_each_line(run: SupervisorRun) -> None:
    source = "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)\n"
    assert run.start(source, processes=2).wait() == 0
    assert sorted(run.out.read_text().splitlines()) == ["[rank 0] out 0", "[rank 1] out 1"]
    assert sorted(run.err.read_text().splitlines()) == ["[rank 0] err", "[rank 1] err"]


def test_a_single_process_is_passed_on_as_it_prints_even_within_a_line(run: SupervisorRun) -> None:
    run.start("import time\nprint('50 %', end='', flush=True)\ntime.sleep(600)\n")
    run.printed("50 %")
    assert run.out.read_text() == "50 %"


def test_events_are_kept_with_their_origin_as_they_come(run: SupervisorRun) -> None:
    source = """
import json, os, time
out = os.fdopen(int(os.environ["MUSTER_EVENTS_FD"]), "w", buffering=1)
print(json.dumps({"event": "resumed", "time": 1.0, "rank": 0, "committedStep": 3, "step": 3, "path": "p", "skipped": []}), file=out)
print(json.dumps({"event": "step", "time": 2.0, "rank": 0, "step": 4, "loss": "0.5", "samples": 8, "seconds": 0.1}), file=out)
time.sleep(600)
"""
    run.start(source)
    events = wait_until(lambda: events if len(events := run.events()) == 2 else None, "two events")
    assert [(event["event"], event["role"], event["index"], event["attempt"]) for event in events] == [
        ("resumed", "worker", 0, 3),
        ("step", "worker", 0, 3),
    ]
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert (run.termination_message()["step"], run.termination_message()["resumedStep"]) == (4, 3)


def test_garbage_instead_of_events_does_no_harm(run: SupervisorRun) -> None:
    source = r"""
import os
fd = int(os.environ["MUSTER_EVENTS_FD"])
for garbage in (b"\xff\xfe\0\n", b"[1, 2]\n", b'{"event": 3}\n', b"{" * 100000 + b"\n", b"x" * 3000000 + b"\n"):
    while garbage:
        garbage = garbage[os.write(fd, garbage):]
os.write(fd, b'{"event": "notice", "message": "still here"}')
"""
    assert run.start(source).wait() == 0
    assert [event["message"] for event in run.events()] == ["still here"]
    assert run.err.read_text().count("that are not events") == 1


def test_binary_output_and_enormous_lines_pass(run: SupervisorRun) -> None:
    source = "import os\nos.write(1, b'\\xff\\0' * 10)\nfor _ in range(60): os.write(1, b'x' * 50000)\nraise SystemExit(3)\n"
    assert run.start(source, processes=2).wait() == 10
    assert run.out.stat().st_size > 3_000_000
    assert len(run.log.read_bytes()) <= 4096


PRINTS_A_LOT = "import os\nfor n in range(2000):\n    os.write(1, b'x' * 100 + b'\\n')\nopen('done', 'w').close()\n"


def test_a_stdout_that_nobody_reads_any_more_does_not_end_the_training(run: SupervisorRun) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run.start(PRINTS_A_LOT, stdout=writer)
    os.close(writer)
    assert run.wait() == 0
    assert (run.folder / "done").exists()


def test_a_stdout_that_was_never_open_does_not_end_the_training(run: SupervisorRun) -> None:
    assert run.start(PRINTS_A_LOT, stdout=CLOSED).wait() == 0
    assert (run.folder / "done").exists()
    assert run.err.read_text() == ""


def test_a_reader_of_stdout_that_has_stopped_reading_does_not_hold_up_a_stop(run: SupervisorRun) -> None:
    reader, writer = os.pipe()
    run.start("import os\nwhile True:\n    os.write(1, b'x' * 1000 + b'\\n')\n", stdout=writer)
    os.close(writer)
    os.read(reader, 1)
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    os.close(reader)
