"""Gives random inputs to what reads input of others, for a limited time: `python -m tests.fuzz.run --seconds 60 [--target report]`.

Each target gets an equal share of the time. A failure is shown with the smallest input that Hypothesis finds.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.targets import TARGETS, Target

BATCH = 200
SLOWEST = 5.0
"""Seconds of the processor for one input. All take milliseconds, also on a slow machine."""


def fuzz(target: Target, seconds: float, *, batch: int = BATCH) -> int:
    """Gives inputs to the target until the time is over. Returns their number. Raises what the target raises."""
    count = 0

    @settings(
        max_examples=batch,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    @given(target.inputs)
    def one(value: Any) -> None:
        nonlocal count
        count += 1
        begun = time.process_time()
        target.check(value)
        assert time.process_time() - begun < SLOWEST, "this input takes very long"

    until = time.monotonic() + seconds
    while True:
        one()
        if time.monotonic() >= until:
            return count


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="may be given several times; without it, all targets")
    options = parser.parse_args()
    failed = []
    names = options.target or list(TARGETS)
    for name in names:
        try:
            count = fuzz(TARGETS[name], options.seconds / len(names))
            print(f"{name}: {count} inputs", flush=True)
        except Exception:  # noqa: BLE001  the other targets run, too
            failed.append(name)
            print(f"{name}: FAILED", flush=True)
            traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
