"""What snapshots in memory cost: `python -m bench.memory`. Prints JSON.

Blocks of steps with snapshots and without are paired, in turns, in the same processes of the same world. A block ends when its last
snapshot is complete. The median over the pairs of the ratios of their seconds counts, and its interval, and the same of the processor
seconds of all threads. The model's step takes about 50 ms on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

from bench.overhead import GPT, Sides, slower
from local_cluster.ports import free_ports
from muster.strategies.registry import strategy_of
from muster_contract.environment import MEMORY_FD, variables
from muster_contract.trainer_spec import BatchSpec, MemorySpec, TrainerSpec

STRATEGIES = ("DDP", "FSDP")
SIZE_MIB = 512
WARM_UP_STEPS = 8
LOG = "BENCH_TIMES_FD"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--every", nargs="+", type=int, default=[1, 10], help="steps between snapshots")
    parser.add_argument("--world", type=int, default=2, help="processes, each in a replica of its own")
    parser.add_argument("--pairs", type=int, default=20, help="pairs for each number of steps between snapshots")
    parser.add_argument("--steps", type=int, default=10, help="steps of each side of a pair")
    parser.add_argument("--batch", type=int, default=16, help="samples of a step")
    arguments = parser.parse_args()
    if LOG in os.environ:
        measured = measure(arguments)
        if measured:
            os.write(int(os.environ[LOG]), json.dumps(measured).encode())
        os._exit(0)
    for strategy in arguments.strategies:
        print(json.dumps({strategy: run_world(strategy, arguments)}, indent=1), flush=True)


def run_world(strategy: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Starts this program once for each process of a world; gives what the first one has measured."""
    reader, writer = os.pipe()
    (port,) = free_ports(1)
    memories = [os.memfd_create("snapshots") for _ in range(arguments.world)]
    workers = []
    for rank, memory in enumerate(memories):
        os.ftruncate(memory, SIZE_MIB << 20)
        env = environment(strategy, arguments, port=port, rank=rank) | {LOG: str(writer), MEMORY_FD: str(memory)}
        workers.append(
            subprocess.Popen(
                [sys.executable, "-m", "bench.memory", *sys.argv[1:]], env=env, pass_fds=[writer, memory], stdout=subprocess.DEVNULL
            )
        )
        os.close(memory)
    os.close(writer)
    try:
        with os.fdopen(reader) as times:
            measured: dict[str, Any] = json.load(times)
        for worker in workers:
            worker.wait()
    finally:
        for worker in workers:
            worker.kill()
    return measured


def environment(strategy: str, arguments: argparse.Namespace, *, port: int, rank: int) -> dict[str, str]:
    memory = MemorySpec(every_steps=1, size_mib=SIZE_MIB)
    trainer = TrainerSpec(
        strategy=strategy_of(strategy).runtime, batch=BatchSpec(arguments.batch), task="gpt", config=GPT, memory=memory, grace_seconds=0.0
    )
    replica = variables(
        job="bench/memory",
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
    world = str(arguments.world)
    place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": "1"}
    return {**os.environ, **replica, **place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}


def measure(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Both sides in turns, in this process of the world; the figures, on rank 0."""
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
    training.summaries = training._summaries(0)
    engine.expect(training.order, range(training.total))
    memory = engine.memory
    memory.start()
    done = 0

    def block(every: int | None) -> tuple[float, float]:
        """Seconds of a step, and its processor seconds."""
        nonlocal done
        engine.gather("")  # begin together
        begun, worked = time.monotonic(), time.process_time()
        for number in range(1, arguments.steps + 1):
            training._step(done)
            done += 1
            if every and number % every == 0:
                memory.begin(done, None, lambda _: None)
        memory.land()
        return (time.monotonic() - begun) / arguments.steps, (time.process_time() - worked) / arguments.steps

    for _ in range(-(-WARM_UP_STEPS // arguments.steps)):
        block(1)
    found: dict[str, Any] = {}
    for every in arguments.every:
        seconds: Sides = {"trainer": [], "plain": []}
        processor: Sides = {"trainer": [], "plain": []}
        for pair in range(arguments.pairs):
            for name in ("trainer", "plain") if pair % 2 else ("plain", "trainer"):
                of_step, of_processor = block(every if name == "trainer" else None)
                seconds[name].append(of_step)
                processor[name].append(of_processor)
        overhead, interval = slower(seconds)
        work, work_interval = slower(processor)
        found[f"everySteps: {every}"] = {
            "stepSeconds": round(statistics.median(seconds["plain"]), 4),
            "overhead": overhead,
            "interval95": interval,
            "processorOverhead": work,
            "processorInterval95": work_interval,
            "pairs": arguments.pairs,
            "load": round(os.getloadavg()[0], 1),
            "processors": os.cpu_count(),
        }
    found["bytesOfARank"] = engine.memory._packed().size
    engine.gather("")
    return found if engine.rank == 0 else None


if __name__ == "__main__":
    main()
