"""How long a training stands still when a process dies: `python -m bench.recovery`. Prints JSON.

The same model trains on the same machine under `muster run` and without it. Without it, torchrun runs PyTorch with the best known settings.
TensorFlow has no launcher that restarts, so the bench restarts both processes. The figure is the time from the kill to the first new step.
The bench waits for three more steps, because the current step may still end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from local_cluster.ports import free_ports
from muster.local.follow import LogFollower
from tests.support.local_jobs import LocalJob, job
from tests.support.waiting import wait_until

PLAIN = Path(__file__).with_name("plain_restart.py")
DELAY = 0.02
"""Seconds that each step sleeps, so that two processes leave a core free for the processes that watch them."""
TIMEOUT_SECONDS = 300.0
OWN = "from muster_trainer.pytorch.digits import build_model, dataset, loss, metrics"
LARGE = """
import torch
from torch import nn
from muster_trainer.pytorch import digits
from muster_trainer.pytorch.digits import dataset, loss, metrics

SURVIVES = True

class Model(nn.Module):
    def __init__(self, trained):
        super().__init__()
        self.trained = trained
        self.frozen = nn.ParameterList(nn.Parameter(torch.ones(1 << 22), requires_grad=False) for _ in range(32))

    def forward(self, images):
        return self.trained(images)

def build_model(config):
    return Model(digits.build_model(config))
