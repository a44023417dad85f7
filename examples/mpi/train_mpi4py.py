"""Fits a line by gradient descent with mpi4py: each rank has its share of the points, and an Allreduce adds up the gradients.

It reports steps, saves, and resumes with muster_training. Under plain mpirun it runs too, without those.
"""

import json
import os
import random
import time

from mpi4py import MPI

import muster_training as muster

STEPS = int(os.environ.get("STEPS", "300"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.02"))


def main() -> None:
    world = MPI.COMM_WORLD
    # The first lower-case call of mpi4py keeps Python's lock until all ranks are in it. So it comes before any call of muster_training,
    # in which a rank may wait for an answer of rank 0.
    world.allreduce(0)
    generator = random.Random(world.rank)
    points = [(x, 3 * x - 1 + generator.gauss(0, 0.1)) for x in (generator.uniform(-1, 1) for _ in range(200))]
    done, slope, offset = 0, 0.0, 0.0
    if found := muster.latest():
        done = found.step
        slope, offset = json.loads((found / "model.json").read_text())
    while done < STEPS and not muster.should_stop():
        errors = [(x, slope * x + offset - y) for x, y in points]
        sums = (sum(e * x for x, e in errors), sum(e for _, e in errors), sum(e * e for _, e in errors), len(points))
        by_slope, by_offset, squares, count = (world.allreduce(each) for each in sums)
        slope, offset, done = slope - 0.1 * by_slope / count, offset - 0.1 * by_offset / count, done + 1
        muster.report(step=done, total=STEPS, loss=squares / count)
        if done % 10 == 0:
            save(world.rank, done, [slope, offset])
        time.sleep(STEP_SECONDS)
    if done < STEPS:
        save(world.rank, done, [slope, offset])
    elif world.rank == 0:
        print(f"slope {slope:.3f}, offset {offset:.3f} with {world.size} ranks", flush=True)


def save(rank: int, step: int, model: list[float]) -> None:
    with muster.checkpoint(step) as folder:
        if rank == 0:
            (folder / "model.json").write_text(json.dumps(model))


if __name__ == "__main__":
    main()
