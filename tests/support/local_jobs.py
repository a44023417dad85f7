"""Jobs under `muster run`, as a user starts it, and a small script that replaces training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from muster.local.rundir import mark_of
from muster.local.sweep import RUN_MARK, marked
from tests.support.training_run import Document, RunningJob, read_events
from tests.support.waiting import DEADLINE, wait_until

NOTICE = {"node": "spot-1", "signal": "taint karpenter.sh/disrupted", "since": 1764400000.5, "goes": True, "goesAt": 1764400120.0}
TRAIN = '''
"""Counts steps as a training loop would: begins when its whole world is there, resumes from its folder, saves every 5 steps, and when
it is asked to stop. Arguments: steps, seconds of a step, and seconds of a step once it has resumed (0)."""
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

begun = int((folder / "step").read_text()) if (folder / "step").exists() else 0  # before the others know this rank, so that none saves yet
world = Path(f"world-{os.environ['MASTER_PORT']}")  # the port changes with the attempt
world.mkdir(exist_ok=True)
(world / str(rank)).touch()
while len(list(world.iterdir())) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.005)
    if stop:
        sys.exit(22)

if begun:
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
print("rank", rank, "goes on from step", begun, flush=True)
tell(event="resumed", committedStep=begun or None, step=begun, path=None, skipped=[])
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
    """A job document; by default 2000 steps of 10 ms on two workers, and none of them takes time once it has resumed."""
    return {
        "apiVersion": "muster.dev/v1beta1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "strategy": "DDP",
            "trainer": dict(trainer or {"script": "train.py 2000 0.01"}),
            "roles": {"worker": {"replicas": replicas}},
            "checkpoint": {"gracePeriodSeconds": 10},
            **spec,
        },
    }


@dataclass
class LocalJob(RunningJob):
    """A job under `muster run`, in a folder with job files and run directories; `name` is that of its run directory."""

    folder: Path
    name: str = "tiny"
    process: subprocess.Popen[str] | None = None
    """The newest `muster run`."""
    output: str = ""
    deadline = 300.0

    @property
    def run(self) -> Path:
        return self.folder / "runs" / self.name

    @property
    def spec(self) -> Document:
        spec: Document = yaml.safe_load((self.run / "job.yaml").read_text())["spec"]
        return spec

    @property
    def status(self) -> Document:
        return self._read("status.json") or {}

    def processes(self) -> list[Document]:
        """The replicas that run now, with their training processes."""
        return self._read("processes.json") or []

    def _read(self, name: str) -> Any:
        path = self.run / name
        return json.loads(path.read_text()) if path.exists() else None

    def write(self, document: Any, name: str = "job.yaml") -> str:
        (self.folder / name).write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        return name

    # `muster run`

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "muster.cli", "run", *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self.process

    @contextmanager
    def running(self, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """A `muster run`. If it is still running at the end, it is killed. No process of it may remain."""
        process = self.start(*arguments, env=env)
        try:
            yield process
        finally:
            for each in filter(None, {process, self.process}):  # it may have been resumed
                each.kill()
                if each.stdout and not each.stdout.closed:
                    each.communicate()
            self.assert_nothing_left()

    def muster_run(self, *arguments: str, seconds: float = DEADLINE) -> tuple[int, str]:
        """Exit code and output of a whole run."""
        with self.running(*arguments) as process:
            return finish(process, seconds)

    def muster_run_beside(self, *arguments: str) -> tuple[int, str]:
        """The same during another run."""
        return finish(LocalJob(self.folder).start(*arguments))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command of `muster`, to its end, where there is no cluster."""
        return subprocess.run(
            [sys.executable, "-m", "muster.cli", *arguments],
            cwd=self.folder,
            env={**os.environ, "KUBECONFIG": str(self.folder / "no-cluster"), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    def shows(self, *arguments: str) -> str:
        """What a command prints that succeeds."""
        done = self.command(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def wait_for_end(self, timeout: float | None = None) -> str:
        assert self.process is not None
        if self.process.stdout and not self.process.stdout.closed:
            _, self.output = finish(self.process, timeout or self.deadline)
        phase = str(self.status["phase"])
        assert (self.process.returncode == 0) == (phase == "Succeeded"), self.story()
        return phase

    def story(self) -> str:
        return f"{self.output[-3000:]}\n{json.dumps(self.status)}"

    # its processes

    def assert_nothing_left(self) -> None:
        for path in self.folder.glob("runs/*/job.yaml"):
            wait_until(partial(_has_no_processes, mark_in(path.parent)), f"the end of the run in {path.parent}")

    @property
    def mark(self) -> str:
        """The mark of all processes of the run."""
        return mark_in(self.run)

    def pid_of(self, *replicas: str, attempt: int = 0) -> int:
        """Waits for the training process of the first replica that has one of at least that attempt."""

        def pids() -> list[int]:
            entries = [entry for entry in self.processes() if entry["replica"] in replicas and entry["attempt"] >= attempt]
            return [process["pid"] for entry in entries for process in entry["processes"]]

        return wait_until(pids, f"a process of {replicas} in attempt {attempt}")[0]

    def supervisor_of(self, replica: str) -> int:
        """The pid of the replica itself: the parent of its training processes."""
        return next(int(entry["pid"]) for entry in self.processes() if entry["replica"] == replica)

    def kill(self, replica: str, number: signal.Signals = signal.SIGKILL, *, attempt: int = 0) -> None:
        """Sends the signal to the training process of a replica."""
        os.kill(self.pid_of(replica, attempt=attempt), number)

    # its files

    def events(self, kind: str) -> list[Document]:
        return read_events(self.run.glob("attempts/*/*/events.jsonl"), kind)

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.run.glob("attempts/*/*/log.txt")))

    def check_goodput(self) -> None:
        """The parts of goodput add up to the time from the job's creation to its end, to the millisecond."""
        status = self.status
        created = yaml.safe_load((self.run / "job.yaml").read_text())["metadata"]["creationTimestamp"]
        lived = (datetime.fromisoformat(status["completionTime"]) - datetime.fromisoformat(str(created))).total_seconds()
        counted = sum(seconds for part, seconds in status["goodput"].items() if part.endswith("Seconds"))
        assert abs(counted - lived) < 0.005, status["goodput"]


def _has_no_processes(mark: str) -> bool:
    return not marked(RUN_MARK, mark)


def mark_in(run: Path) -> str:
    """The mark of the run in this directory."""
    return mark_of(run, yaml.safe_load((run / "job.yaml").read_text())["metadata"]["uid"])


def storage_of(run: LocalJob) -> Path:
    """The folder of the job's checkpoints."""
    spec = psutil.Process(run.pid_of("worker-0")).environ()["MUSTER_TRAINER"]
    return Path(json.loads(spec)["checkpoint"]["directory"])


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """A file is in the place of the storage, inside the block."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


def announce(pid: int, **changes: Any) -> Path:
    """Puts a notice where the supervisor of this training process would put it, and returns its file. Raises ProcessLookupError if the
    process has ended."""
    try:
        file = Path(psutil.Process(pid).environ()["MUSTER_STATE_DIR"]) / "notice.json"
    except psutil.Error as error:
        raise ProcessLookupError(str(error)) from error
    new = file.with_suffix(".new")
    new.write_text(json.dumps({**NOTICE, **changes}))
    return new.replace(file)


def has_ended(process: psutil.Process) -> bool:
    """Whether it has ended. A zombie that is not reaped yet has ended."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_running(pid: int) -> bool:
    """Whether there is a process with this id that has not ended."""
    try:
        return not has_ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def finish(process: subprocess.Popen[str], seconds: float = DEADLINE) -> tuple[int, str]:
    """Exit code and output, once it has ended by itself."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"muster run did not end within {seconds} s: {output}") from None
    return process.returncode, output
