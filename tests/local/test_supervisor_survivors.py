"""A supervisor keeps processes that wait for the next attempt. They are small programs that wait as training processes do."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.supervisors import LINUX, Coordinator, SupervisorRun
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not LINUX, reason="only Linux lists the descriptors of a process")

PROGRAM = """
import os, sys, time
from pathlib import Path

from muster_contract.codes import ExitCode
from muster_contract.events import WholeState
from muster_trainer.training.survivor import Survivor

BEFORE = ""

def loses_a_peer(rank, attempt):
    return Path(f"lost-{attempt}").exists() and not Path(f"busy-{rank}").exists()

def main(spec, events, stop):
    exec(BEFORE)
    left, first = [], int(os.environ["MUSTER_ATTEMPT"])
    survivor = Survivor(events, stop, attempt=first, disconnect=lambda: left.append(os.environ["MUSTER_ATTEMPT"]))
    stop.training = True
    while True:
        attempt, port = os.environ["MUSTER_ATTEMPT"], os.environ["MASTER_PORT"]
        events.emit(WholeState(waits=True))
        say("attempt", attempt, "port", port, "pid", os.getpid())
        while not (loses_a_peer(events.rank, attempt) or attempt in left or stop.requested):
            time.sleep(0.02)
        rescue = lambda: say("rescue in attempt", attempt)
        if stop.requested or not survivor.wait(done=3, last=None, message="connection closed", rescue=rescue):
            say("ends in attempt", attempt)
            return ExitCode.PEER_LOST

def say(*words):
    with open("said", "a") as said:
        print(*words, file=said)
