"""The supervisor with real processes: small Python programs, no framework."""

import http.server
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from muster.kubernetes.certificate import made

LINUX = sys.platform == "linux"
DEADLINE = 30.0
CLOSED = subprocess.DEVNULL  # as `stdout`: the descriptor is closed before the supervisor starts

SAVES_ON_SIGTERM = """
import json, os, signal, time
def stop(*_):
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), json.dumps(
        {"event": "commit", "step": 7, "path": "step-7", "reason": "Stop"}).encode() + b"\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""
IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
SPEAKS = """
import os, sys
os.write(int(os.environ["MUSTER_EVENTS_FD"]), b'{"event": "phase", "phase": "Training"}\\n')
"""
SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {DEADLINE} s in vain for {what}")


class Run:
    """One supervisor, its files, and the mark by which all that descends from it is found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.log = folder / "termination-log"
        self.state = folder / "state"
        self.out = folder / "out.txt"
        self.err = folder / "err.txt"
        self.script = folder / "train.py"
        self.popen: subprocess.Popen[bytes] | None = None

    def environment(self, *, processes: int, entry: dict[str, Any], grace: float) -> dict[str, str]:
        """Of a DDP replica that is its whole world."""
        trainer = {**entry, "config": {}, "batch": {"globalSize": 8}, "checkpoint": None, "graceSeconds": grace}
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "MUSTER_JOB": "default/test",
            "MUSTER_JOB_UID": "job-uid",
            "MUSTER_JOB_CREATED": "2026-11-21T11:16:14Z",
            "MUSTER_STRATEGY": "DDP",
            "MUSTER_ROLE": "worker",
            "MUSTER_INDEX": "0",
            "MUSTER_ATTEMPT": "3",
            "MUSTER_PROCESSES": str(processes),
            "MUSTER_POD_NAME": "test-worker-0",
            "MUSTER_POD_UID": "pod-uid",
            "MUSTER_TRAINER": json.dumps(trainer),
            "MUSTER_STATE_DIR": str(self.state),
            "MUSTER_TERMINATION_LOG": str(self.log),
            "MUSTER_RUN": self.mark,
            "PET_NNODES": "1",
            "PET_NODE_RANK": "0",
            "PET_NPROC_PER_NODE": str(processes),
            "WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }

    def start(
        self,
        source: str | None = None,
        *,
        processes: int = 1,
        command: list[str] | None = None,
        grace: float = 20,
        stdout: int | None = None,
        **changed: str,
    ) -> "Run":
        """Begin a replica that runs `source` as its script, or `command`; `stdout` may be a file descriptor."""
        if source is not None:
            self.script.write_text(source)
        entry = {"command": command} if command else {"script": str(self.script)}
        environ = {**self.environment(processes=processes, entry=entry, grace=grace), **changed}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "muster_trainer.supervisor"],
                env={name: value for name, value in environ.items() if value},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=err,
                preexec_fn=(lambda: os.close(1)) if stdout == CLOSED else None,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    def wait(self) -> int:
        """The exit code, once it has ended; by then nothing of it may be left."""
        assert self.popen is not None
        code = self.popen.wait(DEADLINE)
        assert self.members() == []
        return code

    def words(self) -> dict[str, Any]:
        lines = self.log.read_text().splitlines()
        assert len(lines) == 1
        found: dict[str, Any] = json.loads(lines[0])
        return found

    def events(self) -> list[dict[str, Any]]:
        path = self.state / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def printed(self, text: str, times: int = 1) -> None:
        wait_for(lambda: self.out.read_text(errors="replace").count(text) >= times, f"{text!r} on stdout")

    def members(self) -> list[psutil.Process]:
        """Every living process that carries the mark."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("MUSTER_RUN") == self.mark:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def end(self) -> None:
        for process in self.members():
            process.kill()
        if self.popen is not None:
            self.popen.wait(DEADLINE)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path)
    yield started
    started.end()


@pytest.mark.parametrize(
    ("code", "meaning", "reason"),
    [
        (0, 0, "Completed"),
        (1, 10, "UserError"),
        (10, 10, "UserError"),
        (11, 11, "BadConfiguration"),
        (20, 20, "PeerLost"),
        (30, 30, "CheckpointDamaged"),
        (31, 31, "StorageUnavailable"),
    ],
)
def test_the_exit_code_of_a_process_becomes_the_replicas(run: Run, code: int, meaning: int, reason: str) -> None:
    assert run.start(f"{SPEAKS}sys.exit({code})\n").wait() == meaning
    words = run.words()
    assert (words["code"], words["reason"], words["attempt"]) == (meaning, reason, 3)
    assert words["exitCode"] == (code or None)


def test_a_process_that_exits_saved_because_its_peers_were_stopped_is_preempted(run: Run) -> None:
    assert run.start(f"{SPEAKS}raise SystemExit(21)").wait() == 21
    assert run.words()["reason"] == "Preempted"


@pytest.mark.parametrize("code", [10, 11, 20, 21, 22, 30, 31])
def test_the_codes_of_the_contract_mean_nothing_where_a_program_sends_no_event(run: Run, code: int) -> None:
    assert run.start(command=["sh", "-c", f"exit {code}"]).wait() == 10
    words = run.words()
    assert (words["reason"], words["exitCode"]) == ("UserError", code)
    assert f"exit code {code}" in words["message"]


def test_output_passes_through_with_the_rank_before_each_line(run: Run) -> None:
    source = "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)\n"
    assert run.start(source, processes=2).wait() == 0
    assert sorted(run.out.read_text().splitlines()) == ["[rank 0] out 0", "[rank 1] out 1"]
    assert sorted(run.err.read_text().splitlines()) == ["[rank 0] err", "[rank 1] err"]


def test_a_single_process_is_passed_on_as_it_prints_even_within_a_line(run: Run) -> None:
    run.start("import time\nprint('50 %', end='', flush=True)\ntime.sleep(60)\n")
    run.printed("50 %")
    assert run.out.read_text() == "50 %"


def test_a_traceback_becomes_the_message_and_its_siblings_are_ended(run: Run) -> None:
    source = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no such column')\ntime.sleep(60)\n"
    assert run.start(source, processes=2).wait() == 10
    words = run.words()
    assert (words["message"], words["rank"], words["exitCode"]) == ("rank 1: ValueError: no such column", 1, 1)


def test_a_process_killed_from_outside_is_named_with_its_signal_and_its_sibling_is_ended(run: Run) -> None:
    source = "import os, time\nprint('pid', os.environ['RANK'], os.getpid(), flush=True)\ntime.sleep(60)\n"
    run.start(source, processes=2)
    run.printed("pid", times=2)
    pids = {line.split()[3]: int(line.split()[4]) for line in run.out.read_text().splitlines()}
    os.kill(pids["1"], signal.SIGKILL)
    assert run.wait() == 137
    words = run.words()
    assert (words["reason"], words["rank"], words["signal"], words["exitCode"]) == ("ProcessKilled", 1, "SIGKILL", None)
    assert "SIGKILL" in words["message"]


def test_a_sibling_that_ignores_sigterm_is_killed(run: Run) -> None:
    source = "import os\nif os.environ['RANK'] == '1':\n    raise SystemExit(5)\n" + IGNORES_SIGTERM
    assert run.start(source, processes=2).wait() == 10
    assert run.words()["exitCode"] == 5


ECHO = """
open("gone", "w").close()
raise RuntimeError("[/x/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:31415")
"""
CAUSE = """
import os, time
if os.environ["RANK"] == "1":
    while not os.path.exists("gone"):
        time.sleep(0.01)
    raise ValueError("mine")
