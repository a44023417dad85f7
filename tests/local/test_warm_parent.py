"""Processes that are forked from a parent with the framework imported behave like others, but start sooner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from muster_trainer.supervisor.environment import Launch
from muster_trainer.supervisor.processes import Process, become_subreaper, reap
from muster_trainer.supervisor.signals import SignalInbox
from muster_trainer.supervisor.warm import OPEN, PREPARE, WarmParent
from tests.support import descriptors
from tests.support.local_jobs import is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forking from a warm parent needs a subreaper, which is Linux's")
DEADLINE = 240.0
ABSENT = {"name": "Other", "framework": {"name": "Other", "package": "not_there"}, "engine": "not_there.engine:Engine"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a DDP replica that is its whole world, and whose job has an unknown task. Its process reports that, and ends
    with 11."""
    trainer = {
        "strategy": descriptors.document(),
        "task": "unknown",
        "config": {},
        "batch": {"globalSize": 8},
        "checkpoint": None,
        "graceSeconds": 1,
    }
    return {
        **os.environ,
        "MUSTER_JOB": "default/test",
        "MUSTER_JOB_UID": "uid",
        "MUSTER_JOB_CREATED": "2026-11-21T11:16:14Z",
        "MUSTER_STRATEGY": "DDP",
        "MUSTER_ROLE": "worker",
        "MUSTER_INDEX": "0",
        "MUSTER_ATTEMPT": "0",
        "MUSTER_PROCESSES": "1",
        "MUSTER_POD_NAME": "test-worker-0",
        "MUSTER_POD_UID": "pod",
        "MUSTER_TRAINER": json.dumps(trainer),
        "MUSTER_STATE_DIR": str(tmp_path),
        "RANK": "0",
        "OMP_NUM_THREADS": "1",
    }


INBOX = SignalInbox.__new__(SignalInbox)  # the real one takes the signals of the tests
INBOX.stops, (INBOX._read, INBOX._write) = 0, os.pipe()
os.set_blocking(INBOX._read, False)


@pytest.fixture
def parent(environ: dict[str, str]) -> Iterator[WarmParent]:
    become_subreaper()
    parent = WarmParent(environ)
    yield parent
    parent.close()
    limit = time.monotonic() + DEADLINE
    while psutil.pid_exists(parent.pid) and time.monotonic() < limit:
        reap([])


@pytest.mark.torch
def test_a_forked_process_is_ours_to_reap_and_leads_its_own_group(parent: WarmParent, environ: dict[str, str]) -> None:
    assert parent.await_ready(INBOX)
    for attempt in (0, 1):
        process = parent.start(Launch(0, (), {**environ, "MUSTER_ATTEMPT": str(attempt)}))
        assert process is not None
        assert os.getpgid(process.pid) == process.pid
        limit = time.monotonic() + DEADLINE
        while process.running and time.monotonic() < limit:
            reap([process])
        assert process.exit_code == 11
        output = os.read(process.stderr, 65536).decode()
        assert "spec.trainer.task: there is no task 'unknown'" in output


@pytest.mark.torch
def test_forked_processes_die_with_the_supervisor(environ: dict[str, str], tmp_path: Path) -> None:
    program = """
import os, sys, time
from muster_trainer.supervisor.environment import Launch
from muster_trainer.supervisor.processes import become_subreaper
from muster_trainer.supervisor.signals import SignalInbox
from muster_trainer.supervisor.warm import PREPARE, WarmParent
become_subreaper()
parent = WarmParent(os.environ)
assert parent.await_ready(SignalInbox())
environ = {**os.environ, "MUSTER_TRAINER": os.environ["MUSTER_TRAINER"].replace('"unknown"', '"digits"'), "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
print(parent.pid, parent.start(Launch(1, (), environ)).pid, flush=True)
time.sleep(60)
"""
    supervisor = subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    pids = [int(pid) for pid in supervisor.stdout.readline().split()]
    assert all(map(is_running, pids))
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    limit = time.monotonic() + DEADLINE
    while any(map(is_running, pids)):
        reap([])
        assert time.monotonic() < limit


@pytest.mark.torch
def test_a_parent_that_cannot_import_is_given_up_and_processes_start_cold(environ: dict[str, str]) -> None:
    become_subreaper()
    parent = WarmParent({**environ, "MUSTER_TRAINER": json.dumps({**json.loads(environ["MUSTER_TRAINER"]), "strategy": ABSENT})})
    assert not parent.await_ready(INBOX)
    assert not parent.ready


@pytest.mark.torch
def test_a_prepared_process_takes_the_next_launch(parent: WarmParent, environ: dict[str, str]) -> None:
    assert parent.await_ready(INBOX)
    parent.prepare(PREPARE)
    [prepared] = parent.prepared
    *_, process = _started_until_none_is_prepared(parent, environ)
    assert process.pid == prepared
    assert "spec.trainer.task: there is no task 'unknown'" in os.read(process.stderr, 65536).decode()


OPENED = """
import os

def dataset(config):
    with open(os.environ["MUSTER_STATE_DIR"] + "/opened", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return [([0.0], 0)]

def build_model(config):
    raise ValueError("there is no model")

def loss(outputs, batch):
    return outputs
"""