"""
STRATEGY = {
    "name": "DDP",
    "framework": {"name": "Small", "package": "small"},
    "roles": {"worker": {"program": "small.program:main"}},
}


class Replica:
    """A replica whose processes wait once the file `lost-ATTEMPT` is there, except those with a file `busy-RANK`."""

    def __init__(self, run: SupervisorRun, coordinator: Coordinator, *, processes: int = 1, before: str = "") -> None:
        self.run, self.coordinator = run, coordinator
        package = run.folder / "small"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "program.py").write_text(PROGRAM.replace('BEFORE = ""', f"BEFORE = {before!r}"))
        self.reply(3)
        environment = run.environment(processes=processes, entry={"task": "digits"}, grace=20)
        trainer = {**json.loads(environment["MUSTER_TRAINER"]), "strategy": STRATEGY}
        path = f"{run.folder}{os.pathsep}{environment['PYTHONPATH']}"
        run.start(processes=processes, MUSTER_TRAINER=json.dumps(trainer), MUSTER_COORDINATOR=coordinator.url, PYTHONPATH=path)

    def reply(self, attempt: int, **orders: Any) -> None:
        self.coordinator.reply = {"intervalSeconds": 0.1, "graceSeconds": 0.0, "end": False, "attempt": attempt, **orders}

    def begin(self, attempt: int, **changed: str) -> None:
        """The next attempt, once the processes of the last one have ended or wait."""
        self.reply(attempt)
        self.coordinator.wait_for_report(lambda report: report["attempt"] == attempt and report["waiting"])
        self.reply(attempt, world={"MUSTER_ATTEMPT": str(attempt), "MASTER_PORT": str(29500 + attempt), **changed})

    def lose_a_peer(self, attempt: int) -> dict[str, Any]:
        """Its termination message about that attempt."""
        (self.run.folder / f"lost-{attempt}").touch()
        report = self.coordinator.wait_for_report(lambda report: report["waiting"] and _attempt_of(report["termination"]) == attempt)
        words: dict[str, Any] = report["termination"]
        return words

    @property
    def said(self) -> list[str]:
        path = self.run.folder / "said"
        return path.read_text().splitlines() if path.exists() else []

    def pids(self, attempt: int, count: int = 1) -> list[int]:
        """Of the processes in that attempt, once all are there."""

        def found() -> list[int] | None:
            lines = [line.split() for line in self.said if line.startswith(f"attempt {attempt} ")]
            return [int(words[-1]) for words in lines] if len(lines) == count else None

        return sorted(wait_until(found, f"{count} processes of attempt {attempt}"))

    def end(self) -> int:
        self.reply(self.coordinator.reply["attempt"], end=True)
        return self.run.wait()


def _attempt_of(words: dict[str, Any] | None) -> int | None:
    return None if words is None else words["attempt"]


def test_a_process_goes_on_whatever_number_the_next_attempt_has(run: SupervisorRun, coordinator: Coordinator) -> None:
    replica = Replica(run, coordinator)
    [pid] = replica.pids(3)
    words = replica.lose_a_peer(3)
    assert (words["code"], words["message"].endswith("connection closed"), words["signal"]) == (20, True, None)
    replica.begin(7)
    assert replica.pids(7) == [pid]
    assert replica.lose_a_peer(7)["attempt"] == 7
    replica.begin(8)
    assert replica.pids(8) == [pid]
    joins = [line for line in replica.said if line.startswith("attempt")]  # it may have waited so long that it saved meanwhile
    assert joins[1:] == [f"attempt {attempt} port {29500 + attempt} pid {pid}" for attempt in (7, 8)]
    replica.end()


def test_attempts_leave_no_descriptors_behind(run: SupervisorRun, coordinator: Coordinator) -> None:
    """One process survives in each attempt, and one is killed."""
    replica = Replica(run, coordinator, processes=2)

    def descriptors() -> int:
        return len(list(Path(f"/proc/{run.pid}/fd").iterdir()))

    def wait_for_at_most(count: int) -> None:
        """Some are open for a moment only."""
        wait_until(lambda: descriptors() <= count, f"no more than {count} descriptors")

    most = 0
    survivor, victim = replica.pids(3, 2)
    for attempt in range(3, 9):
        if attempt == 4:
            most = descriptors()
        elif attempt > 4:
            wait_for_at_most(most)
        os.kill(victim, signal.SIGKILL)
        replica.lose_a_peer(attempt)
        replica.begin(attempt + 1)
        survivor, victim = sorted(replica.pids(attempt + 1, 2), key=lambda pid: pid != survivor)
    assert len({line.split()[-1] for line in replica.said if line.startswith("attempt")}) == 8
    replica.end()


CLOSES_ITS_STREAMS = """
for descriptor in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
"""


@pytest.mark.parametrize("before", [CLOSES_ITS_STREAMS, CLOSES_ITS_STREAMS.replace("(1, 2)", "(1,)")], ids=["both", "stdout"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_process_may_have_closed_its_streams(before: str, goes_on: bool, run: SupervisorRun, coordinator: Coordinator) -> None:
    replica = Replica(run, coordinator, before=before)
    [pid] = replica.pids(3)
    for attempt in (3, 4):
        replica.lose_a_peer(attempt)
        replica.begin(attempt + 1, **({} if goes_on else {"MUSTER_NEW": str(attempt)}))
        assert (replica.pids(attempt + 1) == [pid]) is goes_on
    replica.end()
    assert "Traceback" not in run.err.read_text()


def test_all_output_of_a_process_arrives_in_order(run: SupervisorRun, coordinator: Coordinator) -> None:
    """Also a line that is not complete when an attempt ends."""
    replica = Replica(run, coordinator, processes=2, before="print('begins', flush=True); print('half', end='', flush=True)")
    pids = replica.pids(3, 2)
    run.printed("begins", 2)
    replica.lose_a_peer(3)
    wait_until(lambda: run.out.read_text().count("half") == 2, "the rest of the output")
    replica.begin(4)
    assert replica.pids(4, 2) == pids
    replica.end()
    assert sorted(run.out.read_text().splitlines()) == [f"[rank {rank}] {text}" for rank in (0, 1) for text in ("begins", "half")]


def test_a_process_that_dies_while_it_waits_is_replaced(run: SupervisorRun, coordinator: Coordinator) -> None:
    replica = Replica(run, coordinator)
    [pid] = replica.pids(3)
    replica.lose_a_peer(3)
    os.kill(pid, signal.SIGKILL)
    replica.begin(4)
    assert replica.pids(4) != [pid]
    replica.end()


def test_a_sibling_that_does_not_leave_is_ended_and_the_one_that_waits_goes_on(run: SupervisorRun, coordinator: Coordinator) -> None:
    """The sibling neither notices the loss nor obeys the order to leave."""
    (run.folder / "busy-1").touch()
    before = "import signal\nif events.rank == 1:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(600)\n"
    replica = Replica(run, coordinator, processes=2, before=before)
    [pid] = replica.pids(3)
    (run.folder / "lost-3").touch()
    replica.lose_a_peer(3)
    replica.begin(4)
    assert replica.pids(4) == [pid]
    assert "ends in attempt 3" not in replica.said
    os.kill(run.pid, signal.SIGTERM)
    run.wait()


def test_a_sibling_obeys_the_order_to_leave_and_goes_on_as_well(run: SupervisorRun, coordinator: Coordinator) -> None:
    (run.folder / "busy-1").touch()
    replica = Replica(run, coordinator, processes=2)
    pids = replica.pids(3, 2)
    replica.lose_a_peer(3)
    replica.begin(4)
    assert replica.pids(4, 2) == pids
    replica.end()


def test_a_world_of_another_shape_begins_when_the_process_before_has_saved(run: SupervisorRun, coordinator: Coordinator) -> None:
    replica = Replica(run, coordinator)
    [pid] = replica.pids(3)
    replica.lose_a_peer(3)
    replica.begin(4, PET_NNODES="2")
    [other] = replica.pids(4)
    assert other != pid
    assert [line.rpartition(" pid")[0] or line for line in replica.said] == [
        "attempt 3 port 29500",
        "rescue in attempt 3",
        "ends in attempt 3",
        "attempt 4 port 29504",
    ]
    replica.end()


@pytest.mark.parametrize("how", ["a stop", "the end of the job"])
def test_a_process_that_waits_saves_if_no_world_follows(how: str, run: SupervisorRun, coordinator: Coordinator) -> None:
    replica = Replica(run, coordinator)
    replica.pids(3)
    replica.lose_a_peer(3)
    if how == "a stop":
        os.kill(run.pid, signal.SIGTERM)
    else:
        replica.reply(3, end=True)
    assert run.wait() == 20
    assert replica.said[1:] == ["rescue in attempt 3", "ends in attempt 3"]


def test_a_process_that_waits_long_saves_and_still_goes_on(run: SupervisorRun, coordinator: Coordinator) -> None:
    replica = Replica(run, coordinator)
    [pid] = replica.pids(3)
    replica.lose_a_peer(3)
    wait_until(lambda: "rescue in attempt 3" in replica.said, "the rescue")
    replica.begin(4)
    assert replica.pids(4) == [pid]
    replica.end()
