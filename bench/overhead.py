"""The overhead of the trainer: `python -m bench.overhead`. Prints JSON.

Each strategy's step in the trainer's loop, with all its reports, is paired with the step of a plain script (bench/plain). Both have the
same model, data and batch, and run in the same processes, in turns. The result is the median of the ratios of the pairs, with its interval.
So other programs may run on the machine too, but the interval then grows.

It starts several worlds. The placement of a process in memory makes one side faster by some percent for as long as the process lives. The
processor seconds of a step show the additional work alone. The time that the trainer waits for the votes of a step is in the other ratio
only.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from math import ceil, floor, sqrt
from typing import Any

from muster.strategies.registry import strategy_of
from muster_contract.environment import variables
from muster_contract.trainer_spec import BatchSpec, TrainerSpec

BATCH = 16
GPT = {"width": 192, "layers": 3, "heads": 4, "context": 64, "optimizer": "AdamW", "learningRate": 1e-4, "epochs": 100000, "seed": 0}
PLAIN = {"DDP": "plain.ddp", "FSDP": "plain.fsdp", "MultiWorkerMirrored": "plain.multi_worker_mirrored"}
MOST = 0.03
Sides = dict[str, list[float]]
"""Of each side, the seconds of its steps in each pair."""
Times = dict[str, Sides]
WARM_UP_STEPS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", choices=PLAIN, default=list(PLAIN))
    parser.add_argument("--world", type=int, default=2, help="processes")
    parser.add_argument("--worlds", type=int, default=4, help="worlds one after the other, each with a share of the pairs")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of each strategy")
    parser.add_argument("--steps", type=int, default=5, help="steps of each side of a pair")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of a step")
    arguments = parser.parse_args()
    if strategy := os.environ.get("MUSTER_STRATEGY"):
        times = paired(strategy, arguments, plain_first=os.environ["PLAIN_FIRST"] == "1")
        if times:
            os.write(int(os.environ["TIMES_FD"]), json.dumps(times).encode())
        os._exit(0)  # frameworks may hang when they leave a world
    for strategy in arguments.strategies:
        worlds = [run_world(strategy, arguments.world, plain_first=number % 2 == 1) for number in range(arguments.worlds)]
        print(json.dumps({strategy: figures(worlds)}, indent=1), flush=True)


def run_world(strategy: str, size: int, *, plain_first: bool) -> Times:
    """Starts this program once for each process of a world, and waits for all. Returns the measurements of the first one."""
    reader, writer = os.pipe()
    ports = []
    for _ in range(size):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    added = {"PLAIN_FIRST": str(int(plain_first)), "TIMES_FD": str(writer)}
    workers = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env=environment(strategy, ports, rank) | added, pass_fds=[writer], stdout=subprocess.DEVNULL
        )
        for rank in range(size)
    ]
    os.close(writer)
    try:
        with os.fdopen(reader) as times:
            measured: Times = json.load(times)
        for worker in workers:
            worker.wait()
    finally:
        for worker in workers:
            worker.kill()
    return measured


def environment(strategy: str, ports: list[int], rank: int) -> dict[str, str]:
    batch = BatchSpec(int(sys.argv[sys.argv.index("--batch") + 1]) if "--batch" in sys.argv else BATCH)
    trainer = TrainerSpec(strategy=strategy_of(strategy).runtime, batch=batch, task="gpt", config=GPT)
    replica = variables(
        job="bench/overhead",
        job_uid="uid",
        job_created=datetime(2026, 1, 1, tzinfo=UTC),
        strategy=strategy,
        role="worker",
        index=rank,
        attempt=0,
        processes=1,
        pod_name="bench",
        pod_uid="uid",
        trainer=trainer.to_json(),
    )
    added = {**replica, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if strategy == "MultiWorkerMirrored":
        workers = [f"127.0.0.1:{port}" for port in ports]
        added["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    else:
        world = str(len(ports))
        added |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        added |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}
    return {**os.environ, **added}


def paired(strategy: str, arguments: argparse.Namespace, *, plain_first: bool) -> Times | None:
    """Runs both sides in turns in this process of the world. Returns the seconds of their steps, on rank 0."""
    from muster_contract.environment import ReplicaEnvironment
    from muster_trainer.host.events import Events
    from muster_trainer.host.framework import named
    from muster_trainer.host.stopping import StopRequest
    from muster_trainer.tasks.module import load_task
    from muster_trainer.training.loop import Training

    env = ReplicaEnvironment.from_environment(os.environ)
    spec = env.trainer_spec
    task = load_task(spec)
    engine = named(spec.strategy.engine, spec.strategy.framework)(task, spec)
    events = Events(os.open(os.devnull, os.O_WRONLY), engine.rank)
    training = Training(spec=spec, env=env, task=task, engine=engine, events=events, stop=StopRequest(events.descriptor))
    shared = [engine.strategy] if strategy == "MultiWorkerMirrored" else []
    sides = {"trainer": trained(training), "plain": importlib.import_module(PLAIN[strategy]).train(task, arguments.batch, *shared)}
    for name in ("plain", "trainer") if plain_first else ("trainer", "plain"):
        for _ in range(WARM_UP_STEPS):
            next(sides[name])
    seconds: Sides = {"trainer": [], "plain": []}
    processor: Sides = {"trainer": [], "plain": []}
    for number in range(ceil(arguments.pairs / arguments.worlds)):
        for name in ("trainer", "plain") if number % 2 else ("plain", "trainer"):
            engine.gather("")  # begin together
            begun, worked = time.monotonic(), time.process_time()
            for _ in range(arguments.steps):
                next(sides[name])
            seconds[name].append((time.monotonic() - begun) / arguments.steps)
            processor[name].append((time.process_time() - worked) / arguments.steps)
    engine.gather("")
    return {"seconds": seconds, "processor": processor} if engine.rank == 0 else None


def figures(worlds: list[Times]) -> dict[str, Any]:
    """The figures of the pairs of all worlds together."""
    seconds, processor = (
        {name: [each for world in worlds for each in world[kind][name]] for name in ("trainer", "plain")}
        for kind in ("seconds", "processor")
    )
    overhead, interval = slower(seconds)
    more, more_interval = slower(processor)
    return {
        "plainStepSeconds": round(statistics.median(seconds["plain"]), 4),
        "trainerStepSeconds": round(statistics.median(seconds["trainer"]), 4),
        "overhead": overhead,
        "interval95": interval,
        "overheadMustBeAtMost": MOST,
        "plainProcessorSeconds": round(statistics.median(processor["plain"]), 4),
        "processorOverhead": more,
        "processorInterval95": more_interval,
        "overheadOfEachWorld": [slower(world["seconds"])[0] for world in worlds],
        "pairs": len(seconds["plain"]),
        "load": round(os.getloadavg()[0], 1),
        "processors": os.cpu_count(),
    }


def trained(training: Any) -> Iterator[float]:
    """The steps of the trainer, as its loop runs them between two saves."""
    training.summaries = training._summaries(0)
    training.engine.expect(training.order, range(training.total))
    for step in range(training.total):
        yield training._step(step).loss


def slower(seconds: Sides) -> tuple[float, list[float]]:
    """The additional time of the trainer as a share: the median over the pairs, and its 95 % interval by order statistics."""
    ratios = sorted(ours / plain - 1 for ours, plain in zip(seconds["trainer"], seconds["plain"], strict=True))
    spread = 1.96 * sqrt(len(ratios)) / 2
    low, high = max(0, floor(len(ratios) / 2 - spread)), min(len(ratios) - 1, ceil(len(ratios) / 2 + spread))
    return round(statistics.median(ratios), 4), [round(ratios[low], 4), round(ratios[high], 4)]


if __name__ == "__main__":
    main()
