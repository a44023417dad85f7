"""Runs two sides of the same training, in turns in the same processes of the same world.

A pair is a block of steps of each side. Load on the machine affects both blocks equally. So the result is the median of the ratios of the
pairs, with its interval. The processor seconds of all threads of a process show only the work, without the time in which it waits.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import ceil, floor, sqrt
from typing import Any

from muster_contract.environment import variables
from muster_contract.trainer_spec import TrainerSpec

GPT = {"width": 192, "layers": 3, "heads": 4, "context": 64, "optimizer": "AdamW", "learningRate": 1e-4, "epochs": 100000, "seed": 0}
"""A model whose step takes about 50 ms on a quiet machine."""
WARM_UP_STEPS = 8
SIDES = ("trainer", "plain")
Sides = dict[str, list[float]]
"""The seconds of its steps in each pair, for each side."""
Times = dict[str, Sides]
"""The keys `seconds` and `processor`."""
_RESULTS = "BENCH_RESULTS_FD"


def is_worker() -> bool:
    """Whether `run_world` has started this process."""
    return _RESULTS in os.environ


def leave(result: Any) -> None:
    """Ends a process of a world. The result is that of the first process with one. Frameworks may hang when they leave a world."""
    if result:
        os.write(int(os.environ[_RESULTS]), json.dumps(result).encode())
    os._exit(0)


def run_world(module: str, environments: Sequence[Mapping[str, str]], descriptors: Sequence[int] = ()) -> Any:
    """Starts a program with its arguments once for each process of a world, and waits for all. Returns the result of one of them."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    workers = [
        subprocess.Popen(
            command, env={**os.environ, **each, _RESULTS: str(writer)}, pass_fds=[writer, *descriptors], stdout=subprocess.DEVNULL
        )
        for each in environments
    ]
    for each in (writer, *descriptors):
        os.close(each)
    try:
        with os.fdopen(reader) as results:
            result = json.load(results)
        for worker in workers:
            worker.wait()
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                worker.kill()
    return result


def replica_environment(strategy: str, trainer: TrainerSpec, rank: int) -> dict[str, str]:
    """The variables of Muster for a replica with one process."""
    replica = variables(
        job="bench/pairs",
        job_uid="uid",
        job_created=datetime(2026, 1, 1, tzinfo=UTC),
        strategy=strategy,
        role="worker",
        index=rank,
        attempt=0,
        processes=1,
        pod_name="bench",
        pod_uid=f"pod-{rank}",
        trainer=trainer.to_json(),
    )
    return {**replica, "OMP_NUM_THREADS": "1"}


def torch_environment(rank: int, world: int, port: int) -> dict[str, str]:
    """The place of a process in a world of PyTorch on this machine."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    return {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def open_training() -> Any:
    """The training of this process, before its first step."""
    from muster_contract.environment import ReplicaEnvironment
    from muster_trainer.host.events import Events
    from muster_trainer.host.framework import named
    from muster_trainer.host.stopping import StopRequest
    from muster_trainer.tasks.module import load_task
    from muster_trainer.training.loop import Training
    from muster_trainer.training.run import Run

    env = ReplicaEnvironment.from_environment(os.environ)
    spec = env.trainer_spec
    task = load_task(spec)
    engine = named(spec.strategy.engine, spec.strategy.framework)(task, spec)
    events = Events(os.open(os.devnull, os.O_WRONLY), engine.rank)
    return Training(Run(spec, env, task, engine, events, StopRequest(events.descriptor)))


def in_turns(blocks: Mapping[str, Callable[[], object]], *, pairs: int, steps: int, meet: Callable[[], object]) -> Times:
    """Runs a block of so many steps of each side in each pair. All processes `meet` before each block."""
    times: Times = {kind: {name: [] for name in SIDES} for kind in ("seconds", "processor")}
    for pair in range(pairs):
        for name in SIDES if pair % 2 else reversed(SIDES):
            meet()
            began, worked = time.monotonic(), time.process_time()
            blocks[name]()
            times["seconds"][name].append((time.monotonic() - began) / steps)
            times["processor"][name].append((time.process_time() - worked) / steps)
    return times


def figures(worlds: Sequence[Times]) -> dict[str, Any]:
    """The figures of the pairs of all worlds together."""
    seconds, processor = (
        {name: [each for world in worlds for each in world[kind][name]] for name in SIDES} for kind in ("seconds", "processor")
    )
    overhead, interval = slower(seconds)
    more, more_interval = slower(processor)
    return {
        "plainStepSeconds": round(statistics.median(seconds["plain"]), 4),
        "trainerStepSeconds": round(statistics.median(seconds["trainer"]), 4),
        "overhead": overhead,
        "interval95": interval,
        "plainProcessorSeconds": round(statistics.median(processor["plain"]), 4),
        "processorOverhead": more,
        "processorInterval95": more_interval,
        "pairs": len(seconds["plain"]),
        "load": round(os.getloadavg()[0], 1),
        "processors": os.cpu_count(),
    }


def slower(seconds: Sides) -> tuple[float, list[float]]:
    """The additional time of the trainer as a share: the median over the pairs, and its 95 % interval by order statistics."""
    ratios = sorted(ours / plain - 1 for ours, plain in zip(seconds["trainer"], seconds["plain"], strict=True))
    spread = 1.96 * sqrt(len(ratios)) / 2
    low, high = max(0, floor(len(ratios) / 2 - spread)), min(len(ratios) - 1, ceil(len(ratios) / 2 + spread))
    return round(statistics.median(ratios), 4), [round(ratios[low], 4), round(ratios[high], 4)]