"""


def test_a_lost_peer_is_recognised_at_the_end_of_the_output(run: Run) -> None:
    assert run.start(ECHO).wait() == 20
    assert "Connection closed by peer" in run.words()["message"]


def test_a_sibling_that_ends_shortly_after_a_lost_peer_was_seen_is_the_cause(run: Run) -> None:
    assert run.start(CAUSE + ECHO, processes=2).wait() == 10
    assert run.words()["message"] == "rank 1: ValueError: mine"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_reaches_the_processes_and_what_they_saved_decides(run: Run, number: signal.Signals) -> None:
    run.start(SAVES_ON_SIGTERM, processes=2)
    run.printed("ready", times=2)
    os.kill(run.pid, number)
    assert run.wait() == 21
    assert run.words()["commit"] == {"step": 7, "path": "step-7"}


def test_a_process_that_dies_of_the_request_did_not_save(run: Run) -> None:
    run.start(SLEEPS)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert run.words()["signal"] == "SIGTERM"


def test_a_process_that_ignores_the_request_is_killed_when_the_grace_is_over(run: Run) -> None:
    run.start(IGNORES_SIGTERM, grace=0.5)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert "killed when the grace period was over" in run.words()["message"]


def test_a_second_request_kills_at_once(run: Run) -> None:
    run.start("import os\n" + SAVES_ON_SIGTERM.replace("os._exit(0)", "print('saving', flush=True)"), grace=3600)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    run.printed("saving")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 21


def test_the_program_inside_a_shell_has_the_grace_too(run: Run) -> None:
    source = SAVES_ON_SIGTERM.replace("os._exit(0)", "time.sleep(1.5); print('saved', flush=True); os._exit(0)")
    run.script.write_text(source)
    run.start(command=["sh", "-c", f"{sys.executable} {run.script}; true"])
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 21
    assert "saved" in run.out.read_text()


@pytest.mark.skipif(not LINUX, reason="orphans can be adopted on Linux only")
def test_daemons_that_left_their_session_are_gone_afterwards(run: Run) -> None:
    source = """
