"""Compares the predictions of `muster plan` with training: `python -m bench.plan [JOB.YAML ...]`.

It trains with 1, 2 and 4 processes, as the plan does, under DDP or MultiWorkerMirrored. It ends with 1 if the median of the predicted steps
over several rounds is off by more than 30 %. The result is not valid on a machine that is busy with other programs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from muster.admission.read import read_job
from muster.api.job import TrainingJob
from muster.api.spec import WORKER, Role
from muster.cli.plan import costs_here
from muster.tools.measure.cost import predict
from muster.tools.measure.jobs import measured_of
from muster.tools.measure.measuring import run_and_read_events

JOBS = ("bench/plan-digits.yaml", "bench/plan-gpt.yaml")
WITHIN = 0.3
SIZES = (1, 2, 4)
ROUNDS = 3
NOT_COUNTED = 5  # the first steps, in which allocators and threads warm up


def trained(job: TrainingJob, file: Path, processes: int) -> float:
    """The median seconds of the steps in a world of so many processes."""
    spec = job.spec.model_copy(update={"strategy": measured_of(job).plain, "roles": {WORKER: Role(replicas=processes)}})
    sent = run_and_read_events(job.model_copy(update={"spec": spec}), job_file=file)
    steps = [event for event in sent if event["event"] == "step" and event["samples"] == job.spec.batch.global_size]
    return median(step["seconds"] for step in steps[NOT_COUNTED:])


def compared(job: TrainingJob, file: Path) -> list[float]:
    """Prints a line for each world, and returns the ratio of predicted and measured time of each."""
    samples = job.spec.batch.global_size or 64
    costs = costs_here(job, file, samples, list(SIZES))
    ratios = []
    for processes in SIZES:
        world = predict(costs, processes, samples=samples)
        seconds = trained(job, file, processes)
        ratios.append(world.seconds / seconds)
        print(
            f"{job.metadata.name:>12} {processes} process(es): predicted {world.seconds * 1e3:7.2f} ms "
            f"(computing {world.computing * 1e3:.2f}, adding up {world.communication * 1e3:.2f}), "
            f"measured {seconds * 1e3:7.2f} ms: {ratios[-1]:.2f}; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    return ratios


def main(files: Sequence[str]) -> int:
    worst = 0.0
    for file in map(Path, files):
        job = read_job(file)
        rounds = [compared(job, file) for _ in range(ROUNDS)]
        for processes, *ratios in zip(SIZES, *rounds, strict=True):
            worst = max(worst, abs(median(ratios) - 1))
            print(f"{job.metadata.name}, {processes} process(es): {median(ratios):.2f} of what it takes, median of {ROUNDS} rounds")
    print(f"largest error {worst:.0%}, wanted at most {WITHIN:.0%}")
    return int(worst > WITHIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or JOBS))
