"""Plants each bug of `mutants.py` and runs the tests against it that must find it.

Arguments are names of bugs. `--every 6` plants each sixth bug only. `--bugs-only` does not run the tests without a bug first. Exits 1 if
one survives, if the tests fail without a bug, or if a bug does not fit the source any more.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutants import MUTANTS, Mutant

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 900
AT_ONCE = 2
_INVARIANT = re.compile(r"invariant \[([^]]+)\] broken")
_ERROR = re.compile(r"^E\s+(\w+(?:Error|Exception)?)\b", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    failed: bool
    found_by: str
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.failed == bool(self.mutant.patches)


def try_out(mutant: Mutant) -> Outcome:
    """Runs its tests with this bug."""
    environment = {
        **os.environ,
        "MUSTER_PROPERTY_PROFILE": "mutant" if mutant.patches else "",
        "MUSTER_MUTANT": mutant.name if mutant.patches else "",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider", *mutant.tests]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(mutant, True, "the deadline", time.monotonic() - began)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{mutant.name}: the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Outcome(mutant, done.returncode == 1, _found_by(done.stdout), time.monotonic() - began)


def _found_by(output: str) -> str:
    named = _INVARIANT.search(output) or _ERROR.search(output)
    return named.group(1) if named else ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="plant each Nth bug only")
    parser.add_argument("--bugs-only", action="store_true", help="do not run the tests without a bug")
    options = parser.parse_args(arguments)
    names = options.names
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        raise SystemExit(f"error: unknown mutants {', '.join(sorted(unknown))}; there are {', '.join(each.name for each in MUTANTS)}")
    chosen = [mutant for mutant in MUTANTS[:: options.every] if not names or mutant.name in names]
    began = time.monotonic()
    print(f"{'mutant':<30} {'found by':<24} {'s':>5}  what it breaks", flush=True)
    survivors = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        files = [] if options.bugs_only else dict.fromkeys(mutant.tests for mutant in chosen)
        healthy = [Mutant("none", "nothing", (), tests=tests) for tests in files]
        for outcome in pool.map(try_out, [*healthy, *chosen]):
            found = outcome.found_by if outcome.failed else ("passes" if outcome.is_right else "NOT FOUND")
            print(f"{outcome.mutant.name:<30} {found:<24} {outcome.seconds:5.1f}  {outcome.mutant.breaks}", flush=True)
            survivors += not outcome.is_right
    print(f"{len(chosen) - survivors} of {len(chosen)} found in {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