import os, signal, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("daemon", flush=True)
        os.write(writer, b"ready")
        time.sleep(60)
    os._exit(0)
os.wait()
os.read(reader, 5)
"""
    run.start(source)
    assert run.wait() == 0
    assert "daemon" in run.out.read_text()


@pytest.mark.skipif(not LINUX, reason="the kernel ends orphans on Linux only")
def test_the_processes_die_with_the_supervisor(run: Run) -> None:
    run.start(SLEEPS, processes=2)
    run.printed("ready", times=2)
    os.kill(run.pid, signal.SIGKILL)
    assert run.popen is not None
    run.popen.wait(DEADLINE)
    wait_for(lambda: not run.members(), "the end of the processes")


@pytest.mark.skipif(not LINUX, reason="orphans can be adopted on Linux only")
def test_orphans_are_reaped_while_the_training_runs(run: Run) -> None:
    source = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
print("ready", flush=True)
time.sleep(60)
"""
    run.start(source)
    run.printed("ready")
    wait_for(lambda: len(psutil.Process(run.pid).children(recursive=True)) == 1, "the orphans to be reaped")


def test_events_are_kept_with_their_origin_as_they_come(run: Run) -> None:
    source = """
import json, os, time
out = os.fdopen(int(os.environ["MUSTER_EVENTS_FD"]), "w", buffering=1)
print(json.dumps({"event": "resumed", "time": 1.0, "rank": 0, "found": 3, "step": 3, "path": "p", "skipped": []}), file=out)
print(json.dumps({"event": "step", "time": 2.0, "rank": 0, "step": 4, "loss": "0.5", "samples": 8, "seconds": 0.1}), file=out)
time.sleep(60)
"""
    run.start(source)
    events = wait_for(lambda: len(run.events()) == 2 and run.events(), "two events")
    assert [(event["event"], event["role"], event["index"], event["attempt"]) for event in events] == [
        ("resumed", "worker", 0, 3),
        ("step", "worker", 0, 3),
    ]
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert (run.words()["step"], run.words()["resumedStep"]) == (4, 3)


