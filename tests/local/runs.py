"""`muster run` as a user starts it, with tiny scripts in place of training, and what must hold after every run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from muster.local.rundir import mark_of
from muster.local.sweep import RUN_MARK, marked

DEADLINE = 120.0

TRAIN = '''
"""Counts steps as a training loop would: begins when its whole world is there, resumes from its folder, saves every 5 steps, and when
it is asked to stop."""
import json, os, signal, sys, time
from pathlib import Path

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
rank = int(os.environ["RANK"])
folder = Path(json.loads(os.environ["MUSTER_TRAINER"])["checkpoint"]["directory"])
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))

def tell(**event):
    line = json.dumps({"time": time.time(), "rank": rank, **event}) + "\\n"
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), line.encode())

def save(step, reason):
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "new").write_text(str(step))
        (folder / "new").replace(folder / "step")
        tell(event="commit", step=step, path=f"step-{step}", seconds=0.0, bytes=1, reason=reason)

world = Path(f"world-{os.environ['MASTER_PORT']}")  # the port changes with the attempt
world.mkdir(exist_ok=True)
(world / str(rank)).touch()
while len(list(world.iterdir())) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.005)
    if stop:
        sys.exit(22)

begun = int((folder / "step").read_text()) if (folder / "step").exists() else 0
print("rank", rank, "goes on from step", begun, flush=True)
tell(event="resumed", found=begun or None, step=begun, path=None, skipped=[])
for step in range(begun + 1, steps + 1):
    time.sleep(seconds)
    if rank == 0:
        tell(event="step", step=step, totalSteps=steps, epoch=0, loss=str(1 / step), lossHex=(1 / step).hex(), samples=8, seconds=seconds)
    if stop:
        save(step, "Stop")
        sys.exit(21)
    if step % 5 == 0:
        save(step, "Periodic")
save(steps, "Final")
'''


def job(name: str = "tiny", *, replicas: int = 2, trainer: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A job document; by default 400 steps of 10 ms on two workers."""
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "strategy": "DDP",
            "trainer": dict(trainer or {"script": "train.py 400 0.01"}),
            "roles": {"worker": {"replicas": replicas}},
            "checkpoint": {"gracePeriodSeconds": 10},
            **spec,
        },
    }


@dataclass
class Place:
    """A folder to stand in, with job files and run directories."""

    folder: Path

    def write(self, document: Any, name: str = "job.yaml") -> str:
        (self.folder / name).write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        return name

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "tiny"

    def start(self, *arguments: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "muster.cli", "run", *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )

    def muster_run(self, *arguments: str, seconds: float = DEADLINE) -> tuple[int, str]:
        """Exit code and output of a whole run."""
        with self.running(*arguments) as process:
            return finish(process, seconds)

    def muster_run_beside(self, *arguments: str) -> tuple[int, str]:
        """The same while another run goes on."""
        return finish(self.start(*arguments))

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A run that is under way; it is ended at the end, and nothing of it may be left."""
        process = self.start(*arguments)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
            self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        for path in self.folder.glob("runs/*/job.yaml"):
            mark = mark_in(path.parent)
            wait_until(lambda mark=mark: not marked(RUN_MARK, mark), f"processes of the run in {path.parent} to end")

    @property
    def mark(self) -> str:
        """What all processes of the run carry."""
        return mark_in(self.run)

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.run / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def step(self) -> int:
        return int((self.status().get("progress") or {}).get("step", 0))

    def committed(self) -> int:
        return int((self.status().get("checkpoint") or {}).get("step", 0))

    def wait_for_commit(self, step: int = 5) -> None:
        wait_until(lambda: self.committed() >= step, f"a commit at step {step}")

    def processes(self) -> list[dict[str, Any]]:
        try:
            entries: list[dict[str, Any]] = json.loads((self.run / "processes.json").read_text())
        except FileNotFoundError:
            return []
        return entries

    def pid_of(self, replica: str) -> int:
        """The training process of the replica, once it is known."""
        found: list[int] = []

        def known() -> bool:
            found[:] = [process["pid"] for entry in self.processes() if entry["replica"] == replica for process in entry["processes"]]
            return bool(found)

        wait_until(known, f"the pid of {replica}")
        return found[0]

    def supervisor_of(self, replica: str) -> int:
        """The pid of the replica itself: the parent of its training processes."""
        return next(int(entry["pid"]) for entry in self.processes() if entry["replica"] == replica)

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.run.glob("attempts/*/*/log.txt")))


def mark_in(run: Path) -> str:
    """The mark of the run in this directory."""
    return mark_of(run, yaml.safe_load((run / "job.yaml").read_text())["metadata"]["uid"])


def losses(run: Path) -> dict[int, str]:
    """The loss of each step in the attempt that did it last."""
    curve: dict[int, str] = {}
    for path in sorted(run.glob("attempts/*/worker-0/events.jsonl"), key=lambda path: int(path.parts[-3])):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "step":
                curve[event["step"]] = event["lossHex"]
    return curve


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; a zombie that nobody has reaped yet does not."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def finish(process: subprocess.Popen[str], seconds: float = DEADLINE) -> tuple[int, str]:
    """Exit code and output, once it has ended by itself."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"muster run did not end within {seconds} s: {output}") from None
    return process.returncode, output


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"waited {seconds} s in vain for {what}"
        time.sleep(0.02)
