"""A supervisor follows the replies of the operator from attempt to attempt."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import psutil
import pytest

from muster_trainer.supervisor.replica import SIBLING_GRACE
from tests.support.supervisors import IGNORES_SIGTERM, SAVES_ON_SIGTERM, SENDS_AN_EVENT, SLEEPS, Coordinator, SupervisorRun, commit_of
from tests.support.waiting import wait_until

GIVES_UP = SENDS_AN_EVENT + "print('attempt', os.environ['MUSTER_ATTEMPT'], os.environ['MASTER_PORT'], flush=True)\nraise SystemExit(20)\n"

STEPS_LATE = """
import json, os, signal, sys, time
def step(number):
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), json.dumps({"event": "step", "step": number, "loss": "1"}).encode() + b"\\n")
def stop(*_):
    step(6)
    os._exit(22)
signal.signal(signal.SIGTERM, stop)
step(4)
time.sleep(600)
"""


def set_reply(coordinator: Coordinator, **orders: Any) -> None:
    coordinator.reply = {"intervalSeconds": 0.2, "graceSeconds": 0.0, "end": False, "attempt": 3, **orders}


def world(attempt: int, port: int) -> dict[str, str]:
    return {"MUSTER_ATTEMPT": str(attempt), "MASTER_PORT": str(port)}


def test_a_replica_outlives_its_processes_and_starts_those_of_the_next_attempt(run: SupervisorRun, coordinator: Coordinator) -> None:
    set_reply(coordinator)
    run.start(GIVES_UP, MUSTER_COORDINATOR=coordinator.url)
    ended = coordinator.wait_for_report(lambda report: report.get("waiting"))
    assert (ended["attempt"], ended["termination"]["code"], ended["inPlace"]) == (3, 20, True)
    set_reply(coordinator, attempt=4)
    acknowledged = coordinator.wait_for_report(lambda report: report["attempt"] == 4)
    assert (acknowledged["waiting"], acknowledged["processes"]) == (True, None)
    assert (acknowledged["termination"]["attempt"], acknowledged["resumed"], acknowledged["checkpoint"]) == (3, None, None)
    set_reply(coordinator, attempt=4, world=world(4, 29504))
    assert coordinator.wait_for_report(lambda report: report.get("waiting") and report["termination"]["attempt"] == 4)["attempt"] == 4
    set_reply(coordinator, attempt=4, end=True)
    assert run.wait() == 20
    assert run.out.read_text().splitlines() == ["attempt 3 29500", "attempt 4 29504"]
    assert run.termination_message()["attempt"] == 4


def test_a_newer_attempt_ends_processes_that_still_run_and_they_are_reaped_before_it_is_acknowledged(
    run: SupervisorRun, coordinator: Coordinator
) -> None:
    set_reply(coordinator)
    run.start(IGNORES_SIGTERM, MUSTER_COORDINATOR=coordinator.url)
    [process] = coordinator.wait_for_report(lambda report: report["processes"])["processes"]
    set_reply(coordinator, attempt=5)
    acknowledged = coordinator.wait_for_report(lambda report: report["attempt"] == 5)
    assert (acknowledged["waiting"], acknowledged["termination"]) == (True, None)
    assert not psutil.pid_exists(process["pid"])
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert (run.termination_message()["attempt"], run.termination_message()["message"]) == (5, "ended before attempt 5 began")


def test_processes_ended_for_a_later_attempt_leave_their_last_step_in_a_report(run: SupervisorRun, coordinator: Coordinator) -> None:
    set_reply(coordinator)
    run.start(STEPS_LATE, MUSTER_COORDINATOR=coordinator.url)
    coordinator.wait_for_report(lambda report: (report["progress"] or {}).get("step") == 4)
    set_reply(coordinator, attempt=4, graceSeconds=20.0)
    acknowledged = coordinator.wait_for_report(lambda report: report["attempt"] == 4)
    words = acknowledged["termination"]
    assert (words["attempt"], words["code"], words["step"], words["exitCode"], words["signal"]) == (3, 20, 6, None, None)
    set_reply(coordinator, attempt=4, end=True)
    run.wait()


def test_a_replica_that_is_asked_to_go_and_hears_of_a_later_attempt_while_it_saves_says_that_it_saved(
    run: SupervisorRun, coordinator: Coordinator
) -> None:
    set_reply(coordinator)
    run.start(
        SAVES_ON_SIGTERM.replace("def stop(*_):", "def stop(*_):\n    print('saves', flush=True); time.sleep(2)"),
        MUSTER_COORDINATOR=coordinator.url,
    )
    wait_until(lambda: "ready" in run.out.read_text(), "the process")
    os.kill(run.pid, signal.SIGTERM)
    wait_until(lambda: "saves" in run.out.read_text(), "the save")
    set_reply(coordinator, attempt=4, graceSeconds=20.0)
    assert run.wait() == 21
    words = run.termination_message()
    assert (words["attempt"], words["commit"]["step"]) == (3, 7)
    last = coordinator.wait_for_report(lambda report: report["termination"])
    assert (last["attempt"], last["termination"]["code"]) == (3, 21)


def test_a_world_that_changes_as_planned_gives_the_processes_time_to_save(run: SupervisorRun, coordinator: Coordinator) -> None:
    set_reply(coordinator)
    run.start(SAVES_ON_SIGTERM, MUSTER_COORDINATOR=coordinator.url)
    wait_until(lambda: "ready" in run.out.read_text(), "the process")
    set_reply(coordinator, attempt=4, graceSeconds=20.0)
    coordinator.wait_for_report(lambda report: report["attempt"] == 4)
    events = [json.loads(line) for line in (run.state / "events.jsonl").read_text().splitlines()]
    assert ("commit", 7) in [(event["event"], event.get("step")) for event in events]
    set_reply(coordinator, attempt=4, end=True)
    run.wait()


@pytest.mark.parametrize(("succeeded", "code"), [(True, 0), (False, 20)])
def test_processes_that_still_run_when_the_job_is_over_are_ended_and_the_replica_with_them(
    run: SupervisorRun, coordinator: Coordinator, succeeded: bool, code: int
) -> None:
    set_reply(coordinator)
    run.start(SLEEPS, MUSTER_COORDINATOR=coordinator.url)
    run.printed("ready")
    set_reply(coordinator, end=True, succeeded=succeeded)
    assert run.wait() == code
    words = run.termination_message()
    assert (words["attempt"], words["exitCode"], words["signal"]) == (3, None, None)


def test_a_replica_that_saves_when_the_job_is_over_keeps_what_it_saved_and_is_not_taken_for_preempted(
    run: SupervisorRun, coordinator: Coordinator
) -> None:
    set_reply(coordinator)
    run.start(SAVES_ON_SIGTERM, MUSTER_COORDINATOR=coordinator.url)
    run.printed("ready")
    set_reply(coordinator, end=True, graceSeconds=20.0)
    assert run.wait() == 20
    assert commit_of(run.termination_message()) == (7, "step-7")


RESCUES = """
import json, os, signal, threading, time
def emit(event, **fields):
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), json.dumps({"event": event, **fields}).encode() + b"\\n")
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
emit("resumed", step=0)
if WHOLE:
    emit("wholeState", rank=1)