@pytest.mark.skipif(not LINUX, reason="/dev/full is of Linux")
def test_a_full_disk_loses_events_but_not_the_training(run: Run) -> None:
    run.state.mkdir()
    (run.state / "events.jsonl").symlink_to("/dev/full")
    run.start(SAVES_ON_SIGTERM)
    run.printed("ready")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 21
    assert run.words()["commit"] == {"step": 7, "path": "step-7"}
    assert run.err.read_text().count("events are being lost: No space left on device") == 1


def test_garbage_instead_of_events_does_no_harm(run: Run) -> None:
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
    assert run.err.read_text().count("what is no event") == 1


def test_binary_output_and_enormous_lines_pass(run: Run) -> None:
    source = "import os\nos.write(1, b'\\xff\\0' * 10)\nfor _ in range(60): os.write(1, b'x' * 50000)\nraise SystemExit(3)\n"
    assert run.start(source, processes=2).wait() == 10
    assert run.out.stat().st_size > 3_000_000
    assert len(run.log.read_bytes()) <= 4096


PRINTS_A_LOT = "import os\nfor n in range(2000):\n    os.write(1, b'x' * 100 + b'\\n')\nopen('done', 'w').close()\n"


def test_a_stdout_that_nobody_reads_any_more_does_not_end_the_training(run: Run) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run.start(PRINTS_A_LOT, stdout=writer)
    os.close(writer)
    assert run.wait() == 0
    assert (run.folder / "done").exists()


def test_a_stdout_that_was_never_open_does_not_end_the_training(run: Run) -> None:
    assert run.start(PRINTS_A_LOT, stdout=CLOSED).wait() == 0
    assert (run.folder / "done").exists()
    assert run.err.read_text() == ""


def test_a_reader_of_stdout_that_has_stopped_reading_does_not_hold_up_a_stop(run: Run) -> None:
    reader, writer = os.pipe()
    run.start("import os\nwhile True:\n    os.write(1, b'x' * 1000 + b'\\n')\n", stdout=writer)
    os.close(writer)
    os.read(reader, 1)
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    os.close(reader)


def test_a_script_with_a_syntax_error_gives_one_message_and_no_traceback(run: Run) -> None:
    assert run.start("def f(:\n").wait() == 11
    assert run.words()["message"].startswith(f"spec.trainer.script: {run.script}:1: ")
    (line,) = run.err.read_text().splitlines()
    assert line.startswith("muster: spec.trainer.script")
    assert run.out.read_text() == ""


def test_a_command_that_is_not_there_is_bad_configuration(run: Run) -> None:
    assert run.start(command=["no-such-program"]).wait() == 11
    assert "no-such-program" in run.words()["message"]


def test_a_command_that_is_no_program_is_bad_configuration(run: Run) -> None:
    program = run.folder / "program"
    program.write_bytes(b"\x00not a program")
    program.chmod(0o755)
    assert run.start(command=[str(program)]).wait() == 11


def test_a_missing_variable_is_named_in_the_last_words(run: Run) -> None:
    assert run.start("pass", MUSTER_STRATEGY="").wait() == 11
    assert "MUSTER_STRATEGY" in run.words()["message"]
    assert "Traceback" not in run.err.read_text()


def test_a_state_folder_that_cannot_be_made_is_named(run: Run) -> None:
    (run.folder / "file").touch()
    assert run.start("pass", MUSTER_STATE_DIR=str(run.folder / "file" / "state")).wait() == 11
    assert str(run.folder / "file" / "state") in run.words()["message"]


def test_a_termination_log_that_cannot_be_written_changes_nothing_else(run: Run) -> None:
    assert run.start("pass", MUSTER_TERMINATION_LOG=str(run.folder / "no" / "log")).wait() == 0
    assert "last words cannot be written" in run.err.read_text()


