"""Random contention for a few nodes, with and without gang scheduling: `make gang-trials OPTIONS="--trials 1000"`.

The bench runs the control plane of Kubernetes with its scheduler, kwok's nodes, and the operator as a process with the rights of the chart.
Each trial has nodes and a namespace of its own. It runs twice with the same random choices: with `scheduling.gang` Required, and with
Never. Many trials run at the same time on one control plane, because a trial mostly waits. Jobs arrive, jobs are deleted, and nodes are
lost. A world whose pods all run trains for a while and ends. A world that lacks a pod does not train. An elastic job trains when its
smallest world runs, and is deleted after it has trained. The operator cannot make its world smaller, because the simulated pods send no
reports.

With `--scheduler coscheduling`, scheduler-plugins places the gangs. With `--queue kueue`, all jobs wait in queues of Kueue, and each trial
has a queue of its own. Its quota is that of the nodes, also after one is lost. Kueue evicts a job whose pods do not run within
READY_SECONDS.

Fails if a gang was placed in part, or if a trial with gangs came to a standstill although a job fitted.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from bench.canary import Canary
from bench.control_plane import say
from bench.gang_trial import CYCLE_SECONDS, STANDSTILL_SECONDS, Outcome, Setting, Trial
from tests.support.api_server.coscheduling import PERMIT_SECONDS, scheduling_with_coscheduling
from tests.support.api_server.fake_nodes import scheduling
from tests.support.api_server.kueue import define, kueue
from tests.support.api_server.operators import operating
from tests.support.api_server.watched import Watched

MODES = ("Required", "Never")
READY_SECONDS = 20


def run(setting: Setting, seeds: Sequence[str], *, at_once: int, seconds: float) -> list[Outcome]:
    """Runs the trials, each in all modes. Begins no trial after so many seconds."""
    begun = time.monotonic()

    def both(seed: str) -> list[Outcome]:
        if time.monotonic() - begun > seconds:
            return []
        trials = [Trial(setting, seed, mode) for mode in MODES]
        with ThreadPoolExecutor(len(trials)) as pool:
            outcomes = list(pool.map(Trial.run, trials))
        for trial, outcome in zip(trials, outcomes, strict=True):
            if outcome.mode != "Never" and (outcome.half or outcome.waiting):
                say(f"{seed}: {trial.plan}: {outcome}")
        return outcomes

    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(both, seed) for seed in seeds]
        try:
            for future in as_completed(futures):
                outcomes += future.result()
                if future.result() and (done := len(outcomes) // len(MODES)) % 20 == 0:
                    per_minute = done / (time.monotonic() - begun) * 60
                    say(f"{done} of {len(seeds)} trials, {per_minute:.1f} in a minute; {summary(outcomes)}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> str:
    half, stuck = Counter[str](), Counter[str]()
    for each in outcomes:
        half[each.mode] += len(each.half)
        stuck[each.mode] += bool(each.waiting)
    return ", ".join(f"{mode}: {half[mode]} worlds placed in part, {stuck[mode]} standstills" for mode in MODES)


def table(outcomes: Sequence[Outcome]) -> str:
    by_mode = [[each for each in outcomes if each.mode == mode] for mode in MODES]
    rows = {
        "": MODES,
        "trials": [len(each) for each in by_mode],
        "worlds that got all of their nodes": [sum(len(one.worlds) for one in each) for each in by_mode],
        f"worlds with only a part of their nodes for more than {CYCLE_SECONDS:.0f} s": [
            sum(len(one.half) for one in each) for each in by_mode
        ],
        "longest time with only a part of the nodes, s": [f"{max((one.longest for one in each), default=0):.1f}" for each in by_mode],
        "trials that came to a standstill with a job that fits": [sum(bool(one.waiting) for one in each) for each in by_mode],
        "jobs that fit there and did not run": [sum(len(one.waiting) for one in each) for each in by_mode],
    }
    return "\n".join(f"{what:<58}" + "".join(f"{value:>10}" for value in values) for what, values in rows.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100, help="number of trials; each runs in both modes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further trial after so many minutes")
    parser.add_argument("--at-once", type=int, default=12, help="trials that run at the same time")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the random choices")
    parser.add_argument("--queue", choices=["kueue"], help="let the jobs wait in queues of Kueue")
    parser.add_argument("--scheduler", choices=["kubernetes", "coscheduling"], default="kubernetes", help="which places the gangs")
    options = parser.parse_args()
    say(f"repeat the random choices with --seed {options.seed}")
    os.environ.setdefault("GOGC", "400")  # the API server collects garbage less often, for a tenth less of its time
    queued, waits = options.queue is not None, 0.0
    with tempfile.TemporaryDirectory(prefix="muster-gang-trials-") as name, ExitStack() as stack:
        folder = Path(name)
        chart = ["--set", "queueing.kueue.enabled=true"] if queued else []
        started = scheduling_with_coscheduling if options.scheduler == "coscheduling" else scheduling
        cluster = stack.enter_context(started(folder, options=chart))
        if queued:
            define(cluster.admin)
            stack.enter_context(kueue(folder, cluster.kubeconfig, ready_seconds=READY_SECONDS))
            waits += READY_SECONDS
        if options.scheduler == "coscheduling":
            waits += PERMIT_SECONDS
        operator = stack.enter_context(operating(cluster, folder / "operator"))
        pods = stack.enter_context(Watched(cluster.admin, "/api/v1/pods", labelSelector="muster.dev/job-name").working())
        jobs = stack.enter_context(Watched(cluster.admin, "/apis/muster.dev/v1beta1/trainingjobs").working())
        canary = stack.enter_context(Canary(cluster).working())
        setting = Setting(cluster, operator, pods, jobs, canary, queued=queued, standstill_seconds=STANDSTILL_SECONDS + waits)
        seeds = [f"{options.seed}-{number}" for number in range(options.trials)]
        begun = time.monotonic()
        outcomes = run(setting, seeds, at_once=options.at_once, seconds=options.minutes * 60)
        say(f"{len(outcomes) // len(MODES)} trials in {(time.monotonic() - begun) / 60:.1f} minutes")
        say(f"a job of one pod ran after {statistics.median(canary.seconds):.1f} s (median), {max(canary.seconds):.1f} s at most")
    print(table(outcomes))
    wrong = [each for each in outcomes if each.mode == "Required" and (each.half or each.waiting)]
    if wrong:
        sys.exit(f"gangs went wrong: {wrong}")


if __name__ == "__main__":
    main()
