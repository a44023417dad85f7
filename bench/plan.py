"""`python bench/plan.py [JOB.YAML ...]`: what `muster plan` predicts a step to take, held against what it takes when the job is trained.

Trains with 1, 2 and 4 processes (those that the plan looks at) under DDP or MultiWorkerMirrored. Ends with 1 where a prediction is
more than 30 % off. Both are taken in one run; on a machine that is busy with other things meanwhile, neither means anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from muster.admission.read import read_job
from muster.api.job import TrainingJob
from muster.api.spec import Role, Roles
from muster.cli.plan import costs_here
from muster.local.probe import events
from muster.measure.cost import predict
from muster.measure.jobs import REHEARSED
from muster.strategies.registry import strategy_of

JOBS = ("bench/plan-digits.yaml", "bench/plan-gpt.yaml")
WITHIN = 0.3
SIZES = (1, 2, 4)
NOT_COUNTED = 5  # first steps, in which allocators and threads warm up


def trained(job: TrainingJob, file: Path, processes: int) -> float:
    """The median of the steps' seconds in a world of so many processes."""
    spec = job.spec.model_copy(
        update={"strategy": REHEARSED[strategy_of(job.spec.strategy).framework], "roles": Roles(worker=Role(replicas=processes))}
    )
    found = events(job.model_copy(update={"spec": spec}), job_file=file)
    steps = [event for event in found if event["event"] == "step" and event["samples"] == job.spec.batch.global_size]
    return median(step["seconds"] for step in steps[NOT_COUNTED:])


def compared(file: Path) -> list[float]:
    """Prints a line for each world, and gives predicted / measured - 1."""
    job = read_job(file)
    samples = job.spec.batch.global_size or 64
    costs = costs_here(job, file, samples, list(SIZES))
    off = []
    for processes in SIZES:
        world = predict(costs, processes, samples=samples)
        took = trained(job, file, processes)
        off.append(world.seconds / took - 1)
        print(
            f"{job.metadata.name:>12} {processes} process(es): predicted {world.seconds * 1e3:7.2f} ms "
            f"(computing {world.computing * 1e3:.2f}, adding up {world.communication * 1e3:.2f}), "
            f"measured {took * 1e3:7.2f} ms, off by {off[-1]:+.0%}",
            flush=True,
        )
    return off


def main(files: Sequence[str]) -> int:
    before = os.getloadavg()[0]
    off = [one for file in files for one in compared(Path(file))]
    print(f"largest error {max(map(abs, off)):.0%}, wanted at most {WITHIN:.0%}; load of the machine before: {before:.1f}")
    return int(max(map(abs, off)) > WITHIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or JOBS))