"""
"""A task with 512 MiB of frozen parameters beside the small model that is trained."""
UNDER_WAY = 2
BETWEEN_STEPS = 45
"""Steps between two kills, at least."""
MOST_COLD = 10
"""Kills of a training without Muster, which takes ten times as long to resume."""
TUNED = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,heartbeat_timeout=2"

Steps = list[tuple[float, int]]
"""The time (Unix seconds) of each step of rank 0."""


class Lines:
    """Reads each line of growing files once. To read all lines again would take processor time from the measured training."""

    def __init__(self, folder: Path, pattern: str, step_of: Callable[[str], tuple[float, int] | None]) -> None:
        self._folder, self._pattern, self._step_of = folder, pattern, step_of
        self._follower = LogFollower()
        self._steps: Steps = []

    def __call__(self) -> Steps:
        for path in self._folder.glob(self._pattern):
            self._steps += filter(None, map(self._step_of, self._follower.lines(path)))
        return sorted(self._steps)


@dataclass(frozen=True)
class Training:
    """A training in progress, with the steps that it reports."""

    steps: Callable[[], Steps]
    timeout: float = TIMEOUT_SECONDS

    def reaches(self, step: int) -> None:
        wait_until(lambda: max((done for _, done in self.steps()), default=0) >= step, f"step {step}", self.timeout)

    def stands_still(self, fault: Callable[[], None]) -> float:
        """Seconds from the fault to the first new step, and the seconds of the steps in progress."""
        at = time.time()
        fault()
        done = max(step for when, step in self.steps() if when <= at)
        self.reaches(done + UNDER_WAY + 1)
        return min(when for when, step in self.steps() if step == done + UNDER_WAY + 1) - at

    def goes_on(self, steps: int) -> None:
        """Lets it train for so many steps and up to 20 more, until a random moment after a save."""
        self.reaches(self.steps()[-1][1] + steps + random.randrange(20))


# under Muster


@contextmanager
def muster(folder: Path, strategy: str, *, module: str = "", **spec: Any) -> Iterator[tuple[Training, LocalJob]]:
    """`module`: the source of the task. Without it, the task is the bundled one, whose processes go on in place."""
    folder.mkdir()
    (folder / "own.py").write_text(module)
    local_job = LocalJob(folder)
    config = {"epochs": 100_000, "stepDelaySeconds": DELAY}
    task = {"module": "own", "config": {**config, "model": "mlp", "hidden": [64]}} if module else {"task": "digits", "config": config}
    limits = {each: {"limit": -1} for each in ("infrastructure", "preemption")}
    spec = {"checkpoint": {"everySteps": 20}, **spec}
    document = job(strategy=strategy, trainer=task, batch={"globalSize": 64}, recovery=limits, **spec)
    with local_job.running(local_job.write(document)) as run:
        training = Training(Lines(local_job.run, "attempts/*/worker-*/events.jsonl", _step_event))
        training.reaches(60)
        yield training, local_job
        run.kill()


def _step_event(line: str) -> tuple[float, int] | None:
    event = json.loads(line) if '"step"' in line else {}
    return (event["time"], event["step"]) if event.get("event") == "step" else None


def kill_process(local_job: LocalJob, replica: str = "worker-1") -> None:
    entry = next(entry for entry in local_job.processes() if entry["replica"] == replica)
    os.kill(entry["processes"][0]["pid"], signal.SIGKILL)


def kill_replica(local_job: LocalJob) -> None:
    """Kills the supervisor and all its processes, as the loss of a node does."""
    end([psutil.Process(local_job.supervisor_of("worker-1"))])


# without Muster


@contextmanager
def torchrun(folder: Path, *, nodes: str, settings: str) -> Iterator[tuple[Training, Callable[[], psutil.Process]]]:
    """Two agents with a process each. The second value finds the second agent."""
    folder.mkdir()
    [port] = free_ports(1)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1", "--max-restarts=100"]
    command += ["--monitor-interval=0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={folder.name}"]
    command += [f"--rdzv-conf={settings}"] if settings else []
    # without this variable a restart meets the sockets of the world before it (pytorch#135712)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents = []
    with (folder / "log").open("wb") as log:
        for _ in range(2):
            agent = subprocess.Popen([*command, str(PLAIN), "torch", str(folder), str(DELAY)], env=environment, stdout=log, stderr=log)
            agents.append(psutil.Process(agent.pid))
            if len(agents) == 1:
                wait_until(lambda: _listens(port), "the first agent to have the store", TIMEOUT_SECONDS)
    training = Training(Lines(folder, "steps", written))
    try:
        training.reaches(60)
        yield training, lambda: agents[1]
    finally:
        end(agents)


def _listens(port: int) -> bool:
    return any(each.laddr.port == port and each.status == psutil.CONN_LISTEN for each in psutil.net_connections("tcp"))


def written(line: str) -> tuple[float, int] | None:
    step, when = line.split()
    return float(when), int(step)


def end(processes: list[psutil.Process]) -> None:
    """The processes with all their descendants."""
    every = [each for process in processes if process.is_running() for each in (process, *process.children(recursive=True))]
    for process in every:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(every, timeout=10)


@contextmanager
def plain_tensorflow(folder: Path) -> Iterator[tuple[Training, Callable[[], None]]]:
    """Two workers of TensorFlow. The second value kills both, and starts them again as soon as one of them dies."""
    folder.mkdir()
    running: list[psutil.Process] = []

    def restart() -> None:
        end(running)
        workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
        with (folder / "log").open("ab") as log:
            for index in range(2):
                config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
                environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CONFIG": config}
                command = [sys.executable, str(PLAIN), "tensorflow", str(folder), str(DELAY)]
                running[index:] = [psutil.Process(subprocess.Popen(command, env=environment, stdout=log, stderr=log).pid)]

    training = Training(Lines(folder, "steps", written))
    restart()
    try:
        training.reaches(60)
        yield training, restart
    finally:
        end(running)


# the figures


def one_process(folder: Path, times: int) -> dict[str, Any]:
    """One of two training processes dies. `forked`: the other one ends as well, and both are forked again."""
    with muster(folder / "muster", "DDP") as (training, local_job):
        ours = [after(training, lambda: kill_process(local_job)) for _ in range(times)]
    with muster(folder / "forked", "DDP", module=OWN) as (training, local_job):
        forked = [after(training, lambda: kill_process(local_job)) for _ in range(times)]
    with torchrun(folder / "torchrun", nodes="2", settings=TUNED) as (training, second):
        theirs = [after(training, lambda: end(second().children(recursive=True))) for _ in range(min(times, MOST_COLD))]
    return against(ours, forked=forked, torchrun=theirs)


def one_process_with_a_large_state(folder: Path, times: int) -> dict[str, Any]:
    """A new process takes the place of the killed one, and gets 512 MiB from the process that survives."""
    with muster(folder / "large", "DDP", module=LARGE, checkpoint={"everySteps": 1000}) as (training, local_job):
        return against([after(training, lambda: kill_process(local_job)) for _ in range(times)])


def one_process_of_shards(folder: Path, times: int) -> dict[str, Any]:
    """FSDP with a snapshot in memory after each step. All processes are forked again, and no step is lost."""
    memory = {"everySteps": 20, "memory": {"everySteps": 1, "sizeMib": 64}}
    with muster(folder / "shards", "FSDP", checkpoint=memory) as (training, local_job):
        return against([after(training, lambda: kill_process(local_job)) for _ in range(times)])


def one_worker_of_tensorflow(folder: Path, times: int) -> dict[str, Any]:
    """One of two workers of MultiWorkerMirrored dies. Then its chief dies, which could have saved its state."""
    with muster(folder / "mwms", "MultiWorkerMirrored") as (training, local_job):
        ours = [after(training, lambda: kill_process(local_job)) for _ in range(times)]
        chief = [after(training, lambda: kill_process(local_job, "worker-0")) for _ in range(times)]
    with plain_tensorflow(folder / "cold") as (training, restart):
        cold = [after(training, restart) for _ in range(min(times, MOST_COLD))]
    return {"worker": against(ours, coldRestart=cold), "chief": against(chief, coldRestart=cold)}


def one_replica(folder: Path, times: int) -> dict[str, Any]:
    """A whole replica is lost, and the other one continues alone."""
    elastic = {"minReplicas": 1, "maxReplicas": 2, "shrinkAfterSeconds": 0, "growAfterSeconds": 2}
    ours, tuned, default = [], [], []
    for number in range(times):
        with muster(folder / f"elastic-{number}", "DDP", elastic=elastic) as (training, local_job):
            ours.append(after(training, lambda local_job=local_job: kill_replica(local_job)))
        with torchrun(folder / f"tuned-{number}", nodes="1:2", settings=TUNED) as (training, second):
            tuned.append(after(training, lambda second=second: end([second()])))
    with torchrun(folder / "default", nodes="1:2", settings="") as (training, second):
        default.append(after(training, lambda: end([second()])))
    return against(ours, torchrunTuned=tuned, torchrunDefaults=default)


def steps_lost(folder: Path, times: int) -> list[int]:
    """The number of steps that had to be redone after a replica was stopped, as when its node is drained."""
    with muster(folder / "sigterm", "DDP") as (training, local_job):
        for _ in range(times):
            after(training, lambda: os.kill(local_job.supervisor_of("worker-1"), signal.SIGTERM))
        wait_until(
            lambda: all("stepsLost" in record for record in local_job.status["attempts"][1:]), "the last attempt's steps", TIMEOUT_SECONDS
        )
        return [record["stepsLost"] for record in local_job.status["attempts"][1:]]


def goodput(folder: Path, minutes: int) -> dict[str, Any]:
    """The share of the time in which new steps were done, with one kill per minute. It uses the step time of an undisturbed part of the
    same run."""
    shares = {}
    for name in ("muster", "torchrun"):
        begun = time.time()
        context = muster(folder / "long", "DDP") if name == "muster" else torchrun(folder / "long-torchrun", nodes="2", settings=TUNED)
        with context as (training, handle):
            while time.time() < begun + 60 * minutes:
                time.sleep(max(0.0, min(60.0, begun + 60 * minutes - time.time())))
                if time.time() < begun + 60 * minutes:
                    kill_process(handle) if isinstance(handle, LocalJob) else end(handle().children(recursive=True))
            steps = [each for each in training.steps() if each[0] <= begun + 60 * minutes]
        gaps = [later - when for (when, _), (later, _) in pairwise(steps)]
        shares[name] = round(statistics.median(gaps) * max(step for _, step in steps) / (60 * minutes), 3)
    return {"minutes": minutes, **shares}


def after(training: Training, fault: Callable[[], None], *, steps: int = BETWEEN_STEPS) -> float:
    training.goes_on(steps)
    return training.stands_still(fault)


def against(ours: list[float], **theirs: list[float]) -> dict[str, Any]:
    """The figures of each, and the ratios of their medians to ours."""
    every = {"muster": ours, **theirs}
    ratios = {f"{name}/muster": round(statistics.median(taken) / statistics.median(ours), 1) for name, taken in theirs.items()}
    return {"seconds": {name: _figures(taken) for name, taken in every.items()}, **ratios}


def _figures(taken: list[float]) -> dict[str, float]:
    """`p99` is the longest of fewer than 100 kills."""
    ordered = sorted(taken)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return {name: round(each, 2) for name, each in (("least", ordered[0]), ("median", statistics.median(ordered)), ("p99", p99))}


PARTS: dict[str, Callable[[Path, int], Any]] = {
    "processKilled": one_process,
    "largeState": one_process_with_a_large_state,
    "shards": one_process_of_shards,
    "tensorflowWorkerKilled": one_worker_of_tensorflow,
    "replicaLost": lambda folder, times: one_replica(folder, min(times, 3)),
    "stepsLostOnSigterm": steps_lost,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="how often each fault is made")
    parser.add_argument("--minutes", type=int, default=0, help="so long for goodput with a kill a minute, each way; 0: leave it out")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="the faults to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-recovery-") as name:
        folder = Path(name)
        figures: dict[str, Any] = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "times": options.times}
        for part in options.parts:
            figures[part] = PARTS[part](folder, options.times)
        if options.minutes:
            figures["goodputWithAKillAMinute"] = goodput(folder, options.minutes)
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