class Coordinator(http.server.ThreadingHTTPServer):
    """Keeps what is reported and answers as the contract says."""

    def __init__(self) -> None:
        self.reports: queue.Queue[tuple[str, str, dict[str, Any]]] = queue.Queue()
        self.reply: dict[str, Any] = {"attempt": 3, "intervalSeconds": 0.3}
        self.connections: list[int] = []
        self.hangs_up = False
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first report for which the condition holds."""
        end = time.monotonic() + DEADLINE
        while True:
            _, _, report = self.reports.get(timeout=max(0.0, end - time.monotonic()))
            if condition(report):
                return report


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Coordinator
    protocol_version = "HTTP/1.1"  # which keeps connections
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self.client_address[1])

    def do_POST(self) -> None:
        self.close_connection = self.server.hangs_up  # without a word
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.reports.put((self.path, self.headers.get("Authorization", ""), json.loads(body)))
        reply = json.dumps(self.server.reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    server = Coordinator()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


REPORTS = """
import json, os, time
rank = int(os.environ["RANK"])
def emit(event, **fields):
    line = json.dumps({"event": event, "time": 5.0, "rank": rank, **fields})
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), line.encode() + b"\\n")
emit("fingerprint", framework="torch", version=f"2.{rank}")
if rank == 0:
    emit("phase", phase="Training")
    emit("step", step=4, totalSteps=9, epoch=1, loss="0.5", samples=8, seconds=0.5)
    emit("commit", step=4, path="step-4", seconds=0.1, blockedSeconds=0.02, bytes=3, reason="Periodic")
    emit("evaluation", step=4, metrics={"accuracy": 0.5})
time.sleep(60)
"""


def test_reports_reach_the_coordinator_and_the_last_one_has_the_last_words(run: Run, coordinator: Coordinator) -> None:
    token = run.folder / "token"
    token.write_text("secret\n")
    run.start(REPORTS, processes=2, MUSTER_COORDINATOR=coordinator.url, MUSTER_TOKEN_FILE=str(token))
    path, authorization, first = coordinator.reports.get(timeout=DEADLINE)
    assert (path, authorization) == ("/v1/report", "Bearer secret")
    assert (first["job"], first["jobUid"], first["pod"], first["podUid"]) == (
        "default/test",
        "job-uid",
        "test-worker-0",
        "pod-uid",
    )
    assert (first["role"], first["index"], first["attempt"], first["sequence"]) == ("worker", 0, 3, 1)
    report = coordinator.until(lambda report: report["evaluation"] and len(report["fingerprints"]) == 2)
    assert report["phase"] == "Training"
    assert report["progress"]["step"] == 4
    assert report["progress"]["samplesPerSecond"] == 16.0
    assert report["checkpoint"] == {"step": 4, "path": "step-4", "committedAt": 5.0, "seconds": 0.1, "blockedSeconds": 0.02}
    assert report["fingerprints"][1] == {"rank": 1, "framework": "torch", "version": "2.1"}
    assert report["notices"] == []
    assert report["lastWords"] is None
    os.kill(report["processes"][1]["pid"], signal.SIGKILL)
    last = coordinator.until(lambda report: report["lastWords"])
    assert last["lastWords"]["code"] == 137
    assert last["processes"][1] == {**report["processes"][1], "state": "Exited", "signal": "SIGKILL"}
    assert run.wait() == 137
    assert last["lastWords"] == run.words()


def test_reports_come_at_the_interval_although_nothing_changes(run: Run, coordinator: Coordinator) -> None:
    run.start(SLEEPS, MUSTER_COORDINATOR=coordinator.url)
    numbers = [coordinator.reports.get(timeout=DEADLINE)[2]["sequence"] for _ in range(4)]
    assert numbers == [1, 2, 3, 4]


def test_a_process_that_somebody_stops_is_told(run: Run, coordinator: Coordinator) -> None:
    run.start(SLEEPS, MUSTER_COORDINATOR=coordinator.url)
    report = coordinator.until(lambda report: report["processes"])
    os.kill(report["processes"][0]["pid"], signal.SIGSTOP)
    assert coordinator.until(lambda report: report["processes"][0]["state"] == "Stopped")["idleSeconds"] > 2
    os.kill(report["processes"][0]["pid"], signal.SIGCONT)
    coordinator.until(lambda report: report["processes"][0]["state"] == "Running")


@pytest.mark.parametrize(("hangs_up", "connections"), [(False, 1), (True, 4)])
def test_reports_take_one_connection_for_as_long_as_it_is_kept(
    hangs_up: bool, connections: int, run: Run, coordinator: Coordinator
) -> None:
    coordinator.hangs_up = hangs_up
    run.start(SLEEPS, MUSTER_COORDINATOR=coordinator.url)
    numbers = [coordinator.reports.get(timeout=DEADLINE)[2]["sequence"] for _ in range(4)]
    assert numbers == [1, 2, 3, 4]
    assert len(coordinator.connections) == connections
    assert "reports to" not in run.err.read_text()


def test_many_changes_are_told_in_few_reports(run: Run, coordinator: Coordinator) -> None:
    source = """
