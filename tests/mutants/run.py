"""Plants each bug of `mutants.py` in a copy of the package and runs the lifecycle's property tests against it: every one must be found.

Exits 1 when one survives, when the copy without a bug does not pass, or when a bug no longer fits the source.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutants import MUTANTS, Mutant

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "operator" / "muster"
TESTS = REPOSITORY / "tests" / "property" / "test_lifecycle.py"
DEADLINE_SECONDS = 900
AT_ONCE = 2
_INVARIANT = re.compile(r"invariant \[([^]]+)\] broken")
_ERROR = re.compile(r"^E\s+(\w+(?:Error|Exception)?)\b", re.MULTILINE)


class MutantDoesNotFitError(Exception):
    """The text that a mutant replaces is not there exactly once: source and mutant have gone apart."""


@dataclass(frozen=True)
class Outcome:
    name: str
    breaks: str
    failed: bool
    found_by: str
    seconds: float


def plant(mutant: Mutant, package: Path) -> None:
    for edit in mutant.edits:
        path = package / "lifecycle" / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise MutantDoesNotFitError(
                f"{mutant.name}: {edit.file} holds {edit.old!r} {text.count(edit.old)} times; change the mutant to fit"
            )
        path.write_text(text.replace(edit.old, edit.new))


def try_out(mutant: Mutant, source: Path) -> Outcome:
    """The property tests against a copy of `source` with this bug."""
    with tempfile.TemporaryDirectory(prefix="muster-mutant-") as folder:
        shutil.copytree(source, Path(folder) / "muster")
        plant(mutant, Path(folder) / "muster")
        return _run(mutant, Path(folder))


def _run(mutant: Mutant, folder: Path) -> Outcome:
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MUSTER_PROPERTY_PROFILE": "mutant",
        "MUSTER_PACKAGE_UNDER_TEST": str(folder),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider", str(TESTS)]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(mutant.name, mutant.breaks, True, "the deadline", time.monotonic() - began)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{mutant.name}: the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Outcome(mutant.name, mutant.breaks, done.returncode == 1, _found_by(done.stdout), time.monotonic() - began)


def _found_by(output: str) -> str:
    named = _INVARIANT.search(output) or _ERROR.search(output)
    return named.group(1) if named else ""


def main(arguments: Sequence[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not arguments or mutant.name in arguments]
    if unknown := set(arguments) - {mutant.name for mutant in MUTANTS}:
        raise SystemExit(
            f"error: no mutant is called {', '.join(sorted(unknown))}; there are {', '.join(mutant.name for mutant in MUTANTS)}"
        )
    healthy = Mutant("none", "nothing", ())
    began = time.monotonic()
    print(f"{'mutant':<30} {'found by':<24} {'s':>5}  what it breaks", flush=True)
    survivors = []
    with tempfile.TemporaryDirectory(prefix="muster-healthy-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        # one copy for all: somebody may be editing the package meanwhile
        source = shutil.copytree(PACKAGE, Path(folder) / "muster", ignore=shutil.ignore_patterns("__pycache__"))
        for outcome in pool.map(lambda mutant: try_out(mutant, Path(source)), [healthy, *chosen]):
            right = outcome.failed != (outcome.name == "none")
            found = outcome.found_by if outcome.failed else ("passes" if right else "NOT FOUND")
            print(f"{outcome.name:<30} {found:<24} {outcome.seconds:5.1f}  {outcome.breaks}", flush=True)
            survivors += [] if right else [outcome.name]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} found in {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except MutantDoesNotFitError as problem:
        sys.exit(f"error: {problem}")