@pytest.mark.torch
@pytest.mark.parametrize("survives", [True, False])
def test_a_process_of_a_spare_opens_the_task_before_its_launch(survives: bool, environ: dict[str, str], tmp_path: Path) -> None:
    """A process whose module does not allow that ends, and another one takes the launch."""
    become_subreaper()
    (tmp_path / "opened.py").write_text(OPENED + f"\nSURVIVES = {survives}\n")
    spec = {**json.loads(environ["MUSTER_TRAINER"]), "task": None, "module": "opened"}
    environ = {**environ, "MUSTER_TRAINER": json.dumps(spec), "PYTHONPATH": str(tmp_path)}
    parent = WarmParent(environ)
    assert parent.await_ready(INBOX)
    parent.prepare(OPEN)
    [prepared] = parent.prepared
    if survives:
        limit = time.monotonic() + DEADLINE
        while not (tmp_path / "opened").exists():
            assert time.monotonic() < limit
            time.sleep(0.01)
    else:
        _wait_for_end(prepared)
    limit = time.monotonic() + DEADLINE
    while parent.prepared:  # until it is ready, launches get new forks
        process = parent.start(Launch(0, (), environ))
        assert process is not None
        assert _exit_code(process)
        assert time.monotonic() < limit
    assert (process.pid == prepared) is survives
    pids = (tmp_path / "opened").read_text().split()
    assert len(pids) == len(set(pids)), "each process opens the task once"
    assert str(process.pid) in pids
    parent.close()
    _wait_for_end(parent.pid)


@pytest.mark.torch
def test_a_prepared_process_takes_no_launch_with_another_number_of_threads(parent: WarmParent, environ: dict[str, str]) -> None:
    """Its threads exist already, and the order of additions depends on their number."""
    assert parent.await_ready(INBOX)
    parent.prepare(PREPARE)
    [prepared] = parent.prepared
    for process in _started_until_none_is_prepared(parent, {**environ, "OMP_NUM_THREADS": "2"}):
        assert process.pid != prepared
    _wait_for_end(prepared)


@pytest.mark.torch
def test_a_lost_prepared_process_is_replaced_by_a_new_fork(parent: WarmParent, environ: dict[str, str]) -> None:
    assert parent.await_ready(INBOX)
    parent.prepare(PREPARE)
    [prepared] = parent.prepared
    os.kill(prepared, signal.SIGKILL)
    limit = time.monotonic() + DEADLINE
    while psutil.pid_exists(prepared) and time.monotonic() < limit:
        reap([])
    process = parent.start(Launch(0, (), environ))
    assert process is not None
    assert process.pid != prepared
    assert not parent.prepared
    assert _exit_code(process) == 11


@pytest.mark.torch
def test_no_process_is_prepared_if_memory_is_short(environ: dict[str, str]) -> None:
    become_subreaper()
    parent = WarmParent({**environ, "MUSTER_PROCESSES": str(1 << 20)})  # which share the free memory
    assert parent.await_ready(INBOX)
    parent.prepare(PREPARE)
    [prepared] = parent.prepared
    _wait_for_end(prepared)
    process = parent.start(Launch(0, (), environ))
    assert process is not None
    assert process.pid != prepared
    assert _exit_code(process) == 11
    parent.close()
    _wait_for_end(parent.pid)


@pytest.mark.torch
def test_a_prepared_process_ends_with_its_parent(parent: WarmParent) -> None:
    assert parent.await_ready(INBOX)
    parent.prepare(PREPARE)
    [prepared] = parent.prepared
    parent.close()
    _wait_for_end(prepared)


@pytest.mark.torch
def test_a_prepared_process_runs_a_program_of_the_user(environ: dict[str, str], tmp_path: Path) -> None:
    become_subreaper()
    script = tmp_path / "train.py"
    script.write_text(
        "import csv, os, sys, torch\n"
        "print(os.getpid(), 'csv' in sys.modules, sys.argv[1:], __name__, os.environ['MUSTER_ATTEMPT'], os.environ['MUSTER_EVENTS_FD'])\n"
        "sys.exit(7)\n"
    )
    spec = {**json.loads(environ["MUSTER_TRAINER"]), "task": None, "script": f"{script} 1"}
    environ = {**environ, "MUSTER_TRAINER": json.dumps(spec), "PYTHONUNBUFFERED": "1"}
    parent = WarmParent(environ, program=str(script))
    assert parent.await_ready(INBOX)
    parent.prepare(PREPARE)
    [prepared] = parent.prepared
    launch = Launch(0, (sys.executable, str(script), "1"), {**environ, "MUSTER_ATTEMPT": "3"})
    limit = time.monotonic() + DEADLINE
    while parent.prepared:  # until it is ready, launches get new forks
        process = parent.start(launch, bundled=False)
        assert process is not None
        assert _exit_code(process) == 7
        assert time.monotonic() < limit
    assert process.pid == prepared
    assert process.orders is None
    printed = os.read(process.stdout, 65536).decode().split()
    assert printed[:-1] == [str(prepared), "True", "['1']", "__main__", "3"]
    assert int(printed[-1]) > 2
    parent.close()
    _wait_for_end(parent.pid)


def _started_until_none_is_prepared(parent: WarmParent, environ: dict[str, str]) -> Iterator[Process]:
    """Starts processes, one after the other, until one has taken the place of the prepared one, or that one has ended. Until it is ready,
    launches get new forks."""
    limit = time.monotonic() + DEADLINE
    while parent.prepared:
        process = parent.start(Launch(0, (), environ))
        assert process is not None
        assert _exit_code(process) == 11
        assert time.monotonic() < limit
        yield process


def _wait_for_end(pid: int) -> None:
    limit = time.monotonic() + DEADLINE
    while psutil.pid_exists(pid):
        reap([])
        assert time.monotonic() < limit
        time.sleep(0.01)


def _exit_code(process: Process) -> int | None:
    limit = time.monotonic() + DEADLINE
    while process.running and time.monotonic() < limit:
        reap([process])
    return process.exit_code