print("ready", flush=True)
asked.wait()
time.sleep(0.5)
emit("commit", step=7, path="step-7", reason="PeerLost")
raise SystemExit(20)
"""


@pytest.mark.parametrize(("whole", "dump", "commits"), [(True, False, [7]), (False, False, []), (True, True, [7]), (False, True, [])])
def test_one_that_can_save_alone_may_do_so_when_its_peers_are_gone_or_hang(
    run: SupervisorRun, coordinator: Coordinator, whole: bool, dump: bool, commits: list[int]
) -> None:
    set_reply(coordinator)
    run.start(RESCUES.replace("WHOLE", str(whole)), MUSTER_COORDINATOR=coordinator.url)
    wait_until(lambda: "ready" in run.out.read_text(), "the process")
    set_reply(coordinator, attempt=4, dump=dump)
    coordinator.wait_for_report(lambda report: report["attempt"] == 4)
    events = [json.loads(line) for line in (run.state / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "commit"] == commits
    set_reply(coordinator, attempt=4, end=True)
    run.wait()


def test_the_siblings_of_a_killed_first_rank_may_save_as_well(run: SupervisorRun) -> None:
    source = f"""
import os, pathlib, time
if os.environ["RANK"] == "0":
    while not os.path.exists("asks"):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
{RESCUES.replace("WHOLE", "True").replace("time.sleep(0.5)", f"time.sleep({SIBLING_GRACE + 0.5})")}
""".replace('print("ready", flush=True)', 'pathlib.Path("asks").touch()')
    assert run.start(source, processes=2).wait() == 137
    words = run.termination_message()
    assert (words["rank"], words["signal"], commit_of(words)) == (0, "SIGKILL", (7, "step-7"))


def test_a_request_to_stop_ends_a_replica_that_waits_with_what_it_had_to_say(run: SupervisorRun, coordinator: Coordinator) -> None:
    set_reply(coordinator)
    run.start(GIVES_UP, MUSTER_COORDINATOR=coordinator.url)
    coordinator.wait_for_report(lambda report: report.get("waiting"))
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 20


def test_a_coordinator_that_gives_no_orders_keeps_nobody_waiting(run: SupervisorRun, coordinator: Coordinator) -> None:
    assert run.start(GIVES_UP, MUSTER_COORDINATOR=coordinator.url).wait() == 20


def test_what_cannot_run_as_written_does_not_wait_for_another_attempt(run: SupervisorRun, coordinator: Coordinator) -> None:
    set_reply(coordinator)
    assert run.start(f"{SENDS_AN_EVENT}raise SystemExit(11)", MUSTER_COORDINATOR=coordinator.url).wait() == 11
