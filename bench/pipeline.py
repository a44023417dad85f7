"""The gain of a pipeline cut by cost over an even cut, and the cost of each schedule: `python -m bench.pipeline`. Prints JSON.

Both sides of a ratio run in one world of two processes, in turns. The result is the median of the pairs, with its interval, because other
programs may run on the machine too. `predicted` is the ratio of the largest stages according to the measurement of the cut.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any
from unittest.mock import patch

from muster.strategies.registry import strategy_of
from muster_contract.trainer_spec import TrainerSpec
from muster_contract.wire import encode
from muster_trainer.data import Order
from muster_trainer.measure.measuring import Timing
from muster_trainer.tasks.module import load_task

PROCESSES = 2
SAMPLES, MICRO_BATCHES = 1024, 8
SKEWED = {
    "work in the first layers": [1024] * 4 + [64] * 8,
    "work in the last layers": [64] * 8 + [1024] * 4,
}
BALANCED = [768] * 12
STEPS = 2


class Side:
    """An engine of this process, stepped by hand. Several engines share one world."""

    def __init__(self, widths: list[int], **options: Any) -> None:
        from muster_trainer.pytorch import engine, pipeline, pipeline_stages

        trainer = {
            "strategy": encode(strategy_of("Pipeline").runtime),
            "task": "skewed",
            "config": {"hidden": widths, "epochs": 10**6, "optimizer": "SGD"},
            "batch": {"globalSize": SAMPLES},
            "options": {"pipeline": {"microBatches": MICRO_BATCHES, **options}},
        }
        spec = TrainerSpec.from_json(json.dumps(trainer))
        task = load_task(spec)
        self.order = Order(task.config.seed, len(task.train), SAMPLES, 1)
        self.cut: list[Any] = []
        capture = patch.object(pipeline_stages.Events, "emit", lambda _events, event: self.cut.extend(getattr(event, "stages", ())))
        join_once = patch.object(engine, "join", (lambda _: None) if engine.dist.is_initialized() else engine.join)
        with capture, join_once:
            self.engine = pipeline.engine(task, spec)
        self.engine.expect(self.order, range(10**6))
        self.done = 0

    def steps(self) -> float:
        """Seconds of a step, until all its updates are done: the mean of some consecutive steps."""
        begun = time.perf_counter()
        for _ in range(STEPS):
            self.engine.step(self.order.batch_indices(0), step=self.done, stop=False, save=False, busy=False)
            self.done += 1
        self.engine.parallel.finish_updates()
        self.engine.gather("")
        return (time.perf_counter() - begun) / STEPS

    @property
    def largest(self) -> float:
        return max((stage.seconds or 0.0 for stage in self.cut), default=0.0)


def ratios(one: Side, other: Side, pairs: int) -> dict[str, Any]:
    """The time of a step of `one`, divided by that of `other`."""
    both = [one, other]
    for side in both:
        side.steps()
    ratios: list[float] = []
    seconds: dict[Side, list[float]] = {one: [], other: []}
    for pair in range(pairs):
        for side in both if pair % 2 else reversed(both):
            seconds[side].append(side.steps())
        ratios.append(seconds[one][-1] / seconds[other][-1])
    ratio, step = Timing.of(ratios), Timing.of(seconds[other])
    return {"ratio": _shown(ratio), "stepMilliseconds": round(1000 * step.median, 1)}


def _shown(timing: Timing) -> dict[str, float]:
    return {"median": round(timing.median, 3), "low": round(timing.low, 3), "high": round(timing.high, 3)}


def compare(pairs: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"pairs": pairs, "evenOverCost": {}, "gpipeOver": {}}
    for name, widths in SKEWED.items():
        even, cost = Side(widths, schedule="1F1B", cut="Even"), Side(widths, schedule="1F1B")
        layers = [[len(stage.layers) for stage in side.cut] for side in (even, cost)]
        predicted = even.largest / cost.largest if cost.largest else 0.0
        figures["evenOverCost"][name] = {**ratios(even, cost, pairs), "predicted": round(predicted, 2), "layers": layers}
    gpipe = Side(BALANCED)
    for schedule in ("1F1B", "PipeDream"):
        figures["gpipeOver"][schedule] = ratios(gpipe, Side(BALANCED, schedule=schedule), pairs)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=11, help="pairs of each comparison")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        figures = compare(arguments.pairs)
        if os.environ["RANK"] == "0":
            print(json.dumps(figures, indent=1), flush=True)
        os._exit(0)  # as the trainer does
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(PROCESSES), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--pairs", str(arguments.pairs)]
    processes = [subprocess.Popen(command, env={**os.environ, **world, "RANK": str(rank)}) for rank in range(PROCESSES)]
    try:
        codes = [process.wait(1800) for process in processes]
    finally:
        for process in processes:
            process.kill()
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
