"""The overhead of the trainer: `python -m bench.overhead`. Prints JSON.

Each strategy's step in the trainer's loop, with all its reports, is paired with the step of a plain script (bench/plain). Both have the
same model, data and batch, and run in the same processes, in turns (`bench.pairs`). So other programs may run on the machine too, although
the interval grows with their load.

The bench starts several worlds, because the placement of a process in memory makes one side faster by some percent for the life of the
process. The processor seconds of a step show only the additional work. Only the other ratio has the time that the trainer waits for the
votes of a step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

from bench.pairs import (
    GPT,
    WARM_UP_STEPS,
    Times,
    figures,
    in_turns,
    is_worker,
    leave,
    open_training,
    replica_environment,
    run_world,
    slower,
    torch_environment,
)
from local_cluster.ports import free_ports
from muster.strategies.registry import strategy_of
from muster_contract.trainer_spec import BatchSpec, TrainerSpec

PLAIN = {"DDP": "bench.plain.ddp", "FSDP": "bench.plain.fsdp", "MultiWorkerMirrored": "bench.plain.multi_worker_mirrored"}
MOST = 0.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", choices=PLAIN, default=list(PLAIN))
    parser.add_argument("--world", type=int, default=2, help="processes")
    parser.add_argument("--worlds", type=int, default=4, help="worlds one after the other, each with a share of the pairs")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of each strategy")
    parser.add_argument("--steps", type=int, default=5, help="steps of each side of a pair")
    parser.add_argument("--batch", type=int, default=16, help="samples of a step")
    arguments = parser.parse_args()
    if is_worker():
        leave(paired(os.environ["MUSTER_STRATEGY"], arguments, plain_first=os.environ["PLAIN_FIRST"] == "1"))
    for strategy in arguments.strategies:
        worlds = [run_strategy(strategy, arguments, plain_first=number % 2 == 1) for number in range(arguments.worlds)]
        of_each = {"overheadMustBeAtMost": MOST, "overheadOfEachWorld": [slower(world["seconds"])[0] for world in worlds]}
        print(json.dumps({strategy: figures(worlds) | of_each}, indent=1), flush=True)


def run_strategy(strategy: str, arguments: argparse.Namespace, *, plain_first: bool) -> Times:
    """The measurements of a world."""
    ports = free_ports(arguments.world)
    trainer = TrainerSpec(strategy=strategy_of(strategy).runtime, batch=BatchSpec(arguments.batch), task="gpt", config=GPT)
    environments = [
        {**replica_environment(strategy, trainer, rank), **_place(strategy, ports, rank), "PLAIN_FIRST": str(int(plain_first))}
        for rank in range(arguments.world)
    ]
    measured: Times = run_world("bench.overhead", environments)
    return measured


def _place(strategy: str, ports: list[int], rank: int) -> dict[str, str]:
    if strategy != "MultiWorkerMirrored":
        return torch_environment(rank, len(ports), ports[0])
    workers = [f"127.0.0.1:{port}" for port in ports]
    cluster = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    return {"TF_CONFIG": cluster, "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def paired(strategy: str, arguments: argparse.Namespace, *, plain_first: bool) -> Times | None:
    """Runs both sides in turns in this process of the world. Returns the seconds of their steps, on rank 0."""
    training = open_training()
    engine = training.engine
    shared = [engine.strategy] if strategy == "MultiWorkerMirrored" else []
    plain = importlib.import_module(PLAIN[strategy]).train(training.task, arguments.batch, *shared)
    sides: dict[str, Iterator[float]] = {"trainer": trained(training), "plain": plain}
    for name in ("plain", "trainer") if plain_first else ("trainer", "plain"):
        _steps(sides[name], WARM_UP_STEPS)()
    blocks = {name: _steps(side, arguments.steps) for name, side in sides.items()}
    pairs = ceil(arguments.pairs / arguments.worlds)
    times = in_turns(blocks, pairs=pairs, steps=arguments.steps, meet=lambda: engine.gather(""))
    engine.gather("")
    return times if engine.rank == 0 else None


def _steps(side: Iterator[float], count: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            next(side)

    return run


def trained(training: Any) -> Iterator[float]:
    """The steps of the trainer, as its loop runs them between two saves."""
    training.engine.expect(training.state.order, range(training.state.total))
    for step in range(training.state.total):
        yield training.step(step).loss


if __name__ == "__main__":
    main()
