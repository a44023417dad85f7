"""A supervisor with real processes, which are small Python programs without a framework, and an operator that receives its reports."""

from __future__ import annotations

import http.server
import json
import os
import queue
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.support import descriptors
from tests.support.waiting import wait_until

LINUX = sys.platform == "linux"

DEADLINE = 120.0

CLOSED = subprocess.DEVNULL  # as `stdout`: the descriptor is closed before the supervisor starts

SAVES_ON_SIGTERM = """
import json, os, signal, time
def stop(*_):
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), json.dumps(
        {"event": "commit", "step": 7, "path": "step-7", "reason": "Stop"}).encode() + b"\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(600)
"""

IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""

SENDS_AN_EVENT = """
import os, sys
os.write(int(os.environ["MUSTER_EVENTS_FD"]), b'{"event": "phase", "phase": "Training"}\\n')
"""

SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"


def commit_of(words: dict[str, Any]) -> tuple[int, str]:
    return words["commit"]["step"], words["commit"]["path"]


class Document(dict[str, Any]):
    """A JSON object of the contract, where an absent field is None."""

    def __missing__(self, name: str) -> None:
        return None


class SupervisorRun:
    """One supervisor, its files, and the mark of all its descendants."""

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
        """The environment of a DDP replica that is its whole world."""
        trainer = {
            "strategy": descriptors.document(),
            **entry,
            "config": {},
            "batch": {"globalSize": 8},
            "checkpoint": None,
            "graceSeconds": grace,
        }
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
            "MUSTER_FIRST_RANK": "0",
            "MUSTER_WORLD_SIZE": str(processes),
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
        prefix: Sequence[str] = (),
        **changed: str,
    ) -> SupervisorRun:
        """Starts a replica that runs `source` as its script, or `command`. `stdout` may be a file descriptor. `prefix` are the words of a
        command that becomes the supervisor."""
        if source is not None:
            self.script.write_text(source)
        entry = {"command": command} if command else {"script": str(self.script)}
        environ = {**self.environment(processes=processes, entry=entry, grace=grace), **changed}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.popen = subprocess.Popen(
                [*prefix, sys.executable, "-m", "muster_trainer.supervisor"],
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
        """The exit code, once it has ended. No descendant may remain but the warm parent, which is killed and ends a moment later."""
        assert self.popen is not None
        code = self.popen.wait(DEADLINE)
        assert [each for each in self.members() if not _is_warm_parent(each)] == []
        wait_until(lambda: not self.members(), "the end of the warm parent")
        return code

    def termination_message(self) -> dict[str, Any]:
        lines = self.log.read_text().splitlines()
        assert len(lines) == 1
        document: dict[str, Any] = json.loads(lines[0], object_hook=Document)
        return document

    def events(self) -> list[dict[str, Any]]:
        """What its processes have sent."""
        return [event for event in self.recorded() if event["event"] != "load"]

    def recorded(self) -> list[dict[str, Any]]:
        """All events in its file, also those that the supervisor adds."""
        path = self.state / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]  # the last one may still be being written

    def printed(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.out.read_text(errors="replace").count(text) >= times, f"{text!r} on stdout")

    def members(self) -> list[psutil.Process]:
        """Every living process with the mark."""
        processes = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("MUSTER_RUN") == self.mark:
                    processes.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return processes

    def end(self) -> None:
        for process in self.members():
            process.kill()
        if self.popen is not None:
            self.popen.wait(DEADLINE)


def _is_warm_parent(process: psutil.Process) -> bool:
    """Whether this is a warm parent, one of its forks, or a process that has ended meanwhile."""
    try:
        command = process.cmdline()
    except psutil.NoSuchProcess:
        return True
    return not command or "muster_trainer.warm" in command


class Coordinator(http.server.ThreadingHTTPServer):
    """Records the reports, and answers as the contract demands."""

    def __init__(self) -> None:
        self.reports: queue.Queue[tuple[str, str, dict[str, Any]]] = queue.Queue()
        self.reply: dict[str, Any] = {"attempt": 3, "intervalSeconds": 0.3}
        self.connections: list[int] = []
        self.hangs_up = False
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait_for_report(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
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
        self.server.reports.put((self.path, self.headers.get("Authorization", ""), json.loads(body, object_hook=Document)))
        reply = json.dumps(self.server.reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        pass