import json, os, time
for step in range(1, 301):
    line = json.dumps({"event": "step", "step": step, "loss": "1", "samples": 1, "seconds": 0.1})
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), line.encode() + b"\\n")
    time.sleep(0.005)
"""
    assert run.start(source, MUSTER_COORDINATOR=coordinator.url).wait() == 0
    assert run.words()["step"] == 300
    last = coordinator.until(lambda report: report["lastWords"])
    assert last["progress"]["step"] == 300
    assert last["sequence"] < 100


def test_how_a_rank_gets_on_is_told_with_the_next_report_and_causes_none(run: Run, coordinator: Coordinator) -> None:
    coordinator.reply["intervalSeconds"] = 600
    source = """
import json, os, time
for step in range(1, 61):
    line = json.dumps({"event": "pace", "step": step, "seconds": 0.02, "ownSeconds": 0.01})
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), line.encode() + b"\\n")
    time.sleep(0.02)
"""
    assert run.start(source, MUSTER_COORDINATOR=coordinator.url).wait() == 0
    last = coordinator.until(lambda report: report["lastWords"])
    assert [(each["rank"], each["step"], each["ownSeconds"]) for each in last["ranks"]] == [(0, 60, 0.01)]
    assert last["sequence"] < 8, "one for the start, one for the process, one for its end, one for the last words, and none for its pace"


def test_a_token_is_shown_to_none_but_him_whom_the_authority_vouches_for(run: Run, coordinator: Coordinator) -> None:
    certificate, stranger = (made("localhost", datetime.now(UTC)) for _ in range(2))
    coordinator.socket = certificate.context().wrap_socket(coordinator.socket, server_side=True)
    url = coordinator.url.replace("http://127.0.0.1", "https://localhost")
    assert run.start("print('done')", MUSTER_COORDINATOR=url, MUSTER_COORDINATOR_AUTHORITY=stranger.certificate).wait() == 0
    assert "certificate verify failed" in run.err.read_text()
    assert coordinator.reports.empty()
    assert run.start("print('done')", MUSTER_COORDINATOR=url, MUSTER_COORDINATOR_AUTHORITY=certificate.certificate).wait() == 0
    assert coordinator.until(lambda report: report["lastWords"])["lastWords"]["code"] == 0


def test_bad_configuration_is_reported_too(run: Run, coordinator: Coordinator) -> None:
    assert run.start("def f(:\n", MUSTER_COORDINATOR=coordinator.url).wait() == 11
    assert coordinator.until(lambda report: report["lastWords"])["lastWords"]["code"] == 11


def test_a_coordinator_that_is_away_stops_nothing(run: Run) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as closed:
        port = closed.server_address[1]
    assert run.start("print('done')", MUSTER_COORDINATOR=f"http://127.0.0.1:{port}").wait() == 0
    assert run.out.read_text() == "done\n"
    assert run.err.read_text().count("the training goes on") == 1


def test_a_coordinator_that_never_comes_to_an_end_does_not_hold_up_ours(run: Run) -> None:
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
            try:
                while not over.wait(0.2):
                    connection.sendall(b" ")
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        run.start("print('done')", MUSTER_COORDINATOR=f"http://127.0.0.1:{server.getsockname()[1]}")
        try:
            assert run.wait() == 0
        finally:
            over.set()
            socket.create_connection(server.getsockname()).close()  # in case none ever came
            thread.join()


GIVES_UP = SPEAKS + "print('attempt', os.environ['MUSTER_ATTEMPT'], os.environ['MASTER_PORT'], flush=True)\nraise SystemExit(20)\n"


def follows(coordinator: Coordinator, **orders: Any) -> None:
    coordinator.reply = {"intervalSeconds": 0.2, "graceSeconds": 0.0, "end": False, "attempt": 3, **orders}


def world(attempt: int, port: int) -> dict[str, str]:
    return {"MUSTER_ATTEMPT": str(attempt), "MASTER_PORT": str(port)}


def test_a_replica_outlives_its_processes_and_starts_those_of_the_next_attempt(run: Run, coordinator: Coordinator) -> None:
    follows(coordinator)
    run.start(GIVES_UP, MUSTER_COORDINATOR=coordinator.url)
    ended = coordinator.until(lambda report: report.get("waiting"))
    assert (ended["attempt"], ended["lastWords"]["code"], ended["inPlace"]) == (3, 20, True)
    follows(coordinator, attempt=4)
    acknowledged = coordinator.until(lambda report: report["attempt"] == 4)
    assert (acknowledged["waiting"], acknowledged["processes"]) == (True, [])
    assert (acknowledged["lastWords"]["attempt"], acknowledged["resumed"], acknowledged["checkpoint"]) == (3, None, None)
    follows(coordinator, attempt=4, world=world(4, 29504))
    assert coordinator.until(lambda report: report.get("waiting") and report["lastWords"]["attempt"] == 4)["attempt"] == 4
    follows(coordinator, attempt=4, end=True)
    assert run.wait() == 20
    assert run.out.read_text().splitlines() == ["attempt 3 29500", "attempt 4 29504"]
    assert run.words()["attempt"] == 4


def test_a_newer_attempt_ends_processes_that_still_run_and_they_are_reaped_before_it_is_acknowledged(
    run: Run, coordinator: Coordinator
) -> None:
    follows(coordinator)
    run.start(IGNORES_SIGTERM, MUSTER_COORDINATOR=coordinator.url)
    [process] = coordinator.until(lambda report: report["processes"])["processes"]
    follows(coordinator, attempt=5)
    acknowledged = coordinator.until(lambda report: report["attempt"] == 5)
    assert (acknowledged["waiting"], acknowledged["lastWords"]) == (True, None)
    assert not psutil.pid_exists(process["pid"])
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 22
    assert (run.words()["attempt"], run.words()["message"]) == (5, "ended before attempt 5 began")


def test_a_replica_that_is_asked_to_go_and_hears_of_a_later_attempt_while_it_saves_says_that_it_saved(
    run: Run, coordinator: Coordinator
) -> None:
    follows(coordinator)
    run.start(
        SAVES_ON_SIGTERM.replace("def stop(*_):", "def stop(*_):\n    print('saves', flush=True); time.sleep(2)"),
        MUSTER_COORDINATOR=coordinator.url,
    )
    wait_for(lambda: "ready" in run.out.read_text(), "the process")
    os.kill(run.pid, signal.SIGTERM)
    wait_for(lambda: "saves" in run.out.read_text(), "the save")
    follows(coordinator, attempt=4, graceSeconds=20.0)
    assert run.wait() == 21
    words = run.words()
    assert (words["attempt"], words["commit"]["step"]) == (3, 7)
    last = coordinator.until(lambda report: report["lastWords"])
    assert (last["attempt"], last["lastWords"]["code"]) == (3, 21)


def test_a_world_that_changes_as_planned_gives_the_processes_time_to_save(run: Run, coordinator: Coordinator) -> None:
    follows(coordinator)
    run.start(SAVES_ON_SIGTERM, MUSTER_COORDINATOR=coordinator.url)
    wait_for(lambda: "ready" in run.out.read_text(), "the process")
    follows(coordinator, attempt=4, graceSeconds=20.0)
    coordinator.until(lambda report: report["attempt"] == 4)
    events = [json.loads(line) for line in (run.state / "events.jsonl").read_text().splitlines()]
    assert ("commit", 7) in [(event["event"], event.get("step")) for event in events]
    follows(coordinator, attempt=4, end=True)
    run.wait()


@pytest.mark.parametrize(("succeeded", "code"), [(True, 0), (False, 20)])
def test_processes_that_still_run_when_the_job_is_over_are_ended_and_the_replica_with_them(
    run: Run, coordinator: Coordinator, succeeded: bool, code: int
) -> None:
    follows(coordinator)
    run.start(SLEEPS, MUSTER_COORDINATOR=coordinator.url)
    run.printed("ready")
    follows(coordinator, end=True, succeeded=succeeded)
    assert run.wait() == code
    words = run.words()
    assert (words["attempt"], words["exitCode"], words["signal"]) == (3, None, None)


def test_a_replica_that_saves_when_the_job_is_over_keeps_what_it_saved_and_is_not_taken_for_preempted(
    run: Run, coordinator: Coordinator
) -> None:
    follows(coordinator)
    run.start(SAVES_ON_SIGTERM, MUSTER_COORDINATOR=coordinator.url)
    run.printed("ready")
    follows(coordinator, end=True, graceSeconds=20.0)
    assert run.wait() == 20
    assert run.words()["commit"] == {"step": 7, "path": "step-7"}


RESCUES = """
import json, os, signal, threading, time
def emit(event, **fields):
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), json.dumps({"event": event, **fields}).encode() + b"\\n")
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
emit("resumed", step=0, rescues=WHOLE)
print("ready", flush=True)
asked.wait()
time.sleep(0.5)
emit("commit", step=7, path="step-7", reason="PeerLost")
raise SystemExit(20)
"""


@pytest.mark.parametrize(("whole", "dump", "commits"), [(True, False, [7]), (False, False, []), (True, True, [])])
def test_one_that_has_the_whole_state_may_save_it_when_its_peers_are_gone(
    run: Run, coordinator: Coordinator, whole: bool, dump: bool, commits: list[int]
) -> None:
    follows(coordinator)
    run.start(RESCUES.replace("WHOLE", str(whole)), MUSTER_COORDINATOR=coordinator.url)
    wait_for(lambda: "ready" in run.out.read_text(), "the process")
    follows(coordinator, attempt=4, dump=dump)
    coordinator.until(lambda report: report["attempt"] == 4)
    events = [json.loads(line) for line in (run.state / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "commit"] == commits
    follows(coordinator, attempt=4, end=True)
    run.wait()


def test_a_request_to_stop_ends_a_replica_that_waits_with_what_it_had_to_say(run: Run, coordinator: Coordinator) -> None:
    follows(coordinator)
    run.start(GIVES_UP, MUSTER_COORDINATOR=coordinator.url)
    coordinator.until(lambda report: report.get("waiting"))
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 20


def test_a_coordinator_that_gives_no_orders_keeps_nobody_waiting(run: Run, coordinator: Coordinator) -> None:
    assert run.start(GIVES_UP, MUSTER_COORDINATOR=coordinator.url).wait() == 20


def test_what_cannot_run_as_written_does_not_wait_for_another_attempt(run: Run, coordinator: Coordinator) -> None:
    follows(coordinator)
    assert run.start(f"{SPEAKS}raise SystemExit(11)", MUSTER_COORDINATOR=coordinator.url).wait() == 11
