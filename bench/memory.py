"""The cost of snapshots in memory: `python -m bench.memory`. Prints JSON.

Blocks of steps with snapshots and without are paired (`bench.pairs`). A block ends when its last snapshot is complete. `default` takes a
snapshot as often as the trainer chooses from its own measurements. The target applies to `default`, and to the seconds of a block.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from bench.pairs import GPT, WARM_UP_STEPS, Times, figures, in_turns, is_worker, leave, open_training, replica_environment, run_world
from bench.pairs import torch_environment as place
from local_cluster.ports import free_ports
from muster.strategies.registry import strategy_of
from muster_contract.environment import MEMORY_FD
from muster_contract.trainer_spec import BatchSpec, MemorySpec, TrainerSpec

STRATEGIES = ("DDP", "FSDP")
DEFAULT = "default"
SIZE_MIB = 512
MOST = 0.02
CALIBRATING = 6
"""Snapshots before the first pair. After so many, the trainer no longer uses the measurements of snapshots that touched new memory."""
Measured = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--every", nargs="+", default=["1", "10", DEFAULT], help=f"steps between snapshots, or {DEFAULT}")
    parser.add_argument("--world", type=int, default=2, help="processes, each in a replica of its own")
    parser.add_argument("--pairs", type=int, default=20, help="pairs for each number of steps between snapshots")
    parser.add_argument("--steps", type=int, default=10, help=f"steps of each side of a pair; for {DEFAULT}, as many as it chooses")
    parser.add_argument("--batch", type=int, default=16, help="samples of a step")
    arguments = parser.parse_args()
    if is_worker():
        leave(measure(arguments))
    for strategy in arguments.strategies:
        measured = run_strategy(strategy, arguments)
        by_interval = {
            f"everySteps: {every}": {"stepsOfABlock": each["steps"], **figures([each["times"]])}
            | ({"overheadMustBeAtMost": MOST} if every == DEFAULT else {})
            for every, each in measured["every"].items()
        }
        print(json.dumps({strategy: {**by_interval, "bytesOfARank": measured["bytes"]}}, indent=1), flush=True)


def run_strategy(strategy: str, arguments: argparse.Namespace) -> Measured:
    """The measurements of a world. Each of its processes has memory of its own."""
    memories = [os.memfd_create("snapshots") for _ in range(arguments.world)]
    for memory in memories:
        os.ftruncate(memory, SIZE_MIB << 20)
    (port,) = free_ports(1)
    trainer = TrainerSpec(
        strategy=strategy_of(strategy).runtime,
        batch=BatchSpec(arguments.batch),
        task="gpt",
        config=GPT,
        memory=MemorySpec(size_mib=SIZE_MIB),
        grace_seconds=0.0,
    )
    environments = [
        {**replica_environment(strategy, trainer, rank), **place(rank, arguments.world, port), MEMORY_FD: str(memory)}
        for rank, memory in enumerate(memories)
    ]
    measured: Measured = run_world("bench.memory", environments, memories)
    return measured


def measure(arguments: argparse.Namespace) -> Measured | None:
    """Runs both sides in turns, in this process of the world. Returns the measurements on rank 0."""
    training = open_training()
    engine, memory = training.engine, training.engine.memory
    engine.expect(training.state.order, range(training.state.total))
    memory.start(0)
    done = 0

    def block(steps: int, every: int | None) -> None:
        nonlocal done
        for number in range(1, steps + 1):
            training.step(done)
            done += 1
            if every and number % every == 0:
                memory.begin(done, None, lambda _: None)
        memory.finish()

    def snapshot_first(steps: int) -> None:
        nonlocal done
        memory.begin(done, None, lambda _: None)
        block(steps, None)

    block(WARM_UP_STEPS, None)
    for _ in range(CALIBRATING):
        snapshot_first(2)
    every_of: dict[str, Any] = {}
    for every in arguments.every:
        steps = memory.between.steps if every == DEFAULT else arguments.steps
        with_snapshots = (lambda: snapshot_first(steps)) if every == DEFAULT else (lambda: block(steps, int(every)))  # noqa: B023 (called here)
        times: Times = in_turns(
            {"trainer": with_snapshots, "plain": lambda: block(steps, None)},  # noqa: B023
            pairs=arguments.pairs,
            steps=steps,
            meet=lambda: engine.gather(""),
        )
        every_of[every] = {"steps": steps, "times": times}
    engine.gather("")
    return {"every": every_of, "bytes": memory._packed().size} if engine.rank == 0 else None


if __name__ == "__main__":
    main()
