"""A random walk through the faults: many of them befall one local job, at moments that a seed draws. `make chaos-walk`."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.local_faults import FAULTS
from tests.chaos.local_job import (
    EVERY,
    STEPS_OF_EPOCH,
    ChaosJob,
    check_nothing_left,
    check_resumed,
    digits,
    running,
)
from tests.chaos.matrix import cells, jobs

DELAY = 0.05
SHARE = 0.5  # of the time that is walked which the steps take by themselves
GAPS = (4.0, 25.0)  # seconds between two faults: some befall a world that still recovers
LEFT_OUT = {"clock-jump", "sigterm-without-enough-grace", *(name for name, fault in FAULTS.items() if fault.source)}
"""The counts of restarts would be wrong; grace is the job's, and so are snapshots in memory."""
RECOVERY = {
    "infrastructure": {"limit": -1},
    "attemptsWithoutProgress": 100,
    "hang": {"startSeconds": 30, "stepSeconds": 6, "saveSeconds": 6},
}


def schedule(seed: int, job: str, minutes: float) -> list[tuple[float, str]]:
    """When, in seconds from the first step, which fault strikes. Pure."""
    draw = random.Random(f"{seed}/{job}")
    faults = sorted({cell.fault for cell in cells() if cell.test and (cell.backend, cell.job) == ("local", job)} - LEFT_OUT)
    drawn: list[tuple[float, str]] = []
    moment = draw.uniform(*GAPS)
    while moment < minutes * 60:
        drawn.append((moment, draw.choice(faults)))
        moment += draw.uniform(*GAPS)
    return drawn


def walk(folder: Path, *, seed: int, job: str, minutes: float) -> ChaosJob:
    """Trains a job through its schedule, and checks that it ended as one that nothing befell."""
    epochs = max(4, round(minutes * 60 * SHARE / DELAY / STEPS_OF_EPOCH))
    with running(folder / "undisturbed", digits(job, epochs=epochs, delay=0)) as undisturbed:
        assert undisturbed.wait_for_end(minutes * 60 + 300) == "Succeeded", undisturbed.story()
    with running(folder / "befallen", digits(job, epochs=epochs, delay=DELAY, recovery=RECOVERY)) as befallen:
        befallen.wait_for_step(1)
        _strike(befallen, schedule(seed, job, minutes))
        befallen.check_succeeded(undisturbed.losses(), timeout=minutes * 60 + 300)
    check_resumed(befallen, most=3 * EVERY - 1)
    check_nothing_left(befallen)
    befallen.check_goodput()
    assert befallen.status["restarts"]["applicationCount"] == 0
    return befallen


def _strike(job: ChaosJob, drawn: Sequence[tuple[float, str]]) -> None:
    """One fault after the other, each at its time or, where the one before took longer, after it; until the job ends."""
    began = time.monotonic()
    for moment, fault in drawn:
        while (left := began + moment - time.monotonic()) > 0 and not job.has_ended():
            time.sleep(min(left, 0.1))
        if job.has_ended():
            return
        print(f"{time.monotonic() - began:7.1f} s, step {job.step:5}: {fault}", flush=True)
        try:
            FAULTS[fault].strike(job)
        except (ProcessLookupError, StopIteration) as error:
            print(f"{'':19} nobody was there: {error!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--job", choices=[name for name in jobs() if name != "TPU"], default="DDP")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="muster-walk-"))
    print(f"{given.job}, seed {given.seed}, {given.minutes:g} minutes: logs are in {folder}", flush=True)
    status = walk(folder, seed=given.seed, job=given.job, minutes=given.minutes).status
    restarts = ", ".join(f"{status['restarts'][f'{name}Count']} {name}" for name in ("infrastructure", "preemption", "application"))
    print(f"succeeded after {status['progress']['step']} steps and so many restarts: {restarts}")
    print("goodput: " + ", ".join(f"{name} {value}" for name, value in status["goodput"].items()))


if __name__ == "__main__":
    main()
