"""Training and recovery on a machine with an NVIDIA GPU: `python -m bench.gpu`, or `make bench-gpu`. Prints JSON lines.

All processes share the GPUs that are there. More than one process on a GPU needs NCCL 2.30 or later. Every job runs under `muster run`.
Its losses are compared bit by bit with those of the same job without a failure. The figures of `recovery` are seconds from a kill to the
first new step; no other job runs meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.local_jobs import LocalJob, job
from tests.support.waiting import wait_until

STARTS = Path(__file__).with_name("plain") / "cuda_starts.py"
CONFIG: dict[str, Any] = {"epochs": 12, "seed": 7, "deterministic": True}
DELAY = 0.02
FORKED = "from muster_trainer.pytorch.digits import build_model, dataset, loss, metrics\n"
LARGE = """
import torch
from torch import nn, optim
from muster_trainer.pytorch.digits import dataset, loss, metrics

SURVIVES = True

def build_model(config):
    return nn.Sequential(nn.Linear(64, 6400), nn.ReLU(), nn.Linear(6400, 6400), nn.ReLU(), nn.Linear(6400, 10))

def optimizer(model, config):
    return optim.AdamW(model.parameters(), lr=1e-5)
"""
"""165 MB of weights, and 330 MB of the optimizer."""

NOT_IN_PLACE: dict[str, Any] = {"module": "forked", "config": {"model": "mlp", "hidden": [64]}}
"""A task that does not opt in to processes that survive."""
BETWEEN_KILLS = 30
"""Steps."""

Losses = dict[int, str]
Figures = Iterator[tuple[str, Callable[[], Any]]]


def document(
    strategy: str, *, size: int = 2, delay: float = 0.0, module: str = "", config: Mapping[str, Any] | None = None, **spec: Any
) -> Any:
    settings = {**CONFIG, "stepDelaySeconds": delay, **(config or {})}
    entry = {"module": module, "config": settings} if module else {"task": "digits", "config": settings}
    fields = {"batch": {"globalSize": 64}, "checkpoint": {"everySteps": 1000}, "recovery": {"infrastructure": {"limit": -1}}}
    return job(replicas=size, strategy=strategy, trainer=entry, **{**fields, **spec})


def run(folder: Path, written: Any, **env: str) -> LocalJob:
    """Runs a job to its end."""
    folder.mkdir(parents=True)
    (folder / "forked.py").write_text(FORKED)
    (folder / "large.py").write_text(LARGE)
    local_job = LocalJob(folder)
    process = local_job.start(local_job.write(written), env=env)
    output = process.communicate(timeout=240)[0]
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {output[-3000:]}")
    return local_job


def losses_of(local_job: LocalJob) -> Losses:
    return {event["step"]: event["lossHex"] for event in local_job.events("step")}


def farthest(ours: Losses, theirs: Losses) -> float:
    """The largest difference of two curves."""
    assert ours.keys() == theirs.keys(), f"{len(ours)} and {len(theirs)} steps"
    return max(abs(float.fromhex(ours[step]) - float.fromhex(theirs[step])) for step in ours)


def with_kills(folder: Path, written: Any, *, kills: int, like: Losses) -> dict[str, Any]:
    """Kills the ranks in turn while the job trains, and compares all losses. `seconds`: from each kill to the first new step."""
    folder.mkdir(parents=True)
    (folder / "forked.py").write_text(FORKED)
    (folder / "large.py").write_text(LARGE)
    local_job = LocalJob(folder)
    seconds: list[float] = []
    with local_job.running(local_job.write(written)):
        for number in range(kills):
            local_job.wait_for_step(20 + BETWEEN_KILLS * number)
            victim = (number + 1) % 2
            at = time.time()
            os.kill(local_job.pid_of(f"worker-{victim}", attempt=number), signal.SIGKILL)
            attempt = number + 1
            wait_until(lambda attempt=attempt: _steps(local_job, attempt), f"a step of attempt {attempt}", 60)
            seconds.append(_steps(local_job, attempt)[0] - at)
        code = local_job.process.wait(timeout=240) if local_job.process else 1
        story = local_job.story()
    if code:
        raise RuntimeError(f"exit code {code}: {story[-3000:]}")
    records = [record for record in local_job.attempts if record["attempt"]]
    return {
        "equal": losses_of(local_job) == like,
        "seconds": [round(each, 2) for each in seconds],
        "median": round(statistics.median(seconds), 2),
        "resumedFrom": [record.get("resumedFrom") for record in records],
        "stepsLost": [record.get("stepsLost") for record in records],
        "survived": len(local_job.events("survived")),
        "phases": [_phases(record) for record in records],
        "ready": [_ready(event) for event in local_job.events("fingerprint") if event["attempt"]],
        "reasons": sorted({record["reason"] for record in local_job.attempts}),
    }


def _phases(record: Mapping[str, Any]) -> dict[str, float]:
    return {name.removesuffix("Seconds"): round(seconds, 2) for name, seconds in record.get("phases", {}).items()}


def _ready(event: Mapping[str, Any]) -> tuple[int, float, float]:
    """The rank, and the seconds until its GPU and NCCL were ready."""
    return event["rank"], round(event.get("deviceSeconds", 0.0), 2), round(event.get("collectivesSeconds", 0.0), 2)


def _steps(local_job: LocalJob, attempt: int) -> list[float]:
    return sorted(event["time"] for event in local_job.events("step") if event["attempt"] == attempt)


# the parts: each yields the names of its figures with what computes them


def machine(folder: Path, options: argparse.Namespace) -> Figures:
    """Seconds of the parts of a start, in two bare processes."""

    def starts() -> Any:
        done = subprocess.run([sys.executable, str(STARTS)], capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr[-3000:]

    yield "starts", starts


def strategies(folder: Path, options: argparse.Namespace) -> Figures:
    """Every strategy of PyTorch without a failure, and with two kills. `fromCPU`: the largest difference from the same job on the CPU."""
    memory = {"checkpoint": {"everySteps": 1000, "memory": {"everySteps": 1, "sizeMib": 64}}}
    kinds: dict[str, dict[str, Any]] = {
        "one process": {"strategy": "DDP", "size": 1, "checkpoint": {"everySteps": 10}},
        "DDP": {"strategy": "DDP"},
        "DDP, four processes": {"strategy": "DDP", "size": 4},
        "DDP, Gloo": {"strategy": "DDP", "communication": "Gloo"},
        "DDP, not in place": {"strategy": "DDP", **NOT_IN_PLACE},
        "DDP, bfloat16": {"strategy": "DDP", "config": {"precision": "BFloat16"}},
        "DDP, memory": {"strategy": "DDP", **memory},
        "FSDP": {"strategy": "FSDP", **memory},
        "TensorParallel": {"strategy": "TensorParallel", **memory},
        "Pipeline": {"strategy": "Pipeline", **memory},
    }

    def one(place: Path, kind: dict[str, Any]) -> Any:
        with ThreadPoolExecutor(2) as pool:
            on_cpu = pool.submit(run, place / "cpu", document(**kind), CUDA_VISIBLE_DEVICES="")
            like = losses_of(run(place / "like", document(**kind)))
            differences = {"fromCPU": farthest(like, losses_of(on_cpu.result()))}
        if kind.get("size", 2) > 1:
            differences |= with_kills(place / "kills", document(**kind, delay=DELAY), kills=2, like=like)
        return differences

    for name, kind in kinds.items():
        yield name, partial(one, folder / _folded(name), kind)


def across(folder: Path, options: argparse.Namespace) -> Figures:
    """A job trains one part on the GPU and the rest on the CPU, or the other way round. The difference from the GPU alone."""
    cpu = {"CUDA_VISIBLE_DEVICES": ""}

    def one(place: Path, first: Mapping[str, str], second: Mapping[str, str]) -> Any:
        whole = losses_of(run(place / "whole", document("DDP", size=1)))
        local_job = LocalJob(place)
        written = local_job.write(document("DDP", size=1, delay=DELAY))
        with local_job.running(written, env=first) as process:
            local_job.wait_for_step(60)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        with local_job.running(written, "--resume", env=second) as process:
            output = process.communicate(timeout=120)[0]
        if process.returncode:
            raise RuntimeError(output[-3000:])
        return {"difference": farthest(losses_of(local_job), whole), "resumedAt": local_job.events("resumed")[-1]["step"]}

    yield "GPU to CPU", partial(one, folder / "to-cpu", {}, cpu)
    yield "CPU to GPU", partial(one, folder / "to-gpu", cpu, {})


def refusals(folder: Path, options: argparse.Namespace) -> Figures:
    """The messages for processes without a GPU of their own, where NCCL may not share one."""

    def one(place: Path, roles: Mapping[str, Any]) -> str:
        written = document("DDP", recovery={"infrastructure": {"limit": 1}})
        written["spec"]["roles"]["worker"] = dict(roles)
        try:
            run(place, written, NCCL_MULTI_RANK_GPU_ENABLE="0")
        except RuntimeError as error:
            return " ".join(str(error).split())[-600:]
        return "was not refused"

    yield "same GPU", partial(one, folder / "same", {"replicas": 2})
    yield "no GPU", partial(one, folder / "none", {"replicas": 1, "processesPerReplica": 2})


def recovery(folder: Path, options: argparse.Namespace) -> Figures:
    """Medians over many kills, one job at a time."""

    def one(place: Path, kind: dict[str, Any]) -> Any:
        config = {**kind.get("config", {}), "epochs": 2 + options.times * BETWEEN_KILLS // 22}
        kind = {**kind, "config": config}
        like = losses_of(run(place / "like", document(**kind)))
        return with_kills(place / "kills", document(**kind, delay=DELAY), kills=options.times, like=like)

    yield "in place", partial(one, folder / "in-place", {"strategy": "DDP"})
    yield "forked", partial(one, folder / "forked", {"strategy": "DDP", **NOT_IN_PLACE})
    yield "in place, 500 MB", partial(one, folder / "large", {"strategy": "DDP", "module": "large"})


ONE_AT_A_TIME = (machine, recovery)
PARTS: dict[str, Callable[[Path, argparse.Namespace], Figures]] = {
    each.__name__: each for each in (machine, strategies, across, refusals, recovery)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--only", nargs="*", help="names of figures")
    parser.add_argument("--times", type=int, default=10, help="kills for each figure of `recovery`")
    parser.add_argument("--at-once", type=int, default=1, help="jobs at a time, of parts that measure no time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-gpu-") as name:
        failed = False
        for part in options.parts:
            selected = [each for each in PARTS[part](Path(name) / part, options) if not options.only or each[0] in options.only]
            with ThreadPoolExecutor(1 if PARTS[part] in ONE_AT_A_TIME else options.at_once) as pool:
                failed |= any(pool.map(partial(_show, part), selected))
    sys.exit(1 if failed else 0)


def _show(part: str, figure: tuple[str, Callable[[], Any]]) -> bool:
    """Prints one figure as soon as it is there. Returns whether it failed."""
    name, compute = figure
    began, failed = time.monotonic(), False
    try:
        figures = compute()
    except Exception:  # noqa: BLE001 (the other figures are still measured)
        figures, failed = traceback.format_exc()[-3000:], True
    print(json.dumps({"part": part, "name": name, "took": round(time.monotonic() - began, 1), "figures": figures}), flush=True)
    return failed


def _folded(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


if __name__ == "__main__":
    main()
