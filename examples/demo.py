"""The main job, shown: train on real data, lose a worker on the way, resume, and prove that nothing was lost.

`make demo` runs this. It does what a user would do by hand, with `muster run`, `kill -9` and `muster report`; its exit code is not
zero when any of its claims does not hold.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from muster.tools.report.curves import compare
from muster.tools.report.history import ReportError, read_history
from muster.tools.report.run import read_run, story

HERE = Path(__file__).resolve().parent
JOB = HERE / "digits-ddp.yaml"
RUNS = Path("runs") / "demo"
VICTIM = "worker-1"
KILL_AFTER = 0.4
"""Share of the training after which the worker is killed."""
STEPS_AFTER_COMMIT = 5
"""The kill waits until so many steps after a commit, so that there is something to lose."""
ACCURACY = 0.95
DEADLINE = 150.0
MUSTER = [sys.executable, "-m", "muster.cli"]


def main() -> int:
    shutil.rmtree(RUNS, ignore_errors=True)
    began = time.monotonic()
    say("1. Train handwritten digits (1,797 real images) with PyTorch DDP on two workers, and kill one in mid-training.")
    say(f"   $ muster run {os.path.relpath(JOB)} --run-dir {RUNS / 'killed'}")
    killed = start("killed")
    at = kill_one(RUNS / "killed", killed)
    say(f"   >>> kill -9 of {VICTIM} at step {at} <<<")
    finish(killed)

    say("\n2. Train the same job again, undisturbed, to compare with.")
    finish(start("undisturbed", "--quiet"))

    say("\n3. Hold the two against each other.")
    one, other = read_run(RUNS / "killed"), read_run(RUNS / "undisturbed")
    for line in story(one):
        say(f"   {line}")
    verdict = compare(one.history, other.history)
    accuracy = one.history.evaluations[-1].metrics["accuracy"]
    resumed = one.history.starts[-1]
    claims = {
        f"the job lost a worker and trained in {len(one.history.starts)} attempts": len(one.history.starts) > 1,
        f"it resumed at step {resumed.step}, and did {len(one.history.redone)} steps again": (
            resumed.step >= (resumed.committed_step or 0) > 0 and not one.history.redone
        ),
        f"with the undisturbed run, {verdict.sentence()}": verdict.identical,
        f"test accuracy is {accuracy:.2%} (at least {ACCURACY:.0%})": accuracy >= ACCURACY,
    }
    for claim, holds in claims.items():
        say(f"   [{'ok' if holds else 'NOT TRUE'}] {claim}")
    subprocess.run([*MUSTER, "report", RUNS / "killed", "--against", RUNS / "undisturbed"], check=True, stdout=subprocess.DEVNULL)
    say(f"\nThe report, with plots: {RUNS / 'killed' / 'report.html'}     ({time.monotonic() - began:.0f} s in all)")
    say("Try your own: edit the job file, `muster run` it, and kill what you like; processes.json in the run directory has the pids.")
    return 0 if all(claims.values()) else 1


def start(name: str, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*MUSTER, "run", str(JOB), "--run-dir", str(RUNS / name), *options])


def finish(run: subprocess.Popen[bytes]) -> None:
    try:
        code = run.wait(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        run.terminate()
        raise SystemExit(f"muster run did not end within {DEADLINE:.0f} s") from None
    if code:
        raise SystemExit(f"muster run ended with exit code {code}")


def kill_one(run_dir: Path, run: subprocess.Popen[bytes]) -> int:
    """Ends a training process of the victim with SIGKILL once training is under way; the step at which it did so."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if run.poll() is not None:
            raise SystemExit(f"muster run ended with exit code {run.returncode} before anything was killed")
        step, total, committed = progress(run_dir)
        if committed and step >= KILL_AFTER * total and step >= committed + STEPS_AFTER_COMMIT:
            os.kill(victim_pid(run_dir), signal.SIGKILL)
            return step
        time.sleep(0.02)
    run.terminate()
    raise SystemExit(f"the training did not get to the point of the kill within {DEADLINE:.0f} s")


def progress(run_dir: Path) -> tuple[int, int, int]:
    """Last step, steps in all, step of the last commit; zeros while there is nothing."""
    try:
        history = read_history(run_dir)
    except ReportError:
        return 0, 0, 0
    step = max((step.step for step in history.steps), default=0)
    total = max((step.total_steps or 0 for step in history.steps), default=0)
    return step, total, max((commit.step for commit in history.commits), default=0)


def victim_pid(run_dir: Path) -> int:
    """The pid of the victim's first training process."""
    replicas = json.loads((run_dir / "processes.json").read_text(encoding="utf-8"))
    return next(int(entry["processes"][0]["pid"]) for entry in replicas if entry["replica"] == VICTIM)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
